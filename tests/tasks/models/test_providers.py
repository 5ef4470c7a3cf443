"""A way of asking is one class: what it says of itself is all that the rest of the program knows of it."""

import json
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from metrics.errors import ConfigError
from tasks.models import providers
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.connection import probe
from tasks.models.errors import ModelError
from tasks.models.identity import RequestExpansion, model_identity
from tasks.models.providers.openai.generation import Chat
from tasks.models.registry import PROVIDERS, schemas
from tests.loopback import answering

PROVIDER = '''
"""A protocol of its own: other headers, another body, another refusal."""

from tasks.models.errors import RateLimited
from tasks.models.wire import Wire, status_error
from tasks.models.providers.provider import AddressedConfig, AskedProvider
from tasks.models.records import Answer, Call, Codec
from tasks.models.registry import provider


class LetterConfig(AddressedConfig):
    """Where letters go."""

    tone: str = "plain"


@provider("letters")
class Letters(AskedProvider[LetterConfig]):
    """Letters, one a request."""

    schema = LetterConfig

    def facts(self):
        return {"base_url": self.config.base_url, "model": self.model.served_name, "tone": self.config.tone}

    def headers(self, key):
        return {"x-letter-key": key or ""}

    def wire(self):
        def failure(status, content, headers):
            return RateLimited("the post is full", 0.0) if status == 418 else status_error(status, content, headers)

        return Wire(failure=failure)

    def codec(self, kind, sampling, media=None):
        return LetterCodec(self.model.served_name, self.config.tone)


class LetterCodec(Codec):
    def __init__(self, model, tone):
        self.model, self.tone = model, tone

    def calls(self, requests):
        (request,) = requests
        return [Call("letters", {"to": self.model, "tone": self.tone, "text": request.prompt})]

    def read(self, request, part):
        return Answer(response=part["letter"])
'''  # noqa: E501 (a file of a user's)


class Post(ThreadingHTTPServer):
    """Takes letters; keeps what it was asked, and the key that came along."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str | None, Any]] = []
        self.full = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/post"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._reply({"data": [{"id": "scribe"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._reply({"letter": f"Dear {body['text'][:3]}, {body['tone']}"}, body)

    def _reply(self, answer: Any, body: Any = None) -> None:
        post: Any = self.server
        post.asked.append((self.path, self.headers.get("x-letter-key"), body))
        post.full -= body is not None
        content = json.dumps(answer).encode()
        self.send_response(418 if body is not None and post.full >= 0 else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Silent."""


@pytest.fixture
def post() -> Iterator[Post]:
    with Post() as server, answering(server):
        yield server


@pytest.fixture
def letters(tmp_path: Path, post: Post, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModelConfig]:
    """A model whose provider is a file beside the config."""
    (tmp_path / "letters.py").write_text(PROVIDER)
    monkeypatch.setenv("LETTER_KEY", "sk-letters")

    def make(**config: Any) -> ModelConfig:
        fields = {"base_url": post.base_url, "api_key_env": "LETTER_KEY", "model": "scribe", **config}
        return ModelConfig.model_validate({"name": "m", "type": "letters.py:Letters", "config": fields})

    return make


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    assert "openai" in PROVIDERS
    monkeypatch.setattr(PROVIDERS, "_entries", dict(PROVIDERS._entries))


def test_a_provider_in_a_users_file_is_asked_in_its_own_way(
    bench: Any, problems: Any, post: Post, letters: Any, tmp_path: Path
) -> None:
    post.full = 1
    first = bench.ask(letters(tone="warm"), problems(2), base_dir=tmp_path)
    assert first.column("response") == ["Dear Que, warm"] * 2
    assert (first.tally.sent, first.tally.retries) == (2, 1)
    assert {(path, key) for path, key, _ in post.asked} == {("/post/letters", "sk-letters")}
    again = bench.ask(letters(tone="warm"), problems(2), base_dir=tmp_path)
    assert (again.tally.sent, again.rows) == (0, first.rows)
    assert bench.ask(letters(tone="cold"), problems(2), base_dir=tmp_path).tally.sent == 2


def test_the_probe_sends_the_providers_own_headers(post: Post, letters: Any, tmp_path: Path) -> None:
    assert probe(letters(), base_dir=tmp_path).served == ("scribe",)
    assert post.asked == [("/post/models", "sk-letters", None)]


def test_what_a_provider_cannot_be_asked_is_refused_before_anything_is_asked(
    post: Post, letters: Any, tmp_path: Path
) -> None:
    said = r"letters\.py:Letters gives no log-likelihoods of a text; ask one of type demo or openai"
    with pytest.raises(ModelError, match=said):
        probe(letters(), "loglikelihood", base_dir=tmp_path)
    assert post.asked == []


def test_a_users_provider_refuses_what_its_schema_does_not_know(letters: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model 'm': config\.tune: Extra inputs"):
        model_identity(letters(tune="warm"), tmp_path)


def test_a_class_that_is_no_provider_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.py").write_text("class No:\n    pass\n")
    with pytest.raises(ConfigError, match="expected a class derived from AskedProvider or RecordedProvider"):
        model_identity(ModelConfig(name="m", type="no.py:No"), tmp_path)


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same file in the package: the one file that adding a provider takes."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "letters.py").write_text(PROVIDER)
    monkeypatch.setattr(providers, "__path__", [*providers.__path__, str(folder)])
    monkeypatch.setattr(PROVIDERS, "_loaded", False)
    yield
    sys.modules.pop("tasks.models.providers.letters", None)


def test_adding_a_provider_takes_one_file(
    added: None, bench: Any, problems: Any, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.catalog import catalog
    from flows.config.reference import as_markdown, json_schema

    monkeypatch.setenv("LETTER_KEY", "sk-letters")
    fields = {"base_url": post.base_url, "api_key_env": "LETTER_KEY", "model": "scribe"}
    model = ModelConfig.model_validate({"name": "m", "type": "letters", "config": fields})
    assert bench.ask(model, problems(1)).column("response") == ["Dear Que, plain"]
    first, *others = schemas()
    assert (first, others) == ("openai", sorted(others))
    assert {"demo", "letters", "replay"} <= set(others)
    assert "## models.config (type letters)" in as_markdown()
    assert '{"const": "letters"}' in json.dumps(json_schema()["$defs"]["ModelConfig"])
    assert "letters" in {entry.name for entry in catalog("models")}
    with pytest.raises(ValueError, match="tune"):
        ModelConfig.model_validate({"name": "m", "type": "letters", "config": {**fields, "tune": "x"}})


def test_a_version_of_an_encoder_is_in_the_keys_of_what_it_encodes_and_in_no_other(
    monkeypatch: pytest.MonkeyPatch, problems: Any, pairs: Any
) -> None:
    model = ModelConfig(name="m")

    def keys(batches: Any) -> list[bytes]:
        expansion = RequestExpansion.of(model, SampleParams())
        return [request.key for batch in batches for row in expansion.rows(batch) for request in row]

    texts, likelihoods = problems(2), pairs(["The sky is"], [" blue", " red"])
    before = keys(texts), keys(likelihoods)
    monkeypatch.setattr(Chat, "version", 2)
    assert set(keys(texts)).isdisjoint(before[0])
    assert keys(likelihoods) == before[1]
