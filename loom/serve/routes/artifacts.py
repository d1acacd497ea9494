"""The outputs, shared texts and files that runs have stored."""

from typing import Annotated
from urllib.parse import quote, unquote

from fastapi import APIRouter, Path, Response
from pydantic import AfterValidator, BaseModel

from loom.run_artifacts import Artifact
from loom.serve.access.roles import Operation
from loom.serve.http_input import LONGEST_ID, RunId
from loom.serve.routes.caller import Runs, needs

router = APIRouter(prefix="/v1/runs/{run_id}/artifacts", tags=["artifacts"])


class Artifacts(BaseModel):
    """A run's artifacts, oldest first."""

    artifacts: list[Artifact]


@router.get("", openapi_extra=needs(Operation.READ_RUNS))
async def list_artifacts(runs: Runs, run_id: RunId) -> Artifacts:
    """List the outputs, shared texts and files that the run has stored."""
    return Artifacts(artifacts=list(await runs.artifacts(run_id)))


@router.get(
    "/{artifact_id}",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}, "application/octet-stream": {}}}},
    openapi_extra=needs(Operation.READ_RUNS),
)
async def read_artifact(
    runs: Runs,
    run_id: RunId,
    artifact_id: Annotated[str, Path(max_length=LONGEST_ID * 3), AfterValidator(unquote)],
) -> Response:
    """Return an artifact in full, to download as plain text or as bytes: a browser never shows it as a page."""
    content = await runs.artifact_bytes(run_id, artifact_id)
    try:
        content.decode()
    except UnicodeDecodeError:
        media_type, ending = "application/octet-stream", ""
    else:
        media_type, ending = "text/plain; charset=utf-8", ".txt"
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(artifact_id, safe='')}{ending}"}
    return Response(content, media_type=media_type, headers=headers)
