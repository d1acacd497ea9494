"""What servers say of a conversation that is too long, and what only sounds like it."""

import pytest

from loom.activities.adapters.models.context_overflow import context_numbers, is_too_long

TOO_LONG = [
    # text, limit, tokens
    ("context_length_exceeded. Please shorten the conversation", None, None),
    (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9,000 tokens.",
        8192,
        9000,
    ),
    (
        "This model's maximum context length is 131072 tokens. However, you requested 131134 tokens (122942 in the"
        " messages, 8192 in the completion). Please reduce the length of the messages or completion.",
        131072,
        131134,
    ),
    ("Your input exceeds the context window of this model. Please adjust your input and try again.", None, None),
    (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300001 tokens.",
        272000,
        300001,
    ),
    ("prompt is too long: 208310 tokens > 200000 maximum", 200000, 208310),
    ("Prompt is too long", None, None),
    ("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease them", 200000, 210000),
    ("request_too_large. Request exceeds the maximum size", None, None),
    ("Input is too long for requested model.", None, None),
    ("ValidationException: The model returned the following errors: Input is too long", None, None),
    ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1048576, 1200000),
    ("The input token count exceeds the maximum number of tokens allowed 1048576.", 1048576, None),
    (
        "Unable to submit request because the input token count is 40000 but the model only supports up to 32768.",
        32768,
        40000,
    ),
    ("This model's maximum prompt length is 131072 but the request contains 200000 tokens.", 131072, 200000),
    ("Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 7012", 6000, 7012),
    (
        "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 39000."
        " The input or output tokens must be reduced in order to run successfully.",
        30000,
        39000,
    ),
    ("Please reduce the length of the messages or completion.", None, None),
    (
        "Please reduce the length of the messages or completion. Current length is 42328 while limit is 40000",
        40000,
        42328,
    ),
    (
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        32768,
        40000,
    ),
    ("too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292.", 4081, 4292),
    ("too many tokens: size limit exceeded by 11326 tokens. Try using shorter or fewer inputs.", None, None),
    ("The input (9000 tokens) is longer than the model's context length (8192 tokens).", 8192, 9000),
    (
        "Requested token count exceeds the model's maximum context length of 131072 tokens. You requested a total of"
        " 145000 tokens: 140000 tokens from the input messages and 5000 tokens for the completion.",
        131072,
        145000,
    ),
    ("The prompt is too long: 140000, model maximum context length: 131071", 131071, 140000),
    ("Input length 131393 exceeds the maximum allowed input length of 131040 tokens.", 131040, 131393),
    ("Input length (265330) exceeds model's maximum context length (262144).", 262144, 265330),
    (
        "This endpoint's maximum context length is 131072 tokens. However, you requested about 150000 tokens (140000 of"
        " text input, 2000 of tool input, 8000 in the output). Please reduce the length of either one.",
        131072,
        150000,
    ),
    ("prompt too long; exceeded max context length by 1200 tokens", None, None),
    ("the input length exceeds the context length", None, None),
    ("The number of tokens to keep from the initial prompt is greater than the context length.", None, None),
    (
        "Trying to keep the first 9158 tokens when context the overflows. However, the model is loaded with context"
        " length of only 4096 tokens, which is not enough.",
        4096,
        9158,
    ),
    (
        "The number of tokens to keep from the initial prompt is greater than the context length (n_ctx: 8192)",
        8192,
        None,
    ),
    ("the request exceeds the available context size, try increasing it", None, None),
    ("request (9158 tokens) exceeds the available context size (6000 tokens), try increasing it", 6000, 9158),
    ("exceed_context_size_error", None, None),
    ("Requested tokens (9000) exceed context window of 2048", 2048, 9000),
    ("Context size has been exceeded.", None, None),
    ("Prompt tokens (9001) exceeds context size (8192)", 8192, 9001),
    ("Prompt has 32769 tokens, but the configured context size is 32768 tokens", 32768, 32769),
    ("You passed 5000 input tokens, but the model's context length is only 4096 tokens", 4096, 5000),
    (
        "You passed 5000 input tokens and requested 1000 output tokens. However, the model's context length is only"
        " 4096 tokens, resulting in a maximum input length of 3096 tokens.",
        4096,
        5000,
    ),
    (
        "This model's maximum context length is 262144 tokens. However, you requested 128000 output tokens and your"
        " prompt contains at least 134145 input tokens, for a total of at least 262145 tokens. Please reduce the length"
        " of the input prompt or the number of requested output tokens. (parameter=input_tokens, value=134145)",
        262144,
        262145,
    ),
    (
        "'max_tokens' is too large: 32000. This model's maximum context length is 32768 tokens and your request has"
        " 1000 input tokens (32000 > 32768 - 1000).",
        32768,
        33000,
    ),
    ("The decoder prompt (length 9000) is longer than the maximum model length of 8192.", 8192, 9000),
    ("Input prompt (9000 tokens) is too long and exceeds limit of 8192", 8192, 9000),
    ("Prompt too long: 5152 tokens exceeds max_seq_len 2048 (leave room for output tokens)", 2048, 5152),
    ("Input validation error: `inputs` must have less than 4096 tokens. Given: 5000", 4096, 5000),
    (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and"
        " 500 `max_new_tokens`",
        4096,
        4500,
    ),
    ("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]", 30720, None),
    ("Total message token length exceed model limit (131072 tokens)", 131072, None),
    ("Prompt exceeds max length", None, None),
    ("model_context_window_exceeded", None, None),
    ("Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)", 262144, 291351),
    ("model max length exceeded, max length:8192", 8192, None),
    ("Input token length too long", None, None),
    ("total message size 4371230 exceeds limit 4194304", None, None),
    ("invalid params, context window exceeds limit (2013)", None, None),
    ("tokens_limit_reached. Request body too large for gpt-4o-mini model. Max size: 8000 tokens.", 8000, None),
    ("prompt token count of 130000 exceeds the limit of 128000", 128000, 130000),
    ("Prompt tokens too long", None, None),
    ("tokens in request more than max tokens allowed", None, None),
    ("litellm.ContextWindowExceededError: litellm.BadRequestError: AzureException", None, None),
    ("ContextLengthExceeded", None, None),
    ("The conversation is too large for this model (250_000 tokens, maximum 200_000)", 200000, 250000),
    ("The prompt does not fit into 8192 tokens: it has 10000 tokens.", 8192, 10000),
    ("This request uses 210000 tokens, which is over the model's limit of 200000.", 200000, 210000),
    ("max_tokens + prompt exceeds the model's context window of 8192 tokens", 8192, None),
    ("prompt is too long (system + tools + messages): 300000 tokens > 200000", 200000, 300000),
    (
        "Requested generation length 1000 is not possible! The provided prompt is 4000 tokens long, so generating 1000"
        " tokens requires a sequence length of 5000, but the maximum supported sequence length is just 4096!",
        4096,
        5000,
    ),
    (
        "The estimated number of input and maximum output tokens (5000) exceeded this model context window limit"
        " (4096).",
        4096,
        5000,
    ),
    ("Too many input tokens. Max input tokens: 8192, request input token count: 10000", 8192, 10000),
    ("Messages have 20000 tokens, which exceeds the max limit of 16384 tokens.", 16384, 20000),
    ("Total tokens of image and text exceed max message tokens", None, None),
    ("Prompt length (9000) exceeds maximum input length (8192). Set log level to info and check", 8192, 9000),
    ("max_tokens must be at least 1, got -1234.", None, None),
    ("the number of input tokens 9000 cannot exceed the total tokens limit 8192 for this model", 8192, 9000),
    ("Your input has 1,234,567 tokens but the limit is 1,048,576.", 1048576, 1234567),
    ("Invalid request: total tokens 9000 > max 8192", 8192, 9000),
    ("the prompt plus the answer would be 9000 tokens; the model allows 8192", 8192, 9000),
    ("Token limit exceeded: 9000/8192", 8192, 9000),
    ("Input is too long for this model, shorten your input", None, None),
    ("Prompt 超长", None, None),
    ("输入长度超过模型上限", None, None),
    ("上下文长度超出限制：最大131072，实际150000", 131072, 150000),
    ("请求的 tokens 数超过模型最大长度 32768", 32768, None),
    ("輸入內容過長，請縮短對話", None, None),
    ("输入的tokens数量(40000)大于模型支持的最大长度(32768)", 32768, 40000),
]


@pytest.mark.parametrize(("text", "limit", "tokens"), TOO_LONG, ids=[case[0][:40] for case in TOO_LONG])
def test_too_long_is_recognized_in_the_words_of_each_server(text: str, limit: int | None, tokens: int | None) -> None:
    assert is_too_long(text, 400)
    assert context_numbers(text) == {
        name: number for name, number in (("tokens", tokens), ("limit", limit)) if number is not None
    }


SOMETHING_ELSE = [
    "max_tokens is too large: 8192. This model supports at most 4096 completion tokens, whereas you provided 8192.",
    "max_tokens: 64000 > 8192, which is the maximum allowed number of output tokens for claude-3-5-sonnet",
    "Range of max_tokens should be [1, 2000]",
    "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
    "too many tokens: max tokens must be less than or equal to 4096, the maximum output for this model: received 9000",
    "`max_new_tokens` must be <= 1024. Given: 2000",
    "max_tokens in your request exceeds the limit of 8192",
    "max_completion_tokens exceeds the limit",
    "The maximum output tokens exceed the model's output limit of 8192",
    "`max_tokens` must be greater than `thinking.budget_tokens`",
    "thinking budget tokens must be less than 32768",
    "body.max_tokens: Input should be less than or equal to 8192",
    "body.temperature: Input should be less than or equal to 2",
    "temperature is too large: it must be less than 2",
    "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes",
    "messages.2.content.0: At least one of the image dimensions exceed max allowed size for many-image requests: 2000",
    "The input image is too large: 9000 x 9000 pixels",
    "Too many images in request: 101 > 100",
    "Image tokens exceed the limit",
    "The PDF specified exceeds the maximum of 100 pages",
    "Input audio is longer than 3600 seconds",
    "The uploaded file is too large. Maximum 512 MB",
    "Request payload size exceeds the limit: 20971520 bytes.",
    "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64, but got 70 instead.",
    "Invalid 'messages[3].tool_calls[0].id': string too long. Expected a string with maximum length 40.",
    "messages.1.content.0.tool_use.id: String should have at most 64 characters",
    "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 200.",
    "tools.0.custom.description: too long",
    "Invalid 'prompt_cache_key': string too long. Expected a string with maximum length 64",
    "Invalid 'user': string too long",
    "The JSON schema of the input exceeds the maximum depth of 5",
    "The tool description in your request is too long",
    "400 Request Header Or Cookie Too Large",
    "Too many stop sequences in the request: 5 > 4",
    "Rate limit reached for gpt-5 on tokens per min (TPM): Limit 30000, Used 29000, Requested 1500. Try again in 1s.",
    "This request would exceed your organization's rate limit of 30,000 input tokens per minute",
    "Number of request tokens has exceeded your per-minute rate limit",
    "Too many tokens, please wait before trying again.",
    "ThrottlingException: Too many tokens per day",
    "Too many requests",
    "Quota exceeded for online_prediction_input_tokens_per_minute_per_base_model with base model: gemini",
    "You exceeded your current quota, please check your plan and billing details.",
    "Prompt tokens limit exceeded: 15000 > 12345. To increase, visit the page for credits",
    "Your request exceeded the usage limit of this month",
    "Too many concurrent requests: your request exceeds the limit of 2",
    "context deadline exceeded",
    "The request timed out: it took longer than 60 seconds",
    "Your prompt exceeds our safety policy's limits",
    "Unknown parameter: 'context_length'",
    "The model `m` does not exist",
    "Invalid API key: the access token is too long",
    "messages: text content blocks must be non-empty",
    "tool_use ids were found without tool_result blocks immediately after",
    "Function call is missing a thought_signature in functionCall parts",
    "Unterminated string in tool arguments",
    "Invalid schema for function 'f': array schema missing items",
    "Long context beta is not available for this subscription",
    "单个图片大小超过限制 10MB",
    "max_tokens 超过最大输出限制",
    "您的账户已达到速率限制，请您控制请求频率",
    "工具名称超过最大长度 64",
    "请求次数超过限制，请稍后再试",
    "JWT token is too long",
    "The model only supports text input",
    "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    "Input data may contain inappropriate content",
    "",
]


@pytest.mark.parametrize("text", SOMETHING_ELSE, ids=[text[:40] for text in SOMETHING_ELSE])
def test_what_only_sounds_like_too_long_is_something_else(text: str) -> None:
    assert not is_too_long(text, 400)


@pytest.mark.parametrize(
    "text",
    ["the request exceeded its time budget of 60 s", "upstream request exceeded max retries", "CUDA out of memory"],
)
@pytest.mark.parametrize("status", [200, 400, 500, 503])
def test_a_server_that_fails_speaks_of_requests_that_exceed_something_else(text: str, status: int) -> None:
    assert not is_too_long(text, 500)
    assert is_too_long("the prompt is too long", status)


def test_a_context_window_counts_even_beside_a_hint_at_limits_of_the_rate() -> None:
    assert is_too_long("The prompt exceeds the context window. See the page about rate limits.", 400)
    assert not is_too_long("The rate limit for requests above a context length of 200000 is exceeded. Wait.", 429)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Request Entity Too Large", True),
        ("", True),
        ("Request exceeds the maximum allowed number of bytes", True),
        ("image exceeds 5 MB maximum", False),
        ("The file is too large", False),
    ],
)
def test_a_request_that_is_too_large_as_a_whole_is_too_long_unless_a_file_is(text: str, expected: bool) -> None:
    assert is_too_long(text, 413) is expected


FIELDS = [
    ({"n_prompt_tokens": 5000, "n_ctx": 4096}, {"tokens": 5000, "limit": 4096}),
    ({"max_context_length": 4096}, {"limit": 4096}),
    ({"n_prompt_tokens": 4096, "n_ctx": 4096}, {"tokens": 4096, "limit": 4096}),
    ({"n_prompt_tokens": 5, "n_ctx": 4096}, {"limit": 4096}),
    ({"n_prompt_tokens": 500, "n_ctx": 4096}, {}),
    ({"n_prompt_tokens": 10**30, "n_ctx": -1}, {}),
    ({"n_prompt_tokens": True, "n_ctx": "4096"}, {}),
    ({"n_ctx": None, "limit": 8192.0}, {}),
]


@pytest.mark.parametrize(("fields", "expected"), FIELDS)
def test_numbers_in_fields_count(fields: dict[str, object], expected: dict[str, int]) -> None:
    assert context_numbers("the request exceeds the available context size", [{}, fields]) == expected


@pytest.mark.parametrize(
    "text",
    [
        "maximum context length is 8192 tokens, but you sent 500 tokens",
        "prompt is too long: 100 tokens > 200000 maximum",
        "context length is 99999999999999999999 tokens",
        f"maximum context length is {'9' * 5000} tokens",
        "context length is 3 tokens",
        "the prompt is 30000 characters long, the limit is 20000 characters",
    ],
)
def test_numbers_that_make_no_sense_are_dropped(text: str) -> None:
    assert context_numbers(text) == {}


def test_a_number_in_a_field_and_one_in_the_text_are_put_together() -> None:
    assert context_numbers("your prompt has 9000 tokens", [{"n_ctx": 8192}]) == {"tokens": 9000, "limit": 8192}
