"""The payload converter: values enter history as JSON through pydantic, without fields that have their default.

History is paid for by the byte, and most fields of most payloads have their default. A field that is left out gets the
default of its type when it is read, so a default, once released, is part of the format: changing it changes the meaning
of old histories. Only the result of a run is written whole.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
    ExternalStorage,
    JSONPlainPayloadConverter,
    StorageDriver,
)

from loom.domain.core.errors import BadRequest
from loom.domain.core.requests import RunResult
from loom.domain.run.carried_state import upgraded
from loom.domain.run.state import RunState

OUT_OF_LINE_BYTES: Final = 256 * 1024
"""Payloads of this size and more are stored outside history when a storage is configured."""

_UNTYPED: Final = (None, Any, object)
_LOOM: Final = "loom."

# For the whole process, since the SDK makes a new converter for each workflow instance and, with external storage, for
# each activity; building an adapter takes a thousand times longer than using it.
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


@dataclass(frozen=True)
class Undecodable:
    """Stands for a value from outside that cannot be decoded; the code that reads it reports the reason."""

    reason: str


class SparseJsonConverter(EncodingPayloadConverter):
    """JSON by the value's own type, defaults left out; values without a type of ours as plain JSON."""

    @property
    def encoding(self) -> str:
        """The SDK's name for plain JSON, so that the Web UI and other languages read it."""
        return "json/plain"

    def to_payload(self, value: Any) -> Payload:
        """Write a value."""
        return Payload(metadata={"encoding": b"json/plain"}, data=_dump(value))

    def from_payload(self, payload: Payload, type_hint: Any = None) -> Any:
        """Read a value of the hinted type; without a hint as plain JSON."""
        if type_hint in _UNTYPED:
            return from_json(payload.data)
        if type_hint is RunState:
            return _adapter(RunState).validate_python(upgraded(from_json(payload.data)))
        return _adapter(type_hint).validator.validate_json(payload.data)


class SparsePayloadConverter(CompositePayloadConverter):
    """The SDK's encodings for nothing, bytes and protobuf, and ours for everything else."""

    def __init__(self) -> None:
        """Take the SDK's encodings in their order, with ours in the place of its JSON."""
        super().__init__(
            *(
                SparseJsonConverter() if isinstance(converter, JSONPlainPayloadConverter) else converter
                for converter in DefaultPayloadConverter.default_encoding_payload_converters
            )
        )

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """Read values; one without a type that cannot be read is marked instead of failing the task for ever."""
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


def data_converter(storage: StorageDriver | None = None) -> DataConverter:
    """The converter that workers and clients share; with `storage`, large payloads stay out of history."""
    return converter_for(DataConverter.default, storage)


def converter_for(given: DataConverter, storage: StorageDriver | None = None) -> DataConverter:
    """A client's converter with Loom's JSON in the place of the SDK's; its codec and its storage stay.

    Raises BadRequest when the client has a payload converter of its own: Loom's values would not survive it.
    """
    kind = given.payload_converter_class
    if not issubclass(kind, SparsePayloadConverter):
        if kind not in (DefaultPayloadConverter, PydanticPayloadConverter):
            raise BadRequest(
                f"the client's payload converter, {kind.__qualname__}, cannot carry Loom's values: give Loom a client"
                " with the SDK's default converter or with temporalio.contrib.pydantic's; its codec may stay",
                field="data_converter",
            )
        given = replace(given, payload_converter_class=SparsePayloadConverter)
    if storage is None or given.external_storage is not None:
        return given
    return replace(given, external_storage=ExternalStorage(drivers=[storage], payload_size_threshold=OUT_OF_LINE_BYTES))


def _dump(value: Any) -> bytes:
    kind = type(value)
    try:
        if is_dataclass(kind) or issubclass(kind, BaseModel):
            return _adapter(kind).serializer.to_json(value, **_left_out(value))
        return to_json(value)
    except PydanticSerializationError:
        return _dump_broken_text(value)


def _left_out(value: Any) -> dict[str, Any]:
    """What is not written of a value; of a result, which callers without our types read, only sub-agents it has not."""
    if isinstance(value, RunResult):
        return {"exclude": {name for name in ("children", "own") if not getattr(value, name)}}
    # Types of other workflows on the same worker are written whole: their readers may not know the defaults.
    return {"exclude_defaults": True} if type(value).__module__.startswith(_LOOM) else {}


def _dump_broken_text(value: Any) -> bytes:
    # A model can write half of a surrogate pair, which UTF-8 cannot say. Refusing it would end the run for a character.
    typed = is_dataclass(value) or isinstance(value, BaseModel)
    plain = (
        _adapter(type(value)).dump_python(value, **_left_out(value), mode="json")
        if typed
        else to_jsonable_python(value)
    )
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
