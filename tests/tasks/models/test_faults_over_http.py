"""What an endpoint can do to a run, over real HTTP."""

import time
from typing import Any

import pytest

from metrics.errors import ConfigError
from tasks.infer import BudgetExceeded, check_errors
from tasks.models.config import ErrorBudget, ModelConfig, Price, RunLimits
from tasks.models.demo.options import Faults
from tasks.models.errors import ModelError
from tasks.models.records import Lookup
from tasks.models.tally import RequestTally
from tasks.store.keys import Accounts, Step

STORM = Faults(
    error_500=0.05,
    error_429=0.05,
    cut=0.02,
    malformed=0.01,
    stall=0.01,
    stall_seconds=3.0,
    retry_after=0.2,
    seed=7,
)


def test_every_item_ends_ok_in_a_storm_and_answers_equal_those_of_a_calm_day(
    bench, served, endpoint, problems, tmp_path
):
    storm, calm = served(STORM), served()
    stormy = bench.ask(endpoint(storm, timeout=1.0), problems(600))
    fair = bench.ask(endpoint(calm, timeout=1.0), problems(600))
    assert set(stormy.column("status")) == {"ok"}
    assert stormy.column("response") == fair.column("response")
    stats = storm.stats()
    assert stats["peak"] <= 32
    assert stats["answered_again"] == 0
    assert stats["most_often_asked"] <= 7
    assert stats["asked_again"] == sum(stats["faults"].values())
    assert {"error_500", "error_429", "cut", "malformed", "stall"} <= set(stats["faults"])
    assert stormy.tally.retries == stats["asked_again"]


def test_retry_after_is_waited_for_in_full(bench, served, endpoint, problems):
    serving = served(Faults(error_429=1.0, retry_after=0.5))
    started = time.monotonic()
    outcome = bench.ask(endpoint(serving, max_retries=2), problems(1))
    assert time.monotonic() - started >= 1.0
    assert serving.stats()["received"] == 3
    assert outcome.rows[0]["status"] == "infra_error"
    assert "429" in outcome.rows[0]["error"]
    assert outcome.rows[0]["attempts"] == 3


def test_a_pause_beyond_the_deadline_fails_at_once_and_is_never_cut_short(bench, served, endpoint, problems):
    serving = served(Faults(error_429=1.0, retry_after=4), latency=0.05)
    model = endpoint(serving, max_concurrency=4, deadline=3, client="http")
    outcome = bench.ask(model, problems(40))
    assert set(outcome.column("status")) == {"infra_error"}
    assert serving.stats()["received"] < 20
    assert any("asks for a pause of" in row["error"] for row in outcome.rows)


def test_waiting_for_a_slot_is_no_fault_of_the_endpoint(bench, served, endpoint, problems):
    serving = served(latency=1.2)
    model = endpoint(serving, requests_per_minute=600, timeout=5, deadline=2)
    assert set(bench.ask(model, problems(25)).column("status")) == {"ok"}


def test_a_400_on_some_items_leaves_the_others_alone_and_is_asked_again(bench, served, endpoint, batch_of):
    serving = served(Faults(fail_prompts="poison"))
    rows = [{"prompts": [f"poison {i}" if i % 10 == 0 else f"fine {i}"]} for i in range(50)]
    first = bench.ask(endpoint(serving), batch_of(rows))
    assert [row["status"] for row in first.rows[:11]] == ["infra_error", *["ok"] * 9, "infra_error"]
    assert first.rows[0]["response"] is None
    assert "this prompt is never taken" in first.rows[0]["error"]
    assert (first.tally.refused, first.tally.failed, first.tally.retries) == (0, 5, 0)
    again = bench.ask(endpoint(serving), batch_of(rows))
    assert (again.tally.sent, again.tally.cached) == (5, 45)
    refreshed = bench.ask(endpoint(serving), batch_of(rows), refresh=True)
    assert refreshed.tally.sent == 50


MENDED = [
    (Faults(null_prompts="Tom"), {}, "no content"),
    (Faults(fail_prompts="Tom"), {}, "never taken"),
    (Faults(), {"context": 4}, "maximum context length"),
]


@pytest.mark.parametrize(("faults", "options", "said"), MENDED)
def test_what_a_mended_server_answers_is_asked_again(bench, served, problems, faults, options, said):
    def at(serving):
        config = {"model": "demo", "base_url": serving.base_url, "max_retries": 1}
        return ModelConfig.model_validate({"name": "demo", "config": config, "identity": "same"})

    broken = bench.ask(at(served(faults, **options)), problems(3))
    assert broken.column("status") == ["infra_error"] * 3
    assert broken.column("response") == [None] * 3
    assert said in broken.rows[0]["error"]
    mended = bench.ask(at(served()), problems(3))
    assert (mended.tally.sent, mended.column("status")) == (3, ["ok"] * 3)


def test_a_filtered_answer_is_the_items_own_and_settled_until_failed_ones_are_asked_again(
    bench, served, endpoint, problems
):
    serving = served(Faults(filter_prompts="Tom"))
    first = bench.ask(endpoint(serving), problems(3))
    assert first.column("status") == ["refused"] * 3
    assert first.column("response") == [None] * 3
    assert "filter" in first.rows[0]["error"]
    assert bench.ask(endpoint(serving), problems(3)).tally.sent == 0
    now = time.time()
    assert bench.ask(endpoint(serving), problems(3), lookup=Lookup(failed_before=now)).tally.sent == 3
    # What was asked since then is settled again.
    assert bench.ask(endpoint(serving), problems(3), lookup=Lookup(failed_before=now)).tally.sent == 0


def test_failed_rows_are_asked_again_and_only_they(bench, served, endpoint, problems):
    # The last quarter of the requests meets a server that is down, and finds it up the next time.
    serving = served(Faults(down_after=30, up_after=60))
    model = endpoint(serving, max_retries=0, max_concurrency=1)
    first = bench.ask(model, problems(40))
    failed = [row for row in first.rows if row["status"] == "infra_error"]
    assert failed
    assert all(row["response"] is None for row in failed)
    assert first.tally.retryable == len(failed)
    calm = served()
    moved = ModelConfig.model_validate(
        {"name": "demo", "config": {"model": "demo", "base_url": calm.base_url}, "identity": "same"}
    )
    before = ModelConfig.model_validate(
        {
            "name": "demo",
            "config": {**model.config.model_dump(), "base_url": served().base_url},
            "identity": "same",
        }
    )
    bench.ask(before, problems(30))
    assert bench.ask(moved, problems(40)).tally.sent == 10
    assert calm.stats()["received"] == 10


def test_a_dead_endpoint_is_given_up_without_asking_everything(bench, served, endpoint, problems):
    serving = served(Faults(down_after=0))
    outcome = bench.ask(endpoint(serving, max_retries=2, max_concurrency=16), problems(2_000))
    assert set(outcome.column("status")) == {"infra_error"}
    assert serving.stats()["received"] < 200
    assert "answers nothing" in outcome.rows[-1]["error"]
    assert outcome.tally.failed == 2_000


def test_an_endpoint_that_answers_429_alone_is_not_said_to_answer_nothing(bench, served, endpoint, problems):
    serving = served(Faults(error_429=1.0, retry_after=0.01))
    outcome = bench.ask(endpoint(serving, max_retries=1, max_concurrency=16), problems(50))
    assert "the endpoint takes no request: HTTP 429" in outcome.rows[-1]["error"]


def test_failures_without_retries_do_not_condemn_an_endpoint_that_answers(bench, served, endpoint, problems):
    for seed in range(5):
        serving = served(Faults(error_500=0.1, seed=seed), latency=0.01)
        outcome = bench.ask(endpoint(serving, max_retries=0), problems(60))
        failed = outcome.column("status").count("infra_error")
        assert failed == outcome.tally.failed == serving.stats()["faults"].get("error_500", 0)
        assert outcome.tally.stopped is None


def test_an_endpoint_that_is_not_there_names_the_address_and_the_reason(bench, problems):
    model = ModelConfig.model_validate(
        {"name": "m", "config": {"base_url": "http://127.0.0.1:9/v1", "max_retries": 1, "max_concurrency": 2}}
    )
    outcome = bench.ask(model, problems(5))
    assert set(outcome.column("status")) == {"infra_error"}
    assert "connection failed" in outcome.rows[0]["error"]


def test_a_wrong_key_stops_the_run_and_is_shown_nowhere(bench, served, endpoint, problems, monkeypatch):
    monkeypatch.setenv("NIGHTJAR_TEST_KEY", "sk-very-secret")
    serving = served(api_key="another")
    outcome = bench.ask(endpoint(serving, api_key_env="NIGHTJAR_TEST_KEY", max_concurrency=4), problems(100))
    assert set(outcome.column("status")) == {"infra_error"}
    assert "401" in outcome.rows[0]["error"]
    assert serving.stats()["received"] <= 4
    assert "sk-very-secret" not in str(outcome)


def test_a_missing_key_names_the_variable(bench, served, endpoint, problems, monkeypatch):
    monkeypatch.delenv("NIGHTJAR_TEST_KEY", raising=False)
    with pytest.raises(ModelError, match="NIGHTJAR_TEST_KEY"):
        bench.ask(endpoint(served(), api_key_env="NIGHTJAR_TEST_KEY"), problems(1))


@pytest.mark.parametrize("key", ["sk-se\ncret", "sk-se\x00cret", "schlüssel-secret"])
def test_a_key_that_no_header_can_carry_names_the_variable_and_not_the_key(
    bench, served, endpoint, problems, monkeypatch, key
):
    config = {"api_key_secret": "block"}
    if "\x00" not in key:
        monkeypatch.setenv("NIGHTJAR_TEST_KEY", key)
        config = {"api_key_env": "NIGHTJAR_TEST_KEY"}
    with pytest.raises(ModelError, match=r"NIGHTJAR_TEST_KEY|block") as refused:
        bench.ask(endpoint(served(), **config), problems(1), secret={"block": key}.__getitem__)
    assert "cret" not in str(refused.value).replace("api_key_secret", "").replace("Secret", "")


def test_what_is_wrong_with_a_secret_block_is_said(bench, served, endpoint, problems):
    def absent(name):
        raise ConfigError(f"no Secret block '{name}'; create it")

    with pytest.raises(ModelError, match="no Secret block 'block'; create it"):
        bench.ask(endpoint(served(), api_key_secret="block"), problems(1), secret=absent)


def test_a_key_from_a_secret_block_reaches_the_server(bench, served, endpoint, problems):
    serving = served(api_key="from-block")
    outcome = bench.ask(
        endpoint(serving, api_key_secret="block"), problems(2), secret={"block": "from-block\n"}.__getitem__
    )
    assert outcome.column("status") == ["ok", "ok"]


def test_concurrency_shrinks_to_what_the_endpoint_bears(bench, served, endpoint, problems):
    serving = served(Faults(capacity=4, retry_after=None), latency=0.01)
    outcome = bench.ask(endpoint(serving, max_concurrency=64, max_retries=20), problems(400))
    assert set(outcome.column("status")) == {"ok"}
    # Each attempt beyond the 400 was a 429; a client that kept 64 in flight would have had thousands.
    assert serving.stats()["asked_again"] < 400


@pytest.mark.parametrize("limit", [{"max_tokens": 2_000}, {"max_seconds": 0.3}, {"max_cost": 0.01}])
def test_reaching_a_limit_stops_cleanly_with_what_is_there(bench, served, endpoint, problems, limit):
    serving = served(latency=0.02)
    model = endpoint(serving, max_concurrency=8)
    price = Price(prompt=10, completion=10)
    stopped = bench.ask(model, problems(400), limits=RunLimits(**limit), price=price)
    answered = stopped.column("status").count("ok")
    assert 0 < answered < 400
    assert set(stopped.column("status")) == {"ok", "infra_error"}
    assert next(iter(limit)) in stopped.rows[-1]["error"]
    assert next(iter(limit)) in stopped.tally.stopped
    assert stopped.tally.failed == 400 - answered
    rest = bench.ask(model, problems(400))
    assert rest.tally.sent == 400 - answered
    assert serving.stats()["answered_again"] == 0


def test_an_inference_that_begins_when_a_limit_is_reached_asks_nothing(bench, served, endpoint, problems):
    """As that of a judge or of a later turn may: before, it asked one request a place of the endpoint."""
    serving = served(latency=0.02)
    of_the_run = {"limits": RunLimits(max_tokens=1), "account": "an attempt at a run"}
    bench.ask(endpoint(serving, max_concurrency=8), problems(4), **of_the_run)
    before = serving.stats()["received"]
    later = bench.ask(endpoint(serving, max_concurrency=8), problems(40), **of_the_run)
    assert serving.stats()["received"] == before
    assert later.tally.sent == 0
    assert "limits.max_tokens of 1 was reached" in later.tally.stopped
    assert "limits.max_tokens of 1 was reached" in later.rows[-1]["error"]


USAGE: dict[str, dict[str, Any]] = {
    "openai": {"usage": {"prompt_tokens": 10, "completion_tokens": 90}},
    "anthropic": {"usage": {"input_tokens": 10, "output_tokens": 90}},
    "gemini": {"usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 90}},
    "openai_responses": {"usage": {"input_tokens": 10, "output_tokens": 90}},
    "bedrock": {"usage": {"inputTokens": 10, "outputTokens": 90, "totalTokens": 100}},
}


@pytest.mark.parametrize("kind", USAGE)
def test_what_a_reply_used_that_cannot_be_read_counts(bench, problems, script, monkeypatch, kind):
    config = {"model": "m", "base_url": script(lambda _: (200, {}, USAGE[kind])), "max_retries": 1}
    if kind == "bedrock":
        monkeypatch.setenv("A_KEY", "bedrock-key")
        config |= {"region": "us-east-1", "api_key_env": "A_KEY"}
    model = ModelConfig.model_validate({"name": "a", "type": kind, "config": config})
    outcome = bench.ask(model, problems(2), price=Price(prompt=1e6, completion=1e6))
    assert outcome.column("status") == ["infra_error"] * 2
    assert (outcome.tally.attempts, outcome.tally.answered) == (4, 0)
    assert (outcome.tally.prompt_tokens, outcome.tally.completion_tokens) == (40, 360)
    assert outcome.tally.cost == pytest.approx(400.0)


@pytest.mark.parametrize("limit", [{"max_tokens": 250}, {"max_cost": 0.00025}])
def test_a_limit_holds_where_no_reply_can_be_read(bench, problems, script, limit):
    config = {"model": "m", "base_url": script(lambda _: (200, {}, USAGE["openai"])), "max_concurrency": 1}
    model = ModelConfig.model_validate({"name": "a", "config": config})
    price = Price(prompt=1.0, completion=1.0)
    outcome = bench.ask(model, problems(6), limits=RunLimits(**limit), price=price)
    assert (outcome.tally.attempts, outcome.tally.total_tokens) == (3, 300)
    assert next(iter(limit)) in outcome.tally.stopped


UNCOUNTED = {"choices": [{"message": {"content": "4" * 40}, "finish_reason": "stop"}]}


@pytest.mark.parametrize("usage", [{}, {"usage": None}, {"usage": {"prompt_tokens": "10"}}])
@pytest.mark.parametrize("limit", [{"max_tokens": 50}, {"max_cost": 0.00005}])
def test_a_limit_holds_by_an_estimate_where_replies_have_no_counts(bench, batch_of, script, limit, usage):
    config = {"model": "m", "base_url": script(lambda _: (200, {}, UNCOUNTED | usage)), "max_concurrency": 1}
    model = ModelConfig.model_validate({"name": "a", "config": config})
    rows = batch_of([{"prompts": [f"{number:040}"]} for number in range(6)])
    price = Price(prompt=1.0, completion=1.0)
    outcome = bench.ask(model, rows, limits=RunLimits(**limit), price=price)
    assert (outcome.tally.attempts, outcome.tally.uncounted) == (3, 3)  # 10 tokens asked and 10 said, each
    assert next(iter(limit)) in outcome.tally.stopped
    assert (outcome.tally.total_tokens, outcome.tally.cost) == (0, 0)  # nothing estimated is kept
    assert outcome.rows[0]["prompt_tokens"] is None
    assert outcome.rows[0]["completion_tokens"] is None


def test_a_total_alone_counts_against_the_limits_as_it_is(bench, batch_of, script):
    config = {"base_url": script(lambda _: (200, {}, UNCOUNTED | {"usage": {"total_tokens": 1_000}}))}
    model = ModelConfig.model_validate({"name": "a", "config": config | {"model": "m", "max_concurrency": 1}})
    rows = batch_of([{"prompts": [f"{number}"]} for number in range(6)])
    outcome = bench.ask(model, rows, limits=RunLimits(max_tokens=2_000))
    assert (outcome.tally.attempts, outcome.tally.uncounted) == (2, 2)
    assert outcome.rows[0]["total_tokens"] == 1_000


def test_samples_of_one_call_without_counts_have_its_prompt_once(bench, batch_of, script):
    def answer(asked):
        (choice,) = UNCOUNTED["choices"]
        return 200, {}, {"choices": [choice | {"index": at} for at in range(asked.body["n"])]}

    config = {"model": "m", "base_url": script(answer), "max_concurrency": 1}
    model = ModelConfig.model_validate({"name": "a", "config": config})
    rows = batch_of([{"prompts": [f"{number}" * 160]} for number in range(6)])
    sampling = {"num_samples": 4, "n": 4}
    outcome = bench.ask(model, rows, limits=RunLimits(max_tokens=160), sampling=sampling)
    assert (outcome.tally.attempts, outcome.tally.uncounted) == (2, 8)  # 40 asked and 4 × 10 said, each


def test_what_a_killed_process_was_answered_without_counts_is_estimated_too(bench, batch_of, script):
    config = {"model": "m", "base_url": script(lambda _: (200, {}, UNCOUNTED)), "max_concurrency": 1}
    model = ModelConfig.model_validate({"name": "a", "config": config})
    rows = batch_of([{"prompts": [f"{number:040}"]} for number in range(6)])
    first = bench.ask(model, [rows[0].slice(0, 2)], asker="an inference")
    assert first.tally.uncounted == 2
    limits = RunLimits(max_tokens=50)
    again = bench.ask(model, rows, limits=limits, account="another attempt", asker="an inference")
    assert (again.tally.sent, again.tally.uncounted) == (3, 3)  # of which two were asked before


def test_windows_before_one_that_is_refused_count(bench, batch_of, script):
    def answer(asked):
        ids = asked.body["prompt"][0]
        if b"z" in bytes(token for token in ids if token < 256):
            return 400, {}, {"error": {"message": "not this one"}}
        count = len(ids) + asked.body["max_tokens"]
        values = [None, *[-1.0] * (count - 1)]
        listed = {"tokens": ["x"] * count, "token_logprobs": values, "text_offset": [0] * count}
        choices = [{"index": 0, "text": "", "logprobs": listed}]
        return 200, {}, {"choices": choices, "usage": {"prompt_tokens": len(ids), "completion_tokens": 1}}

    config = {"model": "m", "base_url": script(answer), "api": "completions"}
    fields = {"name": "a", "config": config, "tokenizer": "bytes", "max_length": 12}
    rows = batch_of([{"kind": "rolling", "prompts": [""], "continuations": ["a" * 20 + "z"]}])
    outcome = bench.ask(ModelConfig.model_validate(fields), rows)
    assert (outcome.column("status"), outcome.tally.attempts) == (["infra_error"], 3)
    assert outcome.tally.completion_tokens == 2
    assert outcome.tally.prompt_tokens > 20


def test_what_an_inference_spent_counts_once_when_its_process_tries_it_again(
    bench, served, endpoint, problems
):
    model = endpoint(served(), max_concurrency=1)
    hundred = bench.ask(model, problems(100))
    again = {"account": "an attempt", "asker": "an inference", "refresh": True}
    limits = RunLimits(max_tokens=round(1.5 * hundred.tally.total_tokens))
    assert set(bench.ask(model, problems(100), limits=limits, **again).column("status")) == {"ok"}
    more = bench.ask(model, problems(300), limits=limits, **again | {"refresh": False})
    assert 130 < more.column("status").count("ok") < 170


def test_two_models_on_one_endpoint_share_its_ceiling(bench, served, endpoint, problems, batch_of):
    from concurrent.futures import ThreadPoolExecutor

    serving = served(latency=0.02)
    others = batch_of([{"prompts": [f"other {i}"]} for i in range(200)])
    with ThreadPoolExecutor() as pool:
        asked = [
            pool.submit(bench.ask, endpoint(serving, max_concurrency=8, name=name), requests)
            for name, requests in (("a", problems(200)), ("b", others))
        ]
        outcomes = [future.result() for future in asked]
    assert [set(outcome.column("status")) for outcome in outcomes] == [{"ok"}, {"ok"}]
    assert serving.stats()["peak"] <= 8


def test_requests_per_minute_are_spaced(bench, served, endpoint, problems):
    serving = served()
    started = time.monotonic()
    bench.ask(endpoint(serving, requests_per_minute=1_200), problems(11))
    assert time.monotonic() - started >= 0.5


@pytest.mark.parametrize(
    "settings", [{"stream": True}, {"client": "openai"}, {"client": "openai", "stream": True}]
)
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_every_way_of_asking_gives_the_same_answers(bench, served, endpoint, problems, settings, api):
    plain = bench.ask(endpoint(served(), api=api), problems(12))
    other = bench.ask(endpoint(served(), api=api, **settings), problems(12))
    assert other.column("response") == plain.column("response")
    assert other.column("prompt_tokens") == plain.column("prompt_tokens")
    assert other.column("finish_reason") == plain.column("finish_reason")


@pytest.mark.parametrize("settings", [{"stream": True}, {"client": "openai"}])
def test_faults_are_survived_whatever_the_client(bench, served, endpoint, problems, settings):
    faults = Faults(
        error_500=0.1, error_429=0.1, cut=0.05, malformed=0.05, empty=0.05, retry_after=0.05, seed=3
    )
    outcome = bench.ask(endpoint(served(faults), **settings), problems(60))
    assert set(outcome.column("status")) == {"ok"}


def test_a_run_over_its_error_budget_says_why_it_stopped_asking() -> None:
    said = "not asked: the endpoint answers nothing: connection refused"
    tally = RequestTally(requests=60, failed=36, errors={"EndpointDead": 1}, stopped=said)
    step = Step(name="errors demo", identity={}, setup=ErrorBudget(max_rate=0.01))
    with pytest.raises(
        BudgetExceeded, match=r"36 of 60 requests failed.*1 × EndpointDead.*connection refused"
    ):
        check_errors.fn(step, Accounts(tally=tally.as_dict()))
