"""The files in the workspaces of runs."""

from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import quote, unquote

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel

from loom.domain.core.errors import BadRequest
from loom.domain.core.run_files import LONGEST_PATH, FileEntry
from loom.serve.access.roles import Operation
from loom.serve.http_input import RunId
from loom.serve.routes.caller import Runs, needs

router = APIRouter(prefix="/v1/runs/{run_id}/files", tags=["files"])


def _decoded(
    request: Request,
    path: Annotated[str, Path(description="The path, relative to the workspace.", max_length=LONGEST_PATH * 3)],
) -> str:
    """Return the path of a URL. Raises BadRequest if it isn't UTF-8."""
    try:
        unquote(request.scope.get("raw_path", b"").decode("ascii", "replace"), errors="strict")
    except UnicodeDecodeError:
        raise BadRequest(
            r"path: isn't UTF-8. Write each byte of a name that isn't UTF-8 as `\xNN`, encoded as `%5CxNN`",
            field="path",
        ) from None
    return unquote(path)


FilePath = Annotated[str, Depends(_decoded)]


class Files(BaseModel):
    """A folder of a run's workspace."""

    entries: list[FileEntry]
    left_out: int
    """How many more entries there are."""
    note: str
    """What you have to know about the run's files, or an empty string."""


class Written(BaseModel):
    """A file that was written."""

    path: str
    bytes: int
    is_new: bool
    note: str
    """What you have to know about the run's files, and why this one isn't stored with the change, if it isn't."""


@router.get("", openapi_extra=needs(Operation.READ_FILES))
async def list_files(
    runs: Runs, run_id: RunId, path: Annotated[str, Query(max_length=LONGEST_PATH, description="A folder.")] = "."
) -> Files:
    """List a folder in the run's workspace."""
    found = await runs.list_files(run_id, path)
    return Files(entries=list(found.entries), left_out=found.left_out, note=found.note)


@router.get(
    "/{path:path}",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}, "application/gzip": {}}}},
    openapi_extra=needs(Operation.READ_FILES),
)
async def read_file(runs: Runs, run_id: RunId, path: FilePath) -> Response:
    """Return a file to download, or a folder as a .tar.gz archive."""
    found = await runs.read_file(run_id, path)
    name = PurePosixPath(path).name
    if found.is_archive:
        name = f"{run_id if name in ('', '..') else name}.tar.gz"  # `.` is the workspace
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    media_type = "application/gzip" if found.is_archive else "application/octet-stream"
    return Response(found.data, media_type=media_type, headers=headers)


@router.put(
    "/{path:path}",
    openapi_extra={
        **needs(Operation.WRITE_FILES),
        "requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}},
    },
)
async def write_file(runs: Runs, run_id: RunId, path: FilePath, request: Request) -> Written:
    """Create or replace a file with the bytes of the request's body. The folders above it are created."""
    written = await runs.write_file(run_id, path, await request.body())
    return Written(path=written.path, bytes=written.bytes, is_new=written.is_new, note=written.note)
