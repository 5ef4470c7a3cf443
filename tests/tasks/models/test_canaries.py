"""Canaries: which kept requests are asked again, what counts as another answer, and what endpoints say."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tasks.models.answers.segments import AnswerStore
from tasks.models.canaries import CanaryReport, ask_canaries, note_statement
from tasks.models.config import ModelConfig
from tasks.models.connection import probe
from tasks.models.demo import protocol, server
from tasks.models.demo.options import DemoOptions
from tasks.models.demo.server import Serving, serve
from tasks.models.providers.openai.config import EndpointConfig
from tasks.models.statements import contradictions, keep_statement, kept_statements, said_at
from tasks.store.storage import Store

GREEDY = {"temperature": 0, "max_tokens": 64}


@pytest.fixture
def serving(entry: dict[str, Any]) -> Iterator[Serving]:
    with serve(DemoOptions(error_rate=0.0)) as found:
        yield found


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the server adds to its entry of /v1/models; tests change it."""
    added: dict[str, Any] = {}

    async def models(self: Any, request: web.Request) -> web.Response:
        return web.json_response(
            {"data": [{"id": "demo", "created": 1, **added}]}, headers={"openai-version": "2020-10-01"}
        )

    monkeypatch.setattr(server.DemoServer, "models", models)
    return added


def model(serving: Serving, **fields: Any) -> ModelConfig:
    config = EndpointConfig(base_url=serving.base_url, model="demo", **fields)
    return ModelConfig(name="m", config=config)


def shift(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    """Moves every log-probability that the server gives, up to 0 at most."""
    own = protocol.score

    def shifted(tokens: Any) -> list[tuple[float, int, float]]:
        given = own(tokens)
        return [(min(0.0, value + by), best, min(0.0, best_value + by)) for value, best, best_value in given]

    monkeypatch.setattr(protocol, "score", shifted)


@pytest.fixture
def asks(bench: Any, serving: Serving) -> Callable[..., CanaryReport]:
    """``asks(requests)``: the first call keeps the answers, later ones are canaries."""
    kept = False

    def call(requests: Any, count: int = 5, sampling: dict[str, Any] | None = None) -> CanaryReport:
        nonlocal kept
        own, options = model(serving), bench.options(sampling=sampling or GREEDY)
        if not kept:
            kept = True
            note_statement(own, bench.answers, options, probe(own).says)
            bench.ask(own, requests, sampling=sampling or GREEDY)
        return ask_canaries(own, requests, bench.answers, options, count)

    return call


def likelihoods(pairs: Any) -> Any:
    return pairs(["The sky is", "Grass is", "Snow is"], [" blue", " green"])


@pytest.mark.parametrize(
    ("by", "another"), [(0.0, False), (0.0001, False), (-0.0001, False), (0.005, True), (-0.005, True)]
)
def test_likelihoods_are_equal_within_the_tolerance(
    asks: Any, pairs: Any, monkeypatch: pytest.MonkeyPatch, by: float, another: bool
) -> None:
    assert asks(likelihoods(pairs)).sentence is None
    shift(monkeypatch, by)
    found = asks(likelihoods(pairs))
    assert (found.asked, found.differing) == (5, 5 if another else 0)
    assert found.is_another is another
    assert found.sentence == ("5 of 5 canaries were answered otherwise than before" if another else None)


def test_one_canary_that_differs_may_be_chance_and_two_are_another_model() -> None:
    assert not CanaryReport(asked=5, differing=1).is_another
    assert CanaryReport(asked=5, differing=2).is_another
    assert CanaryReport(asked=1, differing=1).is_another


@pytest.mark.parametrize(("asked", "needed"), [(1, 1), (2, 2), (5, 2), (29, 2)])
def test_canaries_say_which_change_they_find(asked: int, needed: int) -> None:
    share = CanaryReport(asked=asked).finds
    assert share is not None
    missed = sum(math.comb(asked, k) * share**k * (1 - share) ** (asked - k) for k in range(needed))
    assert missed == pytest.approx(0.2)
    assert CanaryReport().finds is None


@pytest.mark.parametrize(
    "sampling", [GREEDY, {"temperature": 0.7, "max_tokens": 64}], ids=["greedy", "sampled"]
)
def test_an_endpoint_that_says_otherwise_of_its_model_is_another_though_its_answers_are_equal(
    asks: Any, problems: Any, entry: dict[str, Any], sampling: dict[str, Any]
) -> None:
    entry.update(max_model_len=4096, meta={"n_params": 7})
    assert asks(problems(6), sampling=sampling) == asks(problems(6), sampling=sampling)
    entry.update(max_model_len=8192, meta={"n_params": 7}, created=2)
    found = asks(problems(6), sampling=sampling)
    assert (found.asked, found.differing) == ((5, 0) if sampling is GREEDY else (0, 0))
    assert found.is_another
    assert found.sentence == "max_model_len was 4096 and is 8192"


def test_answers_that_came_before_a_change_are_doubted_though_others_came_after_it(
    bench: Any, serving: Serving, problems: Any, entry: dict[str, Any]
) -> None:
    own, options = model(serving), bench.options(sampling=GREEDY)
    for root, count in (("/old", 3), ("/new", 6)):
        entry["root"] = root
        note_statement(own, bench.answers, options, probe(own).says)
        bench.ask(own, problems(count), sampling=GREEDY)
    found = ask_canaries(own, problems(6), bench.answers, options, 5)
    assert found.sentence == "root was /old and is /new"


def test_who_said_nothing_then_or_can_not_be_asked_now_is_not_doubted(
    bench: Any, serving: Serving, problems: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, options = model(serving), bench.options(sampling=GREEDY)
    bench.ask(own, problems(6), sampling=GREEDY)
    assert ask_canaries(own, problems(6), bench.answers, options, 5).sentence is None
    note_statement(own, bench.answers, options, {"root": "/old"})
    bench.ask(own, problems(9), sampling=GREEDY)
    monkeypatch.setattr("tasks.models.providers.openai.OpenAI.statement", lambda *_: {})
    assert ask_canaries(own, problems(9), bench.answers, options, 5).sentence is None


def test_what_an_endpoint_says_is_kept_once_while_it_stays_and_what_is_torn_costs_itself(
    tmp_path: Path,
) -> None:
    store = Store(str(tmp_path))
    for moment, root in enumerate(("a", "a", "b", "a")):
        keep_statement(store, "answers/x", {"root": root}, now=float(moment))
    keep_statement(store, "answers/x", {}, now=9.0)
    store.put_bytes("answers/x/says/0000000001500-torn.json", b'{"since": 1.5, "sa')
    kept = kept_statements(store, "answers/x")
    assert kept == [(0.0, {"root": "a"}), (2.0, {"root": "b"}), (3.0, {"root": "a"})]
    assert said_at(kept, [-1.0]) == []
    assert said_at(kept, [1.0, 1.5, 2.5]) == [{"root": "a"}, {"root": "b"}]
    assert AnswerStore(store).of_model("x").names() == []


def test_only_what_stays_as_long_as_the_model_is_said(serving: Serving, entry: dict[str, Any]) -> None:
    entry.update(
        owned_by="vllm", created=12, permission=[{"id": "x"}], pricing={"prompt": 1}, meta={"size": 3}
    )
    said = dict(probe(model(serving)).says)
    assert said.pop("header server").startswith("Python/")
    assert said == {
        "listed": "yes",
        "owned_by": "vllm",
        "meta.size": "3",
        "header openai-version": "2020-10-01",
    }
    assert list(contradictions(said, {**said, "listed": "no"})) == ["listed was yes and is no"]
    assert json.loads(json.dumps(said)) == said
