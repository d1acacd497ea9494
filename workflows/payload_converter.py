"""The payload converter, which uses pydantic to write values to history as JSON without default values.

History storage has a cost per byte, and most fields in a payload have their default value. When a value is read, an
omitted field receives the default of its type. A released default is therefore part of the format, and changing it
would change the meaning of old histories. Only a run's result is written in full.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from typing import Any, Final, Self, TypeVar

from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
    ExternalStorage,
    JSONPlainPayloadConverter,
    PayloadCodec,
    PayloadConverter,
    SerializationContext,
    StorageDriver,
    StorageDriverSelectContext,
)

from loom.domain.core.errors import BadRequest
from loom.domain.core.requests import IN_LINE, RunResult
from loom.domain.core.run_files import FilesAnswer

OUT_OF_LINE_BYTES: Final = 256 * 1024
"""The minimum size of payloads that are stored outside history, if external storage is configured."""

IN_LINE_BYTES: Final = 1536 * 1024
"""The size up to which run results and answers to queries stay in line, because clients without Loom read them.
Temporal refuses payloads of 2 MB and messages of 4 MB, and a payload that a codec has encoded is larger.
"""

_EARLIER_STATE: Final = b'"started_at"'
"""Text in each state that a release before 0.4 carried on. Decoding such a state takes several times its memory."""

T = TypeVar("T")

_UNTYPED: Final = (None, Any, object)
_LOOM: Final = "loom."

# Shared by the whole process, because the SDK creates a new converter for each workflow instance and, with external
# storage, for each activity. Building an adapter takes a thousand times as long as using one.
_adapters: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


@dataclass(frozen=True)
class Undecodable:
    """A placeholder for an external value that can't be decoded. The code that reads the value reports the reason."""

    reason: str


def adapter_of(kind: type[T]) -> TypeAdapter[T]:
    """Return the adapter that validates and serializes values of a type."""
    return _adapters(kind)


class SparseJsonConverter(EncodingPayloadConverter):
    """Converts values of Loom's types to JSON without default values, and other values to plain JSON."""

    @property
    def encoding(self) -> str:
        """The SDK's name for plain JSON, so that the Web UI and other languages can read the payload."""
        return "json/plain"

    def to_payload(self, value: Any) -> Payload:
        """Convert a value to a payload."""
        payload = Payload(metadata={"encoding": b"json/plain"}, data=_dump(value))
        is_for_clients = isinstance(value, FilesAnswer) or (isinstance(value, RunResult) and not _is_of_child())
        return marked_in_line(payload) if is_for_clients else payload

    def from_payload(self, payload: Payload, type_hint: Any = None) -> Any:
        """Convert a payload to a value of the hinted type. Without a hint, the payload is read as plain JSON."""
        if type_hint in _UNTYPED:
            return from_json(payload.data)
        value = _validated(type_hint, payload.data)
        return _with_shared_spec(value) if _is_own(type_hint) and hasattr(value, "spec") else value


def _validated(kind: Any, data: bytes) -> Any:
    if hasattr(kind, "upgraded") and _is_own(kind) and _EARLIER_STATE in data:
        # The class isn't named here, because most clients don't need to import it.
        return adapter_of(kind).validate_python(kind.upgraded(from_json(data)))
    return adapter_of(kind).validator.validate_json(data)


def _with_shared_spec(value: Any) -> Any:
    from loom.domain.agents.spec import AgentSpec, shared  # noqa: PLC0415 - slow to import, and few clients read a spec

    return replace(value, spec=shared(value.spec)) if isinstance(value.spec, AgentSpec) else value


def _is_own(kind: Any) -> bool:
    return str(getattr(kind, "__module__", "")).startswith(_LOOM)


def _encodings() -> Iterator[EncodingPayloadConverter]:
    for converter in DefaultPayloadConverter.default_encoding_payload_converters:
        yield SparseJsonConverter() if isinstance(converter, JSONPlainPayloadConverter) else converter


_ENCODINGS: Final = {encoding.encoding.encode(): encoding for encoding in _encodings()}
"""Shared, because the SDK makes a dozen payload converters in each turn."""


class SparsePayloadConverter(CompositePayloadConverter):
    """Uses the SDK's encodings for null, bytes, and protobuf, and Loom's JSON for everything else."""

    def __init__(self) -> None:
        """Use the SDK's encodings in their original order, with Loom's JSON instead of the SDK's."""
        self.converters = _ENCODINGS

    def with_context(self, context: SerializationContext) -> Self:
        """Return the same converter, because none of Loom's encodings depends on the context."""
        return self if self.converters is _ENCODINGS else super().with_context(context)

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """Convert payloads to values.

        An untyped value that can't be decoded becomes a placeholder, because an error would block the workflow.
        """
        return [
            self._read(payload, type_hints[number] if type_hints else None) for number, payload in enumerate(payloads)
        ]

    def _read(self, payload: Payload, hint: type | None) -> Any:
        try:
            (value,) = super().from_payloads([payload], None if hint is None else [hint])
        except Exception as error:
            if hint not in _UNTYPED:
                raise
            return Undecodable(reason=str(error))
        return value


def in_line(converter: PayloadConverter, value: Any) -> Payload:
    """Return the payload of a value that clients without Loom read."""
    return marked_in_line(converter.to_payload(value))


def marked_in_line(payload: Payload) -> Payload:
    """Mark a payload to stay in line up to `IN_LINE_BYTES`. A small one needs no mark, and would only grow."""
    if payload.ByteSize() >= OUT_OF_LINE_BYTES // 2:  # a codec may still enlarge it
        payload.metadata[IN_LINE] = b"true"
    return payload


def _is_of_child() -> bool:
    """Whether a sub-agent writes the value, which its parent's history then contains, too."""
    return workflow.in_workflow() and workflow.info().parent is not None


def data_converter(
    storage: StorageDriver | None = None, codec: PayloadCodec | None = None, *, encrypts: bool = False
) -> DataConverter:
    """Return the data converter for workers and clients. With `storage`, large payloads are kept out of history. If the
    codec encrypts, it also gets the messages and stack traces of failures.
    """
    return converter_for(DataConverter.default, storage, codec, encrypts=encrypts)


def converter_for(
    given: DataConverter,
    storage: StorageDriver | None = None,
    codec: PayloadCodec | None = None,
    *,
    encrypts: bool = False,
) -> DataConverter:
    """Return a client's data converter with Loom's JSON encoding. A codec and an external storage that it has don't
    change.

    Raises BadRequest if the client has a custom payload converter, which can't preserve Loom's values.
    """
    kind = given.payload_converter_class
    if not issubclass(kind, SparsePayloadConverter):
        if kind not in (DefaultPayloadConverter, PydanticPayloadConverter):
            raise BadRequest(
                f"the client's payload converter, {kind.__qualname__}, does not support Loom's values: use the SDK's"
                " default converter or the one in temporalio.contrib.pydantic; you can keep the codec",
                field="data_converter",
            )
        given = replace(given, payload_converter_class=SparsePayloadConverter)
    if codec is not None and given.payload_codec is None:
        given = replace(given, payload_codec=codec)
        if encrypts and given.failure_converter_class is DefaultFailureConverter:
            given = replace(given, failure_converter_class=DefaultFailureConverterWithEncodedAttributes)
    if storage is None or given.external_storage is not None:
        return given

    def driver_for(_: StorageDriverSelectContext, payload: Payload) -> StorageDriver | None:
        stays = IN_LINE in payload.metadata and payload.ByteSize() <= IN_LINE_BYTES
        return None if stays else storage

    stores = ExternalStorage(drivers=[storage], driver_selector=driver_for, payload_size_threshold=OUT_OF_LINE_BYTES)
    return replace(given, external_storage=stores)


def _dump(value: Any) -> bytes:
    kind = type(value)
    try:
        if is_dataclass(kind) or issubclass(kind, BaseModel):
            return adapter_of(kind).serializer.to_json(value, **_left_out(value))
        return to_json(value)
    except PydanticSerializationError:
        return _dump_broken_text(value)


def _left_out(value: Any) -> dict[str, Any]:
    """Return the fields to omit from a value.

    Callers without Loom's types also read results, so a result omits only empty fields of sub-agents and of retries.
    """
    if isinstance(value, RunResult):
        return {"exclude": {name for name in ("children", "own", "retries", "workspace") if not getattr(value, name)}}
    # Types from other workflows on the same worker are written in full, because readers may not know their defaults.
    return {"exclude_defaults": True} if _is_own(type(value)) else {}


def _dump_broken_text(value: Any) -> bytes:
    # A text from outside may contain half a surrogate pair, which UTF-8 can't encode. It must not end the run.
    typed = is_dataclass(value) or isinstance(value, BaseModel)
    plain = adapter_of(type(value)).dump_python(value, **_left_out(value)) if typed else value
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"), default=to_jsonable_python)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
