"""Endpoints that refuse a field which most take: the first refusal is noticed, and then it is not sent."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tasks.models.config import ModelConfig, SampleParams
from tasks.models.connection import probe
from tasks.models.errors import BadRequest
from tasks.models.providers.openai.fields import fitted, refused_field
from tests.loopback import answering

Body = dict[str, Any]
OPENAI = "Unsupported parameter: '{}' is not supported with this model."
VALUE = "Unsupported value: '{}' does not support 0 with this model. Only the default (1) value is supported."
FORBIDDEN = [{"type": "extra_forbidden", "loc": ["body", "{}"], "msg": "Extra inputs are not permitted"}]


class Picky:
    """An endpoint that refuses a body with one of its fields, in some words, and notes what it was asked."""

    def __init__(self, refusals: dict[str, Any], text: str) -> None:
        self.refusals, self.text = refusals, text
        self.answered: list[Body] = []
        self.refused: list[Body] = []

    def answer(self, body: Body) -> tuple[int, Body]:
        for name, words in self.refusals.items():
            if name in body:
                self.refused.append(body)
                said = json.loads(json.dumps(words).replace("{}", name))
                error = {"message": said} if isinstance(said, str) else None
                return (400, {"error": error}) if error else (422, {"detail": said})
        self.answered.append(body)
        choice = {"index": 0, "finish_reason": "stop"}
        said = {"text": self.text} if "prompt" in body else {"message": {"content": self.text}}
        return 200, {"model": body["model"], "choices": [{**choice, **said}]}


@pytest.fixture
def picky() -> Iterator[Callable[..., tuple[Picky, str]]]:
    with ExitStack() as stack:

        def start(refusals: dict[str, Any], text: str = "one two three") -> tuple[Picky, str]:
            endpoint, lock = Picky(refusals, text), threading.Lock()

            class Handler(BaseHTTPRequestHandler):
                protocol_version = "HTTP/1.1"

                def do_POST(self) -> None:
                    body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                    with lock:
                        status, document = endpoint.answer(body)
                    self.reply(status, document)

                def do_GET(self) -> None:
                    self.reply(200, {"object": "list", "data": [{"id": "m"}]})

                def reply(self, status: int, document: Body) -> None:
                    content = json.dumps(document).encode()
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)

                def log_message(self, *_: Any) -> None:
                    """Quiet."""

            server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            stack.enter_context(answering(server))
            return endpoint, f"http://127.0.0.1:{server.server_address[1]}/v1"

        yield start


def model(base_url: str, **config: Any) -> ModelConfig:
    settings = {"base_url": base_url, "model": "m", "max_concurrency": 1, "max_retries": 0, **config}
    return ModelConfig(name="m", config=settings)


ASKED = {"max_tokens": 9, "temperature": 0.0, "seed": 3, "stop": (" three",)}
REFUSALS: dict[str, dict[str, Any]] = {
    "max_tokens": {"max_tokens": OPENAI + " Use 'max_completion_tokens' instead."},
    "temperature": {"temperature": VALUE},
    "stop": {"stop": OPENAI},
    "seed": {"seed": FORBIDDEN},
    "all": {"max_tokens": OPENAI, "temperature": VALUE, "stop": OPENAI, "seed": "Unknown parameter: {}."},
    "every length": {"max_tokens": OPENAI, "max_completion_tokens": OPENAI},
}


@pytest.mark.parametrize("settings", [{}, {"client": "openai"}, {"api": "completions"}], ids=str)
@pytest.mark.parametrize("case", REFUSALS)
def test_a_refused_field_is_noticed_once_and_asked_without(bench, problems, picky, case, settings):
    endpoint, base_url = picky(REFUSALS[case])
    outcome = bench.ask(model(base_url, **settings), problems(6), sampling=ASKED)
    assert outcome.column("status") == ["ok"] * 6
    refused = REFUSALS[case]
    assert len(endpoint.refused) == len(refused), "each field is refused once"
    assert len(endpoint.answered) == 6
    for body in endpoint.answered:
        assert not body.keys() & refused.keys()
        assert {name for name in ASKED if name in body} == ASKED.keys() - refused.keys()
        if "max_tokens" in refused and case != "every length":
            assert body["max_completion_tokens"] == 9
    texts = {"one two"} if "stop" in refused else {"one two three"}
    assert set(outcome.column("response")) == texts, "a stop that is not taken cuts the answer here"


def test_requests_in_flight_when_the_first_is_refused_are_answered_too(bench, problems, picky):
    _, base_url = picky(REFUSALS["all"])
    outcome = bench.ask(model(base_url, max_concurrency=16), problems(40), sampling=ASKED)
    assert outcome.column("status") == ["ok"] * 40
    assert set(outcome.column("response")) == {"one two"}


def test_kept_answers_keep_their_keys_and_their_cut(bench, problems, picky):
    _, base_url = picky(REFUSALS["all"])
    bench.ask(model(base_url), problems(3), sampling=ASKED)
    again = bench.ask(model(base_url), problems(3), sampling=ASKED)
    assert (again.tally.sent, set(again.column("response"))) == (0, {"one two"})


@pytest.mark.parametrize(
    "words",
    [
        "Invalid 'stop': array too long. Expected an array with maximum length 4, unsupported.",
        "max_tokens must be at least 16 and is not supported below; at most 4 stop",
        "the prompt holds a word that is not allowed",
        "temperature must be between 0 and 2",
    ],
)
def test_a_refusal_of_something_else_stays_one(bench, problems, picky, words):
    endpoint, base_url = picky({"messages": words})
    outcome = bench.ask(model(base_url), problems(2), sampling=ASKED)
    assert outcome.column("status") == ["infra_error"] * 2
    assert words in outcome.rows[0]["error"]
    assert all(body.keys() >= ASKED.keys() for body in endpoint.refused), "nothing was left out"


def test_the_check_before_a_run_says_what_is_refused(picky, monkeypatch):
    monkeypatch.setenv("PICKY_KEY", "a-key-of-tests")
    endpoint, base_url = picky(REFUSALS["all"])
    asked = model(base_url, api_key_env="PICKY_KEY").model_copy(
        update={"sample_params": SampleParams(**ASKED)}
    )
    said = str(probe(asked).warning)
    assert "does not take max_tokens: max_completion_tokens is sent instead" in said
    for name in ("temperature", "stop", "seed"):
        assert f"{name}: it is left out" in said
    (body,) = endpoint.answered
    assert body["max_completion_tokens"] == 1, "one token is asked for"


def test_an_endpoint_without_a_key_is_asked_nothing_before_a_run(picky):
    endpoint, base_url = picky(REFUSALS["all"])
    asked = model(base_url).model_copy(update={"sample_params": SampleParams(**ASKED)})
    assert probe(asked).warning is None
    assert endpoint.answered == endpoint.refused == []


def test_the_field_that_is_named_first_is_the_refused_one():
    body = {"seed": 1, "temperature": 0, "max_completion_tokens": 4}
    said = "HTTP 400: Unknown parameter 'seed'; known are temperature and max_completion_tokens"
    assert refused_field(BadRequest(said), body) == "seed"
    assert refused_field(BadRequest(said), {"model": "m"}) is None
    assert fitted(body, {"max_completion_tokens"}) == {"seed": 1, "temperature": 0, "max_tokens": 4}
    assert fitted(body, {"max_completion_tokens", "max_tokens"}) == {"seed": 1, "temperature": 0}
