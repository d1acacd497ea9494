"""Recorded model traffic: recorded once against a real provider, and replayed over HTTP in every later test.

    cassette = Cassette(Path("cassettes/refund.json"), record_from=os.environ.get("RECORD_FROM"))
    async with loom_worker(cassette, app=app, model="openai:gpt-5.2") as (loom, _):
        ...

With `record_from="https://api.openai.com"`, requests go to that address, with your key, and the file is written when
the block ends. Without it, the same requests get the recorded answers and nothing leaves this machine.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import httpx2

from loom.activities.adapters.redaction.mask import SecretMask
from loom.testing.model_replies import Json, Reply, SeenRequest, status
from loom.testing.model_server import ModelServer

VERSION: Final = 1
WORKSPACE: Final = "{workspace}"
"""Stands in the file for the test's own workspace, which differs from test to test."""
DIFFERS_BY_RUN: Final = ("metadata", "prompt_cache_key", "safety_identifier", "user")
"""Fields of a request that name the run or its user."""
UPSTREAM_SECONDS: Final = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """A request and its answer, without secrets."""

    path: str
    request: Json
    status: int
    content_type: str
    answer: str


class Cassette(ModelServer):
    """A model server that records what a provider answers, or replays what it has recorded.

    Known secrets of the request's headers, and all that looks like a secret, are removed from the file. Headers are
    never written. A request that isn't in the file gets status 418 with the first place where it differs.
    """

    def __init__(self, file: Path, *, record_from: str | None = None) -> None:
        """Raises ValueError if the file is missing, or isn't a cassette, and `record_from` isn't set."""
        super().__init__(self._replayed)
        self.workspace: Path | None = None
        self._file = file
        self._upstream = record_from.rstrip("/") if record_from else None
        self._exchanges = [] if record_from else _read(file)
        self._left = list(self._exchanges)

    async def reply_to(self, request: SeenRequest) -> Reply:
        """See base class."""
        return self._replayed(request) if self._upstream is None else await self._recorded(request, self._upstream)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the file if this was a recording that didn't fail."""
        await super().__aexit__(kind, error, trace)
        if self._upstream is not None and error is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(json.dumps(_written(self._exchanges), indent=1, ensure_ascii=False) + "\n")

    def _replayed(self, request: SeenRequest) -> Reply:
        asked = self._comparable(request, SecretMask())
        found = next((each for each in self._left if (each.path, each.request) == (request.path, asked)), None)
        if found is None:
            found = next((each for each in self._exchanges if (each.path, each.request) == (request.path, asked)), None)
        else:
            self._left.remove(found)
        if found is None:
            return status(418, message=f"{self._file} has no answer: {self._difference(request.path, asked)}")
        answer = found.answer.replace(WORKSPACE, str(self.workspace))
        return Reply(status=found.status, headers={"content-type": found.content_type}, raw=answer.encode())

    async def _recorded(self, request: SeenRequest, upstream: str) -> Reply:
        sent = {name: value for name, value in request.headers.items() if name not in _OF_THE_CONNECTION}
        async with httpx2.AsyncClient(timeout=UPSTREAM_SECONDS) as client:
            answer = await client.post(upstream + request.path, json=request.body, headers=sent)
        mask = SecretMask(value.removeprefix("Bearer ") for name, value in sent.items() if name in _CREDENTIALS)
        content_type = answer.headers.get("content-type", "application/json")
        self._exchanges.append(
            Exchange(
                path=request.path,
                request=self._comparable(request, mask),
                status=answer.status_code,
                content_type=content_type,
                answer=self._anywhere(mask.redact(answer.text)),
            )
        )
        return Reply(status=answer.status_code, headers={"content-type": content_type}, raw=answer.content)

    def _comparable(self, request: SeenRequest, mask: SecretMask) -> Json:
        kept = {name: value for name, value in request.body.items() if name not in DIFFERS_BY_RUN}
        body: Json = json.loads(self._anywhere(json.dumps(mask.redact_json(kept))))
        return body

    def _anywhere(self, text: str) -> str:
        return text if self.workspace is None else text.replace(str(self.workspace), WORKSPACE)

    def _difference(self, path: str, asked: Json) -> str:
        if not self._left:
            return f"all of its {len(self._exchanges)} answers are used"
        expected = self._left[0]
        if expected.path != path:
            return f"the request is to {path}, the next recorded one to {expected.path}"
        return next(_differences(expected.request, asked, "request"))


_OF_THE_CONNECTION: Final = {"accept-encoding", "connection", "content-length", "host", "transfer-encoding"}
_CREDENTIALS: Final = {"authorization", "x-api-key", "api-key"}


def _differences(recorded: Any, asked: Any, place: str) -> Iterator[str]:
    match recorded, asked:
        case dict(before), dict(now):
            for name in sorted({*before, *now}):
                yield from _differences(before.get(name), now.get(name), f"{place}.{name}")
        case list(old), list(new) if len(old) == len(new):
            for index, (one, other) in enumerate(zip(old, new, strict=True)):
                yield from _differences(one, other, f"{place}[{index}]")
        case _ if recorded != asked:
            yield f"{place} was {_short(recorded)} when it was recorded, and is {_short(asked)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _read(file: Path) -> list[Exchange]:
    if not file.exists():
        raise ValueError(f"{file} doesn't exist: record it once with `record_from`, the address of a provider")
    try:
        content = json.loads(file.read_text())
        if content["version"] != VERSION:
            raise ValueError(f"{file} has version {content['version']} instead of {VERSION}: record it again")
        return [Exchange(**each) for each in content["exchanges"]]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} isn't a cassette: {error!r}. Record it again") from error


def _written(exchanges: list[Exchange]) -> Json:
    return {"version": VERSION, "exchanges": [asdict(each) for each in exchanges]}
