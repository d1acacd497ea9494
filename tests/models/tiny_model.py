"""Write a tiny model with random weights for llama.cpp: `python tiny_model.py FILE`. Needs the package `gguf`.

It knows the printable characters of ASCII and nothing else, so its text is noise, but valid text. Each character is a
token.
"""

import sys
from pathlib import Path

import gguf
import numpy as np

WINDOW = 2048
"""The context window, in tokens."""
_WIDTH, _INNER, _HEADS, _LAYERS = 64, 128, 4, 2
_CHARACTERS = [chr(code) for code in range(32, 127)]
_TEMPLATE = r"""\
{%- if tools %}Tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
For each call, return <tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>
{% endif %}
{%- for message in messages %}
{{- message.role }}: {{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}assistant: {% endif %}"""
"""In the form of Qwen's template, from which the server learns how the model calls tools."""


def write(path: Path) -> None:
    """Write the model's file."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, *[gguf.TokenType.BYTE] * 256]
    silent = len(tokens)
    tokens += [char.replace(" ", "▁") for char in _CHARACTERS]
    kinds += [gguf.TokenType.NORMAL] * len(_CHARACTERS)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(WINDOW)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(value=False)
    writer.add_chat_template(_TEMPLATE)
    random = np.random.default_rng(1)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32))

    add("token_embd.weight", len(tokens), _WIDTH)
    output = random.standard_normal((len(tokens), _WIDTH)).astype(np.float32)
    output[:silent] = 0  # among 95 random scores one is always above 0, so a byte is never the likeliest token
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", np.ones(_WIDTH, dtype=np.float32))
    for layer in range(_LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}.weight", _WIDTH, _WIDTH)
        add(f"blk.{layer}.ffn_gate.weight", _INNER, _WIDTH)
        add(f"blk.{layer}.ffn_up.weight", _INNER, _WIDTH)
        add(f"blk.{layer}.ffn_down.weight", _WIDTH, _INNER)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(_WIDTH, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
