"""An app with a source of models of its own, which needs nothing of Loom's classes but the answer's."""

from collections.abc import Callable

from loom import LoomApp, Message, ModelAnswer, ModelCall, Usage


class Echo:
    """Says again what it hears."""

    async def answer(self, call: ModelCall, on_delta: Callable[[str], None]) -> ModelAnswer:
        """The last message, by a model of this name."""
        said = f"{call.model}: {call.messages[-1].text}"
        on_delta(said)
        usage = Usage(input_tokens=3, output_tokens=4, model_calls=1)
        return ModelAnswer(message=Message(role="assistant", content=said), stop="end", usage=usage)


app = LoomApp()
app.register_provider("echo", Echo())
