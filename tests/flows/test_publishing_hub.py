"""``publish: hub``: evaluation results in a model's repository, written by the hub's own client to a stand-in
on loopback that speaks what the client asks."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import huggingface_hub
import pytest
import requests
import yaml

from metrics.errors import ConfigError
from tasks.publishers.hub import Hub, hub_file, patience
from tasks.publishers.publisher import FinishedRun
from tests.flows.test_publishing import written

Evaluate = Callable[..., Any]
FILE = hub_file("sums & more")
COMMIT = "0" * 40


@dataclass
class Repository:
    private: bool = True
    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {}})
    requests: list[str] = field(default_factory=list)
    """Titles of pull requests; the first is number 1."""
    commits: int = 0

    def results(self, branch: str = "main") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = yaml.safe_load(self.branches[branch][FILE])
        return found


@dataclass
class Standin:
    """Its address, its repositories, the tokens that came, and whether it is away."""

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    tokens: set[str | None] = field(default_factory=set)
    away: bool = False

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Status and document for a request."""
        if self.away:
            return 503, {"error": "away"}
        parts = urlsplit(path)
        query = parse_qs(parts.query)
        if (method, parts.path) == ("POST", "/api/repos/create"):
            return self._create(json.loads(body))
        matched = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/([a-z]+)(?:/(.+))?)?", parts.path)
        assert matched is not None, path
        name, what, revision = matched[1], matched[2], unquote(matched[3] or "")
        if name not in self.repositories:
            return 404, {"error": "Repository not found"}
        repository = self.repositories[name]
        if what in (None, "revision"):
            return 200, {"id": name, "private": repository.private, "sha": COMMIT}
        if what == "discussions":
            return 200, {"count": len(repository.requests), "start": 0, "discussions": [
                {"title": title, "num": place, "author": {"name": "me"}, "status": "open",
                 "createdAt": "2026-01-01T00:00:00.000Z", "repo": {"name": name, "type": "model"},
                 "isPullRequest": True}
                for place, title in enumerate(repository.requests, 1)
            ]}  # fmt: skip
        files = repository.branches[revision]
        if what == "preupload":
            return 200, {"files": [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False,
                 "oid": git_oid(files[one["path"]]) if one["path"] in files else None}
                for one in json.loads(body)["files"]
            ]}  # fmt: skip
        assert what == "commit"
        return self._commit(name, repository, revision, [json.loads(line) for line in body.splitlines()],
                            opens="create_pr" in query)  # fmt: skip

    def _create(self, given: dict[str, Any]) -> tuple[int, Any]:
        name = f"{given['organization']}/{given['name']}"
        private = given.get("private", given.get("visibility") == "private")
        self.repositories[name] = Repository(private=private)
        return 200, {"url": f"{self.address}/{name}"}

    def _commit(
        self, name: str, repository: Repository, revision: str, lines: list[Any], opens: bool
    ) -> tuple[int, Any]:
        (header,) = (line["value"] for line in lines if line["key"] == "header")
        files = {line["value"]["path"]: base64.b64decode(line["value"]["content"])
                 for line in lines if line["key"] == "file"}  # fmt: skip
        repository.commits += 1
        said = {"commitUrl": f"{self.address}/{name}/commit/{COMMIT}", "commitOid": COMMIT}
        if opens:
            repository.requests.append(header["summary"])
            number = len(repository.requests)
            repository.branches[f"refs/pr/{number}"] = repository.branches[revision] | files
            return 200, said | {"pullRequestUrl": f"{self.address}/{name}/discussions/{number}"}
        repository.branches[revision] |= files
        return 200, said


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def standing_in() -> Iterator[Standin]:
    standin = Standin()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            standin.tokens.add(self.headers["Authorization"])
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            status, document = standin.answer(self.command, self.path, body)
            said = json.dumps(document).encode()
            self.send_response(status)
            if status == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    standin.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield standin
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    monkeypatch.setenv("OUR_TOKEN", "hf_of_ours")
    with standing_in() as standin:
        yield standin


REPOSITORIES = {"org/one": "lab/one", "two": "lab/two"}


def entry(hub: Standin, **keys: Any) -> dict[str, Any]:
    given = {"repo": REPOSITORIES, "dataset": "lab/sums", "metric": "exact_match"}
    return given | {"endpoint": hub.address, "token_env": "OUR_TOKEN"} | keys


def test_each_model_has_its_results_in_a_private_repository(
    evaluate: Evaluate, tmp_path: Path, hub: Standin
) -> None:
    from huggingface_hub import parse_eval_result_entries

    keys = entry(hub, task="hard", revision="abc", source="https://example.org/run")
    ran = evaluate(written(tmp_path, [{"hub": keys}]), "--json")
    assert ran.code == 0, ran.err
    run = FinishedRun(Path(ran.document["output"]))
    assert sorted(hub.repositories) == ["lab/one", "lab/two"]
    for model, name in REPOSITORIES.items():
        repository = hub.repositories[name]
        assert repository.private
        (row,) = (
            row for row in run.numbers(model) if row["metric"] == "exact_match" and row["facets"] == "{}"
        )
        (found,) = parse_eval_result_entries(repository.results())
        assert (found.dataset_id, found.task_id, found.dataset_revision) == ("lab/sums", "hard", "abc")
        assert found.value == row["value"]
        assert found.date is not None
        assert datetime.fromisoformat(found.date).timestamp() == int(run.manifest["started"])
        assert (found.source_url, found.source_name) == ("https://example.org/run", "Nightjar")
        assert found.notes is not None
        assert f"interval {row['ci_low']:.4g} to {row['ci_high']:.4g}" in found.notes
        assert run.run_id in found.notes
    assert hub.tokens == {"Bearer hf_of_ours"}
    assert not [
        path for path in run.folder.iterdir() if path.is_file() and b"hf_of_ours" in path.read_bytes()
    ]


def test_what_is_sent_twice_is_one_commit_and_a_newer_number_takes_its_place(
    evaluate: Evaluate, tmp_path: Path, hub: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = evaluate(written(tmp_path, []), "--json")
    run, publisher = FinishedRun(Path(ran.document["output"])), Hub.model_validate(entry(hub, metric=None))
    publisher.send(run)
    publisher.send(run)
    two = hub.repositories["lab/two"]
    assert two.commits == 1
    before = two.results()
    assert len(before) == 3  # a number for each metric, and none for a topic
    assert {one["notes"].partition(",")[0] for one in before} == {
        "exact_match/none", "bleu/none", "ter/none"
    }  # fmt: skip
    lower = [dict(row, value=row["value"] / 2) for row in run.results]
    monkeypatch.setattr(FinishedRun, "results", lower)
    publisher.send(FinishedRun(run.folder))
    assert [one["value"] for one in two.results()] == [one["value"] / 2 for one in before]
    assert list(two.branches["main"]) == [FILE]


def test_benchmarks_have_files_of_their_own_whatever_they_are_called() -> None:
    names = ["数学", "语文", "a b", "a_b", "...", "sums-2.0"]
    files = [hub_file(name) for name in names]
    assert len(set(files)) == len(names)
    assert [file for name, file in zip(names, files, strict=True) if name in file] == [
        ".eval_results/nightjar_a_b.yaml",
        ".eval_results/nightjar_sums-2.0.yaml",
    ]


def test_a_client_that_asks_by_requests_waits_as_long_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions of the hub's client before 1.0, of which transformers before 5 needs one."""
    asked = list[dict[str, Any]]()
    session = requests.Session()
    monkeypatch.setattr(session, "request", lambda *_, **given: asked.append(given))
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: session)
    before = session.request
    with patience(2.5):
        session.get("http://127.0.0.1:9")
        session.get("http://127.0.0.1:9", timeout=10)
        session.get("http://127.0.0.1:9", timeout=None)
    assert [given["timeout"] for given in asked] == [2.5, 10, 2.5]
    assert session.request is before


def test_a_pull_request_is_opened_once(evaluate: Evaluate, tmp_path: Path, hub: Standin) -> None:
    hub.repositories["others/two"] = Repository(private=False)
    ran = evaluate(written(tmp_path, []), "--json")
    run = FinishedRun(Path(ran.document["output"]))
    publisher = Hub.model_validate(entry(hub, repo={"two": "others/two"}, create_pr=True, private=False))
    assert list(publisher.send(run)) == [f"{hub.address}/others/two/discussions/1"]
    publisher.send(run)
    two = hub.repositories["others/two"]
    assert (len(two.requests), two.commits) == (1, 1)
    assert run.run_id in two.requests[0]
    assert two.branches["main"] == {}
    assert two.results("refs/pr/1")[0]["dataset"]["id"] == "lab/sums"
    assert list(hub.repositories) == ["others/two"]


def test_a_public_repository_is_refused_unless_it_is_said(
    evaluate: Evaluate, tmp_path: Path, hub: Standin
) -> None:
    hub.repositories |= {name: Repository(private=False) for name in REPOSITORIES.values()}
    ran = evaluate(written(tmp_path, [{"hub": entry(hub)}]), "--json")
    assert ran.code == 0, ran.err
    assert "is public; say private: false" in ran.document["message"]
    assert not any(one.commits for one in hub.repositories.values())
    run = FinishedRun(Path(ran.document["output"]))
    Hub.model_validate(entry(hub, private=False)).send(run)
    assert [one.commits for one in hub.repositories.values()] == [1, 1]
    Hub.model_validate(entry(hub, private=False, repo={"two": "lab/new"})).send(run)
    assert not hub.repositories["lab/new"].private


def test_a_hub_that_is_away_and_a_metric_that_is_not_there_cost_the_step_only(
    evaluate: Evaluate, tmp_path: Path, hub: Standin
) -> None:
    ran = evaluate(written(tmp_path, [{"hub": entry(hub, endpoint="http://127.0.0.1:9")}]), "--json")
    assert ran.code == 0, ran.err
    assert "not published to hub" in ran.document["message"]
    run = FinishedRun(Path(ran.document["output"]))
    with pytest.raises(
        ConfigError, match=r"no number of metric 'f1'.* there are: bleu/none, exact_match/none"
    ):
        Hub.model_validate(entry(hub, metric="f1")).send(run)
    assert not hub.repositories


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"repo": "lab/one"}, "expected a repository for each of 2 models"),
        ({"repo": {"tow": "lab/two"}}, "did you mean 'two'"),
        ({"token_env": "NOT_SET_TOKEN"}, "the environment variable NOT_SET_TOKEN (token_env) is not set"),
        ({"endpoint": "http://me:secret@127.0.0.1"}, "without a password"),
    ],
)
def test_what_does_not_fit_is_told_before_anything_is_asked(
    evaluate: Evaluate, tmp_path: Path, hub: Standin, keys: dict[str, Any], told: str
) -> None:
    ran = evaluate(written(tmp_path, [{"hub": entry(hub) | keys}]))
    assert ran.code == 2
    assert told in ran.err
