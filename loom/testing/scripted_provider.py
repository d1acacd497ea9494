"""The scripted model within the worker's own process, without HTTP."""

from collections.abc import Sequence

from loom.activities.ports import ModelAnswer, ModelCall, OnDelta
from loom.domain.core.errors import LLMConfigurationError
from loom.domain.core.messages import Message, ToolCall, Usage
from loom.testing.model_replies import Reply


class ScriptedProvider:
    """A provider with scripted replies: `app.register_provider("scripted", ScriptedProvider([text("Hello.")]))`.

    It gives one reply for each turn of a conversation, in every run. A run uses it with the model `scripted:any-name`.
    It knows texts and tool calls. For HTTP errors, broken streams and malformed answers, use `ModelServer`.
    """

    def __init__(self, replies: Sequence[Reply]) -> None:
        self._replies = tuple(replies)
        self.seen: list[ModelCall] = []
        """All requests to the model, in order."""

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """Return the reply for this turn. Raises LLMConfigurationError if the script has ended."""
        self.seen.append(call)
        turn = sum(message.role == "assistant" for message in call.messages)
        if turn >= len(self._replies):
            raise LLMConfigurationError(f"the script has {len(self._replies)} replies, and this is turn {turn + 1}")
        reply = self._replies[turn]
        on_delta(reply.text)
        calls = tuple(
            ToolCall(id=use.id or f"call_{turn}_{index}", name=use.name, arguments=dict(use.arguments))
            for index, use in enumerate(reply.calls)
            if not isinstance(use.arguments, str)
        )
        prompt, completion, cached = reply.usage or (0, 0, 0)
        return ModelAnswer(
            message=Message(role="assistant", content=reply.text, tool_calls=calls),
            stop="tools" if calls else "end",
            usage=Usage(input_tokens=prompt, output_tokens=completion, cached_tokens=cached, model_calls=1),
            model="scripted",
        )
