"""Load the agent spec and the conversation whose digests a request contains."""

from typing import TypeAlias

from loom.activities.ports import TranscriptStore
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import Transcript
from loom.domain.run.activity_payloads import CompressRequest, EvaluateRequest, ModelRequest

ConversationRequest: TypeAlias = ModelRequest | CompressRequest | EvaluateRequest


async def load_conversation(
    transcripts: TranscriptStore, request: ConversationRequest
) -> tuple[AgentSpec, Transcript] | None:
    """Return the spec and the transcript, or None if either is missing on this worker.

    If the result is None, the activity asks the workflow to send both in full. A spec that was sent in full is stored
    for later calls.
    """
    spec = request.spec or await transcripts.load_spec(request.spec_digest)
    transcript = await transcripts.load(request.origin.run_id, request.tail)
    if spec is None or transcript is None:
        return None
    if request.spec is not None:
        await transcripts.save_spec(spec)
    return spec, transcript
