"""OpenTelemetry's own SDK and exporter: descriptions of spans become spans of one trace, and are sent.

Only this module imports OpenTelemetry; it needs the extra ``otel``.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
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
SHOWN: Final = 200
"""Characters of a refusal's text."""


class _Ids(IdGenerator):  # type: ignore[misc]  # its types are not looked into
    """Ids that follow from what is sent."""

    def __init__(self, run_id: str) -> None:
        self.run_id, self.mark = run_id, ""

    def generate_trace_id(self) -> int:
        return identifier(self.run_id).int

    def generate_span_id(self) -> int:
        return identifier(self.run_id, self.mark).int >> 64


class CheckedExporter:
    """An exporter that says why spans were not taken. Its own takes any page for a collector's answer, and
    tells the log alone what went wrong."""

    def __init__(self, address: str, timeout: float) -> None:
        self._address, self._said = address, ""
        session = requests.Session()
        session.hooks["response"].append(self._read)
        self._exporter = OTLPSpanExporter(endpoint=address, timeout=timeout, session=session)
        self._timeout = timeout

    def export(self, spans: Sequence[Any]) -> None:
        """Sends spans; raises ConnectionError where the collector does not take them."""
        self._said = f"no answer within {self._timeout:g} seconds; the log says why"
        taken = self._exporter.export(spans) is SpanExportResult.SUCCESS
        if self._said or not taken:
            raise ConnectionError(f"the collector at {self._address} did not take the spans: {self._said}")

    def shutdown(self) -> None:
        """Closes its connections."""
        self._exporter.shutdown()

    def _read(self, response: requests.Response, *_: Any, **__: Any) -> None:
        kind = response.headers.get("Content-Type", "")
        self._said = ""
        if response.status_code // 100 != 2:  # its own takes a redirection, and follows none
            self._said = f"HTTP {response.status_code} {response.reason} {response.text[:SHOWN]}"
        elif "html" in kind:
            self._said = "it answered with a web page, which is none of a collector"
        elif "protobuf" in kind:
            partial = ExportTraceServiceResponse.FromString(response.content).partial_success
            if partial.rejected_spans:
                self._said = f"it rejected {partial.rejected_spans} of them: {partial.error_message}"


def send_spans(
    exporter: CheckedExporter, run_id: str, version: str, root: SpanFacts, children: Iterable[SpanFacts]
) -> tuple[int, int]:
    """Sends a span and those below it; returns the trace's id and their number. Raises ConnectionError where
    the collector does not take them."""
    ids, ended, sent = _Ids(run_id), InMemorySpanExporter(), 0
    provider = _provider(ids, version)
    provider.add_span_processor(SimpleSpanProcessor(ended))
    tracer = provider.get_tracer("nightjar", version)

    def flush(least: int) -> int:
        spans = ended.get_finished_spans()
        if len(spans) < least:
            return 0
        exporter.export(spans)
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
