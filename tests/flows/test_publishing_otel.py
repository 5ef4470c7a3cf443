"""``publish: otel``: a run as a trace, sent by OpenTelemetry's exporter to a collector on loopback."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tasks.publishers.otel import OTel
from tasks.publishers.publisher import FinishedRun, number_name
from tests.flows.test_publishing import written
from tests.loopback import answering

Evaluate = Callable[..., Any]
ERROR = 2  # opentelemetry.proto.trace.v1.Status


@dataclass
class Collector:
    """What came in, and whether it is taken."""

    address: str = ""
    status: int = 200
    paths: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def spans(self) -> dict[str, Any]:
        """Each span by its id; all of one trace and of one service."""
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        every = [resource for request in requests for resource in request.resource_spans]
        for resource in every:
            assert attributes(resource.resource)["service.name"] == "nightjar"
        spans = [span for resource in every for scope in resource.scope_spans for span in scope.spans]
        assert len({span.trace_id for span in spans}) <= 1
        return {span.span_id.hex(): span for span in spans}


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.paths.append(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if collector.status == 200:
                collector.bodies.append(body)
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.address = f"http://127.0.0.1:{server.server_port}"
    with answering(server):
        yield collector


def attributes(holder: Any) -> dict[str, Any]:
    return {entry.key: _value(entry.value) for entry in holder.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [_value(one) for one in found.values] if kind == "array_value" else found


def judged(folder: Path, publish: Any) -> Path:
    """A benchmark that a model answers and a judge grades, both the embedded model."""
    items = [
        {"id": str(n), "question": f"Question: {n} + 1?\nAnswer:", "answer": str(n + 1)} for n in range(3)
    ]
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    config = {
        "name": "judged",
        "dataset": "items.jsonl",
        "prompt_template": "{{question}}",
        "target": "{{answer}}",
        "sample_params": {"temperature": 0, "max_tokens": 16, "stop": ["Question:"]},
        "models": [{"name": "demo", "type": "demo"}],
        "scorer": {
            "type": "llm_judge",
            "judges": [{"name": "grader", "type": "demo"}],
            "prompt": (
                "Compare the response with the reference.\nReference: {{ reference }}\n"
                'Response: {{ response }}\nReply with either "correct" or "incorrect".\nGrade:'
            ),
            "parse": {"type": "choice", "choices": {"correct": 1, "incorrect": 0}},
        },
        "publish": publish,
    }
    (folder / "judged.yaml").write_text(yaml.safe_dump(config))
    return folder / "judged.yaml"


def test_a_run_is_a_trace_of_its_requests_and_its_judges(evaluate: Evaluate, tmp_path: Path) -> None:
    with collecting() as collector:
        ran = evaluate(judged(tmp_path, [{"otel": {"endpoint": collector.address}}]), "--json")
        assert ran.code == 0, ran.err
        run, spans = FinishedRun(Path(ran.document["output"])), collector.spans()
    assert set(collector.paths) == {"/v1/traces"}
    (root,) = (span for span in spans.values() if not span.parent_span_id)
    assert root.name == "evaluate judged"
    assert attributes(root)["nightjar.run_id"] == run.run_id
    told = [attributes(event) for event in root.events if event.name == "gen_ai.evaluation.result"]
    for row, event in zip(run.numbers("demo"), told, strict=True):
        assert event["gen_ai.evaluation.name"] == "/".join(number_name(row))
        assert event["gen_ai.evaluation.score.value"] == row["value"]
        assert (event["nightjar.ci_low"], event["nightjar.ci_high"]) == (row["ci_low"], row["ci_high"])
    requests = [span for span in spans.values() if span.parent_span_id == root.span_id]
    assert sorted(span.name for span in requests) == ["chat demo"] * 3 + ["chat grader"] * 3
    answers = [json.loads(line) for line in (run.folder / "responses.jsonl").read_text().splitlines()]
    for answer in answers:
        (span,) = (
            span
            for span in requests
            if span.name == "chat demo" and attributes(span)["nightjar.item_id"] == answer["item_id"]
        )
        found = attributes(span)
        assert found["gen_ai.operation.name"] == "chat"
        assert found["gen_ai.request.model"] == found["gen_ai.response.model"] == "demo"
        assert found["gen_ai.usage.input_tokens"] == answer["prompt_tokens"]
        assert found["gen_ai.usage.output_tokens"] == answer["completion_tokens"]
        assert (found["gen_ai.request.temperature"], found["gen_ai.request.max_tokens"]) == (0, 16)
        assert found["gen_ai.request.stop_sequences"] == ["Question:"]
        assert (found["nightjar.role"], found["nightjar.reused"]) == ("model", False)
        taken = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        assert taken == pytest.approx(answer["inference_time"], abs=1e-6)
        assert span.end_time_unix_nano == pytest.approx(answer["timestamp_unix"] * 1e9, rel=1e-12)
    assert {attributes(span)["nightjar.role"] for span in requests if span.name == "chat grader"} == {"judge"}
    assert not any("messages" in name for span in requests for name in attributes(span))
    (place,) = run.manifest["published"]["otel"]["places"]
    assert place == f"{collector.address}/v1/traces trace {root.trace_id.hex()}, 7 spans"


def test_a_model_that_is_also_the_judge_is_told_with_the_sampling_of_each_part(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    with collecting() as collector:
        config = judged(tmp_path, [{"otel": {"endpoint": collector.address}}])
        ran = evaluate(config, "--set", 'scorer.judges=["demo"]', "--set", "sample_params.seed=1")
        assert ran.code == 0, ran.err
        requests = [attributes(span) for span in collector.spans().values() if span.parent_span_id]
    of_judge = [found for found in requests if found["nightjar.role"] == "judge"]
    of_model = [found for found in requests if found["nightjar.role"] == "model"]
    assert len(of_judge) == len(of_model) == 3
    assert {found["gen_ai.request.seed"] for found in of_model} == {1}
    sampled = {"gen_ai.request.seed", "gen_ai.request.max_tokens", "gen_ai.request.stop_sequences"}
    assert not any(sampled & set(found) for found in of_judge)


def test_samples_are_sent_where_they_are_asked_for_and_a_second_time_gives_the_same_spans(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    ran = evaluate(judged(tmp_path, []), "--json")
    assert ran.code == 0, ran.err
    run = FinishedRun(Path(ran.document["output"]))
    with collecting() as collector:
        publisher = OTel(endpoint=collector.address, samples=True)
        publisher.send(run)
        first = collector.spans()
        publisher.send(run)
        assert collector.spans() == first
    answers = {
        row["item_id"]: row
        for row in map(json.loads, (run.folder / "responses.jsonl").read_text().splitlines())
    }
    for span in first.values():
        if span.name == "chat demo":
            found = attributes(span)
            answer = answers[found["nightjar.item_id"]]
            (asked,) = json.loads(found["gen_ai.input.messages"])
            (said,) = json.loads(found["gen_ai.output.messages"])
            assert asked == {"role": "user", "parts": [{"type": "text", "content": answer["prompt"]}]}
            assert said["role"] == "assistant"
            assert said["parts"] == [{"type": "text", "content": answer["response"]}]


def test_answers_that_the_run_found_keep_their_time_and_recorded_ones_have_no_span(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    config = judged(tmp_path, [])
    assert evaluate(config).code == 0
    with collecting() as collector:
        again = evaluate(config, "--set", f'publish=[{{"otel": {{"endpoint": "{collector.address}"}}}}]')
        assert again.code == 0, again.err
        requests = [span for span in collector.spans().values() if span.parent_span_id]
        assert [attributes(span)["nightjar.reused"] for span in requests] == [True] * 6
        collector.bodies.clear()
        (tmp_path / "replayed").mkdir()
        replayed = evaluate(written(tmp_path / "replayed", [{"otel": {"endpoint": collector.address}}]))
        assert replayed.code == 0, replayed.err
        (root,) = collector.spans().values()
        assert len(root.events) == 18


def published(ran: Any) -> Any:
    return json.loads((Path(ran.document["output"]) / "manifest.json").read_text())["published"]


@pytest.mark.parametrize(
    ("endpoint", "told"),
    [("http://h:4318", "http://h:4318/v1/traces"), ("http://h:4318/", "http://h:4318/v1/traces"),
     ("https://h/otlp/v1/traces", "https://h/otlp/v1/traces")],
)  # fmt: skip
def test_the_path_of_otlp_is_added_to_an_address_without_one(endpoint: str, told: str) -> None:
    assert OTel(endpoint=endpoint)._address() == told
