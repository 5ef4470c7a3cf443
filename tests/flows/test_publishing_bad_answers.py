"""Every destination of ``publish:`` under bad answers: its step alone fails, says what to do and no key, and
the next time has everything there once."""

import base64
import errno
import gzip
import json
import os
import re
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_args
from urllib.parse import parse_qs, urlsplit

import jsonschema
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tasks.publish import publish_to
from tasks.publishers.config import PublishConfig
from tasks.publishers.publisher import FinishedRun, PublishError, Server, identifier, named_numbers
from tasks.store import home as files
from tests.flows.test_publishing import SCHEMA, written
from tests.flows.test_publishing_hub import REPOSITORIES, Standin
from tests.loopback import answering

Evaluate = Callable[..., Any]
KEY = "0123456789" * 4
MODELS = ("org/one", "two")
HELD = threading.Event()
"""Set at the end: requests that hang are let go."""


@dataclass(frozen=True)
class Request:
    """What came."""

    method: str
    path: str
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body or b"{}")

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}


@dataclass(frozen=True)
class Reply:
    """An answer of JSON, or of another kind."""

    status: int = 200
    document: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None

    def sent(self) -> bytes:
        return self.content if self.content is not None else json.dumps(self.document).encode()


def refusal(status: int, **headers: str) -> Callable[[str], Reply]:
    """A refusal that repeats the key it was sent, as some servers do."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda asked_with: Reply(status, {"error": f"refused {asked_with} {KEY}"}, names)


def page(_: str) -> Reply:
    return Reply(content=b"<html>Please log in</html>", headers={"Content-Type": "text/html"})


BAD: dict[str, Callable[[str], Reply] | None] = {
    "401": refusal(401),
    "413": refusal(413),
    "429": refusal(429, Retry_After="3600"),
    "403": refusal(403),
    "500": refusal(500),
    "page": page,
    "login": refusal(302, Location="/login"),
    "cut": None,
    "hangs": None,
}


class Destination(ABC):
    """A stand-in for one: what its entry says of it, how it answers, and what it has of a run."""

    address = ""
    least_requests = 2
    """As many requests a run takes, at least."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bad: str | None = None
        """Which bad answer it gives."""
        self.good_before = 0
        """Requests that it still answers as it should."""
        self.requests: list[Request] = []
        self.authorizations: set[str] = set()

    def config(self, **keys: Any) -> PublishConfig:
        """Its entry of ``publish:``, with more keys."""
        (name,) = (name for name, kind in STANDINS.items() if kind is type(self))
        return PublishConfig.model_validate({name: {**self.entry(), **keys}})

    @contextmanager
    def away(self, output: Path) -> Iterator[None]:
        """A block in which a run of this output folder can't publish."""
        yield

    @abstractmethod
    def entry(self) -> dict[str, Any]:
        """Its keys in a config."""

    @abstractmethod
    def answer(self, request: Request) -> Reply:
        """Its answer where nothing is wrong."""

    @abstractmethod
    def records(self, run: FinishedRun) -> list[str]:
        """The model of each record of this run, checked to hold its numbers."""


class OfHub(Destination):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.standin = Standin()

    def entry(self) -> dict[str, Any]:
        return {"repo": REPOSITORIES, "dataset": "lab/sums", "endpoint": self.address, "token_env": "OUR_KEY"}

    def answer(self, request: Request) -> Reply:
        self.standin.address = self.address
        status, document = self.standin.answer(request.method, request.path, request.body)
        return Reply(status, document, {"X-Error-Code": "RepoNotFound"} if status == 404 else {})

    def records(self, run: FinishedRun) -> list[str]:
        models = {name: model for model, name in REPOSITORIES.items()}
        found = []
        for name, repository in self.standin.repositories.items():
            told = [one for one in repository.branches["main"].values() if run.run_id.encode() in one]
            assert len(told) <= 1
            found += [models[name]] * repository.commits if told else []
        return found


class OfOTel(Destination):
    least_requests = 1

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.spans: dict[bytes, Any] = {}

    def entry(self) -> dict[str, Any]:
        return {"endpoint": self.address}

    def answer(self, request: Request) -> Reply:
        for resource in ExportTraceServiceRequest.FromString(request.body).resource_spans:
            for scope in resource.scope_spans:
                self.spans |= {span.span_id: span for span in scope.spans}
        kind = {"Content-Type": "application/x-protobuf"}
        return Reply(content=ExportTraceServiceResponse().SerializeToString(), headers=kind)

    def records(self, run: FinishedRun) -> list[str]:
        found = []
        for span in self.spans.values():
            told = {entry.key: entry.value for entry in span.attributes}
            if told["nightjar.run_id"].string_value == run.run_id:
                assert span.trace_id == identifier(run.run_id).bytes
                models = [one.string_value for one in told["nightjar.models"].array_value.values]
                assert len(span.events) == sum(len(run.numbers(model)) for model in models)
                found += models
        return found


class OfMLflow(Destination):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.experiments: list[str] = []
        self.runs: dict[str, dict[str, Any]] = {}

    def entry(self) -> dict[str, Any]:
        return {"tracking_uri": self.address}

    def answer(self, request: Request) -> Reply:
        what = urlsplit(request.path).path.removeprefix("/api/2.0/mlflow/")
        given = request.document if request.method == "POST" else request.query
        if what == "experiments/get-by-name":
            name = given["experiment_name"]
            if name not in self.experiments:
                return Reply(404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"})
            return Reply(document={"experiment": {"experiment_id": "1", "name": name}})
        if what == "experiments/create":
            self.experiments.append(given["name"])
            return Reply(document={"experiment_id": "1"})
        if what == "runs/search":
            (wanted,) = re.findall(r"= '(\w+)'", given["filter"])
            tags = {name: self._tags(name)["nightjar.publication"] for name in self.runs}
            return Reply(document={"runs": [self.runs[name] for name, tag in tags.items() if tag == wanted]})
        if what == "runs/create":
            name = f"{len(self.runs):032x}"
            info = {"run_id": name, "run_uuid": name, "experiment_id": "1", "status": "RUNNING",
                    "artifact_uri": (self.folder / "artifacts" / name).as_uri()}  # fmt: skip
            self.runs[name] = {"info": info, "data": {"metrics": [], "params": [], "tags": given["tags"]}}
            return Reply(document={"run": self.runs[name]})
        found = self.runs[given["run_id"]]
        if what == "runs/log-batch":
            for kind in ("metrics", "params"):
                found["data"][kind] += given.get(kind, [])
        elif what == "runs/update":
            found["info"]["status"] = given["status"]
        else:
            assert what == "runs/get", what
        return Reply(document={"run": found})

    def _tags(self, name: str) -> dict[str, str]:
        return {one["key"]: one["value"] for one in self.runs[name]["data"]["tags"]}

    def records(self, run: FinishedRun) -> list[str]:
        models = []
        for name, one in self.runs.items():
            tags = self._tags(name)
            if tags["nightjar.run_id"] == run.run_id and one["info"]["status"] == "FINISHED":
                models.append(tags["nightjar.model"])
                sent = [metric["key"] for metric in one["data"]["metrics"]]
                assert len(set(sent)) == len(sent) == 5 * len(run.numbers(models[-1]))
        return models


class OfWandB(Destination):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.runs: dict[str, dict[str, Any]] = {}

    def entry(self) -> dict[str, Any]:
        keys = {"project": "nights", "mode": "online", "base_url": self.address}
        return keys | {"api_key_env": "OUR_KEY"}

    def answer(self, request: Request) -> Reply:
        if matched := re.fullmatch(r"/files/lab/nights/(\w+)/file_stream", request.path):
            lines = request.document.get("files", {}).get("wandb-summary.json", {}).get("content", ())
            for line in lines:
                self.runs[matched[1]] = json.loads(line)
            return Reply(document={})
        if request.method == "PUT":
            return Reply(document={})
        asked, given = request.document["query"], request.document["variables"]
        project = {"id": "1", "name": "nights", "entity": {"id": "1", "name": "lab"}}
        if "RunResumeStatus" in asked:
            return Reply(document={"data": {"model": {**project, "bucket": None}}})
        if "UpsertBucket" in asked:
            name, new = given["name"], given["name"] not in self.runs
            self.runs.setdefault(name, {})
            bucket = {"id": name, "name": name, "displayName": name, "config": "{}", "historyLineCount": 0}
            told = {"bucket": {**bucket, "project": project}, "inserted": new}
            return Reply(document={"data": {"upsertBucket": told}})
        assert "CreateRunFiles" in asked, asked
        to = [{"name": name, "uploadUrl": f"{self.address}/upload/{name}"} for name in given["files"]]
        made = {"runID": given["run"], "uploadHeaders": [], "files": to}
        return Reply(document={"data": {"createRunFiles": made}})

    def records(self, run: FinishedRun) -> list[str]:
        found = []
        for model in MODELS:
            numbers = named_numbers(run.numbers(model), "/".join)
            summary = self.runs.get(identifier(run.run_id, model).hex, {})
            if {key: summary.get(key) for key in numbers} == numbers:
                found.append(model)
        assert len(self.runs) <= len(MODELS)
        return found


class OfEveryEvalEver(Destination):
    """The run's own folder."""

    def entry(self) -> dict[str, Any]:
        return {}

    def config(self, **_: Any) -> PublishConfig:
        return PublishConfig.model_validate({"every_eval_ever": {}})

    def answer(self, request: Request) -> Reply:
        raise AssertionError("it asks nobody")

    @contextmanager
    def away(self, output: Path) -> Iterator[None]:
        self.address = str(output / "every_eval_ever")
        Path(self.address).write_text("in the way")
        yield
        Path(self.address).unlink()

    def records(self, run: FinishedRun) -> list[str]:
        documents = [
            json.loads(path.read_text())
            for path in sorted((run.folder / "every_eval_ever").rglob("*"))
            if path.is_file()
        ]
        for document in documents:
            jsonschema.Draft7Validator(SCHEMA).validate(document)
        mine = [one for one in documents if one["evaluation_id"].endswith(run.run_id)]
        return [one["model_info"]["name"] for one in mine]


STANDINS: dict[str, type[Destination]] = {
    "every_eval_ever": OfEveryEvalEver, "hub": OfHub, "otel": OfOTel, "mlflow": OfMLflow, "wandb": OfWandB,
}  # fmt: skip
"""What stands in for each destination: a new one is missed by the tests that go through all."""
SERVERS = [
    name
    for name, entry in PublishConfig.model_fields.items()
    if any(issubclass(kind, Server) for kind in get_args(entry.annotation))
]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    destination: Destination

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        to, request = self.destination, Request(self.command, self.path, body)
        to.requests.append(request)
        asked_with = self.headers["Authorization"] or self.headers["X-Key"] or ""
        if asked_with.startswith("Basic "):
            asked_with = base64.b64decode(asked_with.removeprefix("Basic ")).decode()
        to.authorizations.add(asked_with)
        if self.path == "/login":
            self.reply(page(""))
            return
        to.good_before -= 1
        if to.bad is None or to.good_before >= 0:
            self.reply(to.answer(request))
            return
        bad = BAD[to.bad]
        if bad is not None:
            self.reply(bad(asked_with))
            return
        if to.bad == "hangs":
            HELD.wait(60)
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        self.do_POST()

    def do_PUT(self) -> None:
        self.do_POST()

    def reply(self, reply: Reply) -> None:
        said = reply.sent()
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: Any) -> None:
        """Silent."""


@pytest.fixture
def destination(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Destination]:
    """What stands in for the destination that the test is about."""
    monkeypatch.setenv("OUR_KEY", KEY)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", KEY)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"x-key={KEY}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    standin = STANDINS[request.param](tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"destination": standin}))
    server.daemon_threads = True
    standin.address = f"http://127.0.0.1:{server.server_port}"
    HELD.clear()
    with answering(server):
        yield standin
        HELD.set()


@pytest.fixture
def run(begin: Evaluate, tmp_path: Path) -> FinishedRun:
    """A run that is published nowhere yet."""
    ran = begin("kept", written(tmp_path, []), "--json")
    assert ran.code == 0
    return FinishedRun(tmp_path / "out")


def fails(config: PublishConfig, run: FinishedRun, caplog: pytest.LogCaptureFixture) -> str:
    """Publishes, which has to fail; what it says."""
    with pytest.raises(PublishError) as caught:
        publish_to.fn(config, str(run.folder))
    said = str(caught.value)
    assert "then retry this step or run the evaluation again" in said
    assert KEY not in said + caplog.text
    assert caught.value.__context__ is None, "a traceback would tell what was left out"
    return said


@pytest.mark.parametrize("destination", SERVERS, indirect=True)
def test_a_bad_answer_is_told_and_the_next_time_all_is_there_once(
    destination: Destination, run: FinishedRun, caplog: pytest.LogCaptureFixture
) -> None:
    before = (run.folder / "results.json").read_bytes()
    impatient = destination.config(timeout=0.5)
    for bad in BAD:
        destination.bad = bad
        said = fails(impatient, run, caplog)
        assert destination.address in said, bad
        assert "check its address" in said, bad
        assert destination.records(run) == [], bad
    destination.bad = None
    publisher = destination.config().publisher
    publisher.publish(run)
    assert sorted(destination.records(run)) == sorted(MODELS)
    assert any(KEY in asked_with for asked_with in destination.authorizations)
    publisher.publish(run)
    assert sorted(destination.records(run)) == sorted(MODELS)
    assert (run.folder / "results.json").read_bytes() == before


@pytest.mark.parametrize("destination", SERVERS, indirect=True)
def test_what_says_that_it_was_published_is_there_whole_and_once(
    destination: Destination, run: FinishedRun
) -> None:
    publisher, failed = destination.config().publisher, list[str]()
    destination.bad = "403"
    for answered in range(1, 50):  # each time one request more, and it goes on with what it has
        destination.good_before = answered
        try:
            publisher.publish(run)
            break
        except PublishError as error:
            failed.append(str(error))
    assert KEY not in "".join(failed)
    assert sorted(destination.records(run)) == sorted(MODELS)
    assert len(failed) >= destination.least_requests - 1


@pytest.mark.parametrize("destination", ["hub"], indirect=True)
def test_a_client_that_would_wait_for_an_hour_is_not_waited_for(
    destination: Destination, run: FinishedRun, caplog: pytest.LogCaptureFixture
) -> None:
    destination.bad, destination.good_before = "429", 3  # where its client tries again by itself
    said = fails(destination.config(timeout=0.1), run, caplog)
    assert "it did not take the run within 1 seconds (timeout)" in said


@pytest.mark.parametrize("destination", PublishConfig.model_fields, indirect=True)
def test_a_run_is_completed_without_its_destination_and_the_next_one_publishes(
    destination: Destination,
    evaluate: Evaluate,
    tmp_path: Path,
    prefect_api: Callable[[str, str, Any], Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    destination.bad, entry = "500", destination.config(timeout=0.5).model_dump()
    (tmp_path / "out").mkdir()
    config = written(tmp_path, [entry])
    with destination.away(tmp_path / "out"):
        ran = evaluate(config, "--json")
    assert ran.code == 0, ran.err
    (name,) = entry
    asked = {"flow_runs": {"id": {"any_": [ran.document["flow_run_id"]]}}}
    (flow_run,) = prefect_api("POST", "/flow_runs/filter", asked)
    assert flow_run["state"]["type"] == "COMPLETED"
    failed = {
        getattr(record, "task_run_name", None): record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith("Finished in state Failed")
    }
    assert list(failed) == [f"publish to {name}"]
    said = failed[f"publish to {name}"]
    assert destination.address in said
    assert "retry this step or run the evaluation again" in said
    told = json.loads((tmp_path / "out" / "manifest.json").read_text())["published"][name]["error"]
    assert f"not published to {name}: {told}" in ran.document["message"]
    assert ran.document["results"]
    written_files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written_files if KEY.encode() in path.read_bytes()]
    destination.bad = None
    again = evaluate(config, "--json")
    assert again.code == 0, again.err
    assert "not published" not in again.out + again.err
    numbers = ("metric", "model_name", "facets", "value", "ci_low", "ci_high")
    assert [[row[key] for key in numbers] for row in again.document["results"]] == [
        [row[key] for key in numbers] for row in ran.document["results"]
    ]
    assert sorted(destination.records(FinishedRun(tmp_path / "out"))) == sorted(MODELS)


def full(_: Any, to: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(to))


@pytest.mark.parametrize("trouble", ["taken", "closed", "full"])
def test_a_folder_that_takes_no_documents_is_told_and_later_has_them(
    trouble: str, run: FinishedRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config, folder = PublishConfig.model_validate("every_eval_ever"), run.folder / "every_eval_ever"
    with monkeypatch.context() as patched:
        if trouble == "taken":
            folder.write_text("in the way")
        elif trouble == "closed":
            folder.symlink_to("/proc/self")  # in which nobody makes anything, not even root
        else:
            patched.setattr(files.os, "replace", full)
        said = fails(config, run, caplog)
    assert str(folder) in said
    assert "make room for a folder there that this user may write" in said
    if trouble != "full":
        folder.unlink()
    assert not [path for path in folder.rglob("*") if path.is_file()]
    config.publisher.publish(run)
    assert OfEveryEvalEver(run.folder).records(run) == list(MODELS)


def test_two_that_write_documents_at_once_leave_each_once(run: FinishedRun) -> None:
    publisher = PublishConfig.model_validate("every_eval_ever").publisher
    with ThreadPoolExecutor(4) as threads:
        places = list(threads.map(lambda _: publisher.publish(FinishedRun(run.folder)), range(16)))
    assert [sorted(one) for one in places] == [sorted(places[0])] * 16
    assert OfEveryEvalEver(run.folder).records(run) == list(MODELS)
