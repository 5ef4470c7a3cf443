"""OpenTelemetry: a run as a trace, sent to a collector by OTLP over HTTP.

Ids of trace and spans follow from the run's id: a second time sends the same spans.
"""

from collections.abc import Iterable, Sequence
from urllib.parse import unquote, urlsplit

from pydantic import Field

from tasks.publishers.publisher import SAMPLES, FinishedRun, Server, WebAddress
from tasks.publishers.spans import RunSpans


class OTel(Server):
    """A collector that takes OTLP over HTTP. Headers and certificates come from the environment, by the
    variables ``OTEL_EXPORTER_OTLP_…``."""

    extra = "otel"
    client = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http", "requests")
    key_variables = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")

    endpoint: WebAddress = Field(description="Address of the collector, such as http://localhost:4318")
    samples: bool = Field(False, description=SAMPLES)

    def destination(self, run: FinishedRun) -> str:
        """The collector's address."""
        return self._address()

    def secrets(self) -> Iterable[str]:
        """The values of the headers."""
        pairs = [pair for headers in super().secrets() for pair in headers.split(",")]
        return [unquote(pair.partition("=")[2].strip()) for pair in pairs]

    def send(self, run: FinishedRun) -> Sequence[str]:
        """Sends the run's spans; says under which trace they are found. Raises ConnectionError where the
        collector does not take them."""
        from tasks.publishers.otlp import CheckedExporter, send_spans

        given, address = RunSpans(run, self.samples), self._address()
        version = str(run.manifest["versions"]["nightjar"])
        exporter = CheckedExporter(address, self.timeout)
        trace, spans = send_spans(exporter, run.run_id, version, given.root, given.children())
        return [f"{address} trace {trace:032x}, {spans} spans"]

    def _address(self) -> str:
        """Where traces are taken: the path that OTLP has for them, unless the address has one."""
        alone = not urlsplit(self.endpoint).path.strip("/")
        return f"{self.endpoint.rstrip('/')}/v1/traces" if alone else self.endpoint
