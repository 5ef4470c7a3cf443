"""OpenTelemetry's own SDK and exporter: descriptions of spans become spans of one trace, and are sent.

Only this module imports OpenTelemetry; it needs the extra ``otel``.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

from tasks.publishers.publisher import identifier
from tasks.publishers.spans import SpanFacts

AT_ONCE: Final = 200
"""Spans that one request takes to the collector."""


class _Ids(IdGenerator):  # type: ignore[misc]  # its types are not looked into
    """Ids that follow from what is sent."""

    def __init__(self, run_id: str) -> None:
        self.run_id, self.mark = run_id, ""

    def generate_trace_id(self) -> int:
        return identifier(self.run_id).int

    def generate_span_id(self) -> int:
        return identifier(self.run_id, self.mark).int >> 64


def send_spans(
    address: str, run_id: str, version: str, root: SpanFacts, children: Iterable[SpanFacts]
) -> tuple[int, int]:
    """Sends a span and those below it; returns the trace's id and their number. Raises ConnectionError where
    the collector does not take them."""
    ids, ended, sent = _Ids(run_id), InMemorySpanExporter(), 0
    provider = _provider(ids, version)
    provider.add_span_processor(SimpleSpanProcessor(ended))
    tracer, exporter = provider.get_tracer("nightjar", version), OTLPSpanExporter(endpoint=address)

    def flush(least: int) -> int:
        spans = ended.get_finished_spans()
        if len(spans) < least:
            return 0
        if exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise ConnectionError(f"the collector at {address} did not take the spans; the log says why")
        ended.clear()
        return len(spans)

    try:
        ids.mark = root.mark
        top = _started(tracer, root, None)
        for child in children:
            ids.mark = child.mark
            _end(_started(tracer, child, set_span_in_context(top)), child)
            sent += flush(AT_ONCE)
        _end(top, root)
        return ids.generate_trace_id(), sent + flush(1)
    finally:
        exporter.shutdown()
        provider.shutdown()


def _provider(ids: IdGenerator, version: str) -> TracerProvider:
    """A pipeline of its own, which leaves nothing out whatever the environment says of sampling."""
    limits = SpanLimits(
        max_events=SpanLimits.UNSET,
        max_span_attributes=SpanLimits.UNSET,
        max_event_attributes=SpanLimits.UNSET,
    )
    return TracerProvider(
        sampler=ALWAYS_ON,
        resource=Resource.create({"service.name": "nightjar", "service.version": version}),
        shutdown_on_exit=False,
        id_generator=ids,
        span_limits=limits,
    )


def _started(tracer: Any, facts: SpanFacts, context: Any) -> Any:
    kind = SpanKind.CLIENT if facts.client else SpanKind.INTERNAL
    return tracer.start_span(
        facts.name,
        context=context,
        kind=kind,
        attributes=_attributes(facts.attributes),
        start_time=_nanoseconds(facts.start),
    )


def _end(span: Any, facts: SpanFacts) -> None:
    for event in facts.events:
        span.add_event(event["name"], _attributes(event["attributes"]), _nanoseconds(facts.end))
    if facts.error is not None:
        span.set_status(Status(StatusCode.ERROR, facts.error or None))
    span.end(_nanoseconds(facts.end))


def _attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is not known; what OpenTelemetry has no type for is JSON text."""
    return {name: _plain(value) for name, value in given.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Sequence) and all(isinstance(one, str) for one in value):
        return list(value)
    return json.dumps(value, ensure_ascii=False, default=str)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
