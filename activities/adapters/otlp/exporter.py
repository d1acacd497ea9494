"""Export spans over OTLP (HTTP and protobuf). The exporter also follows OpenTelemetry's own environment variables, for
example for headers and certificates.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from loom.activities.traces import ExportFailed
from loom.domain.history.spans import ERROR_TYPE, Span

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
SCOPE: Final = "loom"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class OtlpExporter:
    """A `SpanExporter` for an OTLP receiver."""

    def __init__(self, endpoint: str, *, version: str) -> None:
        """Raises ImportError if the packages for it aren't installed."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - 0.3 s, and optional
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

        self._exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
        self._resource = Resource.create({"service.name": "loom", "service.version": version})
        self._scope = InstrumentationScope(SCOPE, version)

    async def export(self, spans: Sequence[Span]) -> None:
        """See the port."""
        from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415

        made = [self._read_only(span) for span in spans]
        if await asyncio.to_thread(self._exporter.export, made) is not SpanExportResult.SUCCESS:
            raise ExportFailed(f"the receiver at {ENDPOINT} did not accept {len(made)} spans")

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _read_only(self, span: Span) -> Any:
        from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415
        from opentelemetry.trace import SpanKind, Status, StatusCode  # noqa: PLC0415

        return ReadableSpan(
            name=span.name,
            context=_context(span.trace_id, span.span_id),
            parent=None if span.parent_id is None else _context(span.trace_id, span.parent_id),
            resource=self._resource,
            attributes={**span.attributes, **({ERROR_TYPE: span.error} if span.error else {})},
            kind=SpanKind.CLIENT if span.kind == "client" else SpanKind.INTERNAL,
            instrumentation_scope=self._scope,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=_nanoseconds(span.begun),
            end_time=_nanoseconds(span.ended),
        )


def _context(trace: str, span: str) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415

    return SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(at: datetime) -> int:
    return ((at - _EPOCH) // timedelta(microseconds=1)) * 1000
