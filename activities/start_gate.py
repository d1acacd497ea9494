"""Decide whether the owner of the worker's key started a run, and sign requests with that key."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadConverter

from loom.activities.ports import StoreUnavailable, UsedStarts
from loom.activities.signatures import header_of, is_signed
from loom.domain.core.errors import BadRequest, UnreachableError
from loom.domain.core.schedules import schedule_of
from loom.domain.core.signatures import (
    RequestKind,
    Signature,
    SignedStart,
    Statement,
    digest_of_arguments,
    fingerprint_of,
    is_near,
    microseconds,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

STARTS_REMEMBERED: Final = 10_000
"""The number of accepted starts that a worker remembers. It refuses a start that it remembers."""


class SigningKey:
    """A private key."""

    def __init__(self, private: "Ed25519PrivateKey") -> None:
        self._private = private
        self.public = private.public_key().public_bytes_raw().hex()
        """The public key in hexadecimal digits."""

    def header(self, statement: Statement, at: datetime) -> Mapping[str, Payload]:
        """Return the header that signs this statement."""
        moment = microseconds(at)
        signature = Signature(at=moment, value=self._private.sign(statement.signed_at(moment)).hex())
        return header_of(signature)


class StartGate:
    """Decides whether the owner of the worker's key started a run, and whether other runs may start."""

    def __init__(self, key: SigningKey | None, *, requires_signature: bool, starts: UsedStarts | None = None) -> None:
        """`starts` records which starts have been used, for all workers. Without it, each worker remembers its own."""
        self._key = key
        self.requires_signature = requires_signature
        self._starts = starts
        self._used: dict[str, str] = {}  # the execution that each accepted start belongs to

    def steering_key(self, *, widened: bool) -> str:
        """Return the public key that verifies requests to a run, or an empty string if they need no signature.

        They need one if only a signature made the run possible (`widened`). Without it, anybody could steer a run that
        only the owner may start.
        """
        return self._key.public if self._key and (self.requires_signature or widened) else ""

    def is_signed_by_owner(self, start: SignedStart | None) -> bool:
        """Whether the start has a valid signature. Raises BadRequest if it has none but needs one."""
        if start is not None and self._is_valid(start):
            return True
        if self.requires_signature:
            found = "no signature" if start is None else "a signature that isn't valid for it"
            raise BadRequest(
                f"this worker accepts only signed runs (LOOM_REQUIRE_SIGNED), and this run has {found}: start it with"
                " `loom` or LoomClient and the worker's key (LOOM_HOME or LOOM_SIGNING_KEY)",
                field="LOOM_REQUIRE_SIGNED",
            )
        return False

    async def use(self, start: SignedStart, execution: str) -> None:
        """Let a valid start count for this execution alone, which is ready to begin its work.

        The id of the execution is the server's. A reset to a point before the run was prepared has another one. Raises
        BadRequest if the start has begun another execution, and UnreachableError if the store doesn't respond.
        """
        if self._starts is None:
            return
        run_id = start.statement.run_id
        name = fingerprint_of(start.statement, start.signature.at)
        if schedule_of(run_id) is not None:  # a schedule's one signature holds for all of its runs
            name = f"{name}-{start.execution}"
        try:
            used_by = await self._starts.use(name, run_id, execution)
        except StoreUnavailable as error:
            raise UnreachableError(f"Loom's database doesn't say whether run {run_id!r} has begun: {error}") from error
        if used_by != execution:
            raise BadRequest(
                f"the signature of this start has already begun run {run_id!r} once, and holds for that alone; the run"
                " was reset, or somebody has repeated its start. Start it again with `loom run` or LoomClient",
                field="signature",
            )

    def _is_valid(self, start: SignedStart) -> bool:
        if self._key is None:
            return False
        if not self._is_start(start, self._key.public) and not self._is_scheduled(start, self._key.public):
            return False
        fingerprint = fingerprint_of(start.statement, start.signature.at)  # of the run, also if a schedule was signed
        if self._used.setdefault(fingerprint, start.execution) != start.execution:
            return False
        if len(self._used) > STARTS_REMEMBERED:
            del self._used[next(iter(self._used))]
        return True

    def _is_start(self, start: SignedStart, public: str) -> bool:
        is_recent = is_near(start.signature.at, start.began_at)
        return is_recent and is_signed(start.statement, start.signature, public)

    def _is_scheduled(self, start: SignedStart, public: str) -> bool:
        """Whether a signed schedule has started the run. Its one signature holds for all of its runs, at any time."""
        if (schedule := schedule_of(start.statement.run_id)) is None:
            return False
        return is_signed(replace(start.statement, kind="schedule", run_id=schedule), start.signature, public)


def statement_of(
    kind: RequestKind, name: str, run_id: str, arguments: Sequence[Any], converter: PayloadConverter
) -> Statement:
    """Return the statement for a request. It covers the arguments as the receiver will read them."""
    received = converter.from_payloads(converter.to_payloads(arguments))
    return Statement(kind=kind, name=name, run_id=run_id, arguments=digest_of_arguments(received))


KeySource = Callable[[], SigningKey | None]
"""Returns the key of this process, or None while there is none."""
