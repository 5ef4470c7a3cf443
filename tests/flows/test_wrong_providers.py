"""A key, a model or a region that a provider does not take: one sentence and exit code 2, before any item is
asked."""

import http.server
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.loopback import answering

KEY = "sk-wrong"
Refusal = tuple[int, dict[str, Any]]

ANTHROPIC_KEY = {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}
ANTHROPIC_MODEL = {"type": "error", "error": {"type": "not_found_error", "message": "model: nobody"}}
ANTHROPIC_PLACE = {"type": "error", "error": {"type": "forbidden", "message": "Request not allowed"}}
OPENAI_KEY = {"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}}
OPENAI_PLACE = {
    "error": {
        "code": "unsupported_country_region_territory",
        "message": "Country, region, or territory not supported",
        "type": "request_forbidden",
    }
}
GEMINI_KEY = {
    "error": {
        "code": 400,
        "message": "API key not valid. Please pass a valid API key.",
        "status": "INVALID_ARGUMENT",
        "details": [{"reason": "API_KEY_INVALID"}],
    }
}
GEMINI_MODEL = {"error": {"code": 404, "message": "models/nobody is not found", "status": "NOT_FOUND"}}
GEMINI_PLACE = {
    "error": {
        "code": 400,
        "message": "User location is not supported for the API use.",
        "status": "FAILED_PRECONDITION",
    }
}
BEDROCK_KEY = {"message": "The security token included in the request is invalid."}
BEDROCK_MODEL = {"message": "The provided model identifier is invalid."}
BEDROCK_PLACE = {"message": "Credential should be scoped to a valid region."}
CASES: list[tuple[str, Refusal, list[str]]] = [
    ("anthropic", (401, ANTHROPIC_KEY), ["refused access", "invalid x-api-key", "A_KEY"]),
    ("anthropic", (404, ANTHROPIC_MODEL), ["knows no model 'nobody'", "set config.model"]),
    ("anthropic", (403, ANTHROPIC_PLACE), ["refused access", "Request not allowed"]),
    ("gemini", (400, GEMINI_KEY), ["refused access", "API key not valid", "A_KEY"]),
    ("gemini", (404, GEMINI_MODEL), ["knows no model 'nobody'", "set config.model"]),
    ("gemini", (400, GEMINI_PLACE), ["refused access", "location is not supported"]),
    ("bedrock", (403, BEDROCK_KEY), ["refused access", "security token", "A_KEY"]),
    ("bedrock", (400, BEDROCK_MODEL), ["knows no model 'nobody' in us-east-1", "set config.model"]),
    ("bedrock", (403, BEDROCK_PLACE), ["refused access", "valid region"]),
    ("openai_responses", (401, OPENAI_KEY), ["refused access", "Incorrect API key", "A_KEY"]),
    ("openai_responses", (403, OPENAI_PLACE), ["refused access", "region, or territory not supported"]),
    ("openai", (401, OPENAI_KEY), ["refused access", "Incorrect API key", "A_KEY"]),
    ("openai", (403, OPENAI_PLACE), ["refused access", "region, or territory not supported"]),
]


@contextmanager
def refusing(refusal: Refusal) -> Iterator[tuple[str, list[str]]]:
    """An endpoint that answers everything alike; gives its address, and the paths that were posted to."""
    posted: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(self.path)
            self.do_GET()

        def do_GET(self) -> None:
            content = json.dumps(refusal[1]).encode()
            self.send_response(refusal[0])
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Silent."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with answering(server):
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", posted


def written(folder: Path, kind: str, config: dict[str, Any]) -> Path:
    """A benchmark of one item, and a model of this type."""
    (folder / "items.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    benchmark = {
        "name": "sums",
        "dataset": "items.jsonl",
        "prompt_template": "{{question}}",
        "target": "{{answer}}",
        "metric_list": ["exact_match"],
        "models": [{"name": "m", "type": kind, "config": config}],
    }
    (folder / "sums.yaml").write_text(json.dumps(benchmark))
    return folder / "sums.yaml"


@pytest.mark.parametrize(
    ("kind", "refusal", "said"),
    CASES,
    ids=[f"{kind}-{refusal[0]}-{said[0]}" for kind, refusal, said in CASES],
)
def test_what_a_provider_does_not_take_is_told_before_anything_is_asked(
    evaluate: Callable[..., Any], tmp_path: Path, kind: str, refusal: Refusal, said: list[str]
) -> None:
    with refusing(refusal) as (address, posted):
        config = {"base_url": address, "model": "nobody", "api_key_env": "A_KEY"}
        if kind == "bedrock":
            config["region"] = "us-east-1"
        ran = evaluate(written(tmp_path, kind, config), env={"A_KEY": KEY})
    assert ran.code == 2, ran.out + ran.err
    assert posted == []
    (line,) = [line for line in ran.err.splitlines() if "model 'm'" in line]
    for words in said:
        assert words in line
    assert KEY not in ran.out + ran.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["openai", "openai_responses"])
def test_a_model_that_openai_does_not_list_is_refused_and_one_of_a_proxy_is_doubted(
    evaluate: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with refusing((200, {"object": "list", "data": [{"id": "gpt-x"}]})) as (address, posted):
        benchmark = written(tmp_path, kind, {"base_url": address, "model": "nobody"})
        doubted = evaluate(benchmark, "--dry-run")
        monkeypatch.setattr("tasks.models.providers.openai.config.OFFICIAL_HOSTS", {"127.0.0.1"})
        refused = evaluate(benchmark)
    said = f"model 'm': {address} does not list 'nobody'; it serves gpt-x"
    assert said in doubted.out + doubted.err
    assert doubted.code == 0
    assert f"{said}; set config.model to one of its models" in refused.err
    assert refused.code == 2
    assert posted == []
