"""Conversations: each turn is asked once, whatever comes after it; metrics see the transcript."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flows.config.load import load_config
from flows.config.schema import RunOptions
from flows.plan.build import make_plan
from metrics.errors import ConfigError
from tasks.models.demo.options import DemoOptions, Faults
from tasks.models.demo.server import serve
from tests.flows.conftest import PROJECT, own
from tests.flows.endpoints import chat_endpoint, says

CONFIG = """\
name: talk
dataset: items.jsonl
prompt_template: "Question: {{question}}"
turns:
  - "You said {{answer}}. Question: Ann has {{more}} pears. She buys 4 pears. How many pears has she now?"
target: "x"
metric_list:
  - {metric: "own.py:heard"}
  - {metric: "own.py:first_words"}
sample_params: {temperature: 0.0}
models: [{name: demo, type: demo, config: {error_rate: 0}}]
"""
METRICS = '''
def heard(references, predictions, answer):
    """Messages of the conversation."""
    return float(len(answer.transcript))


def first_words(references, predictions, answer):
    """Whether the second message of the user repeats the model's first answer."""
    said = [message["content"] for message in answer.transcript if message["role"] == "assistant"]
    return float(len(said) > 1 and said[0] in answer.transcript[2]["content"])
'''
LATER = "Question: Bob has 3 pens. He loses 1 pens. How many pens does he have now?"


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    question = "Tom has {} apples. He buys 3 apples. How many apples does he have now?"
    rows = [{"id": f"i{n}", "more": n + 4, "question": question.format(n)} for n in range(3)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own.py").write_text(METRICS)
    (tmp_path / "talk.yaml").write_text(CONFIG)
    return tmp_path / "talk.yaml"


def turns_of(config: Path, *more: str) -> str:
    first = CONFIG.split("turns:\n  - ")[1].splitlines()[0].strip('"')
    return f"turns={json.dumps([first, *more])}"


def test_a_turn_more_asks_nothing_of_those_before(talk: Path, evaluate: Any, begin: Any) -> None:
    ran = begin("talk", talk, "--json")
    assert ran.document["requests"] == {"sent": 6, "cached": 0, "failed": 0}
    assert (ran.value("heard,none"), ran.value("first_words,none")) == (4.0, 1.0)
    rows = [json.loads(line) for line in (talk.parent / "out" / "responses.jsonl").read_text().splitlines()]
    assert len(rows) == 3
    assert [message["role"] for message in json.loads(rows[0]["prompt"])] == ["user", "assistant", "user"]
    again = evaluate(talk, "--json")
    assert again.document["requests"] == {"sent": 0, "cached": 6, "failed": 0}
    more = evaluate(talk, "--json", "--set", turns_of(talk, LATER))
    assert more.document["requests"] == {"sent": 3, "cached": 6, "failed": 0}
    assert more.value("heard,none") == 6.0
    other = evaluate(talk, "--json", "--set", turns_of(talk, LATER + " Be brief."))
    assert other.document["requests"] == {"sent": 3, "cached": 6, "failed": 0}


def test_a_run_that_ends_in_turn_2_is_gone_on_with_there(talk: Path, evaluate: Any) -> None:
    def models(url: str) -> str:
        config = {"model": "demo", "base_url": url, "max_retries": 0, "max_concurrency": 1}
        return f"models={json.dumps([{'name': 'm', 'identity': 'same', 'config': config}])}"

    with serve(DemoOptions(error_rate=0, faults=Faults(down_after=4))) as first:
        ran = evaluate(
            talk, "--json", "--set", models(first.base_url), "--set", "sample_params.num_samples=1"
        )
        assert ran.code == 1
    with serve(DemoOptions(error_rate=0)) as second:
        ran = evaluate(talk, "--json", "--set", models(second.base_url))
        assert ran.code == 0, (ran.err, ran.out[-3000:])
        assert ran.value("heard,none") == 4.0
        # Turn 1 and the one answer of turn 2 are kept.
        assert second.stats()["received"] == 2


def test_samples_are_conversations_of_their_own(talk: Path, evaluate: Any) -> None:
    sampling = "sample_params={temperature: 1.0, num_samples: 3, seed: 5}"
    ran = evaluate(talk, "--json", "--set", sampling, "--set", "models.0.config.error_rate=0.5")
    assert ran.document["requests"]["sent"] == 18, ran.err
    assert ran.value("first_words,none") == 1.0


TURN = "{{ {'fine': 'Go on.'}[answer] }}"
SPEAKER = {"name": "user", "config": {"base_url": "URL"}, "sample_params": {"num_samples": 1}}


@pytest.mark.parametrize(
    ("turns", "asked", "error"),
    [
        ([TURN, "And now?"], 7, "turns (2): 'dict object' has no attribute 'odd' in item 'i1'"),
        (
            {"model": SPEAKER, "prompt": TURN, "max_turns": 3, "stop": "never"},
            8,  # each time the user is shown "Go on."
            "the simulated user gave no reply in turn 2: turns.prompt: 'dict object' has no attribute 'odd'",
        ),
    ],
)
def test_a_turn_that_fails_on_one_answer_fails_that_conversation_alone(
    talk: Path, evaluate: Any, turns: Any, asked: int, error: str
) -> None:
    """Also in the runs that find all answers kept, which ask nothing."""

    def reply(body: dict[str, Any]) -> Any:
        return says("odd" if "has 1 apples" in json.dumps(body) else "fine")

    with chat_endpoint(reply) as url:
        models = json.dumps([{"name": "m", "config": {"base_url": url}}])
        said = json.dumps(turns).replace("URL", url)
        keys = ["--json", "--set", f"models={models}", "--set", f"turns={said}"]
        ran = evaluate(talk, *keys)
        assert (ran.code, ran.value("heard,none")) == (1, 6.0), (ran.err, ran.out[-3000:])
        assert ran.document["requests"]["failed"] == 1
        rows = [
            json.loads(line) for line in (talk.parent / "out" / "responses.jsonl").read_text().splitlines()
        ]
        assert [row["status"] for row in rows] == ["ok", "infra_error", "ok"]
        assert rows[1]["error"].startswith(error), rows[1]
        assert ran.document["requests"]["sent"] == asked
    again = evaluate(talk, *keys)
    assert (again.code, again.document["requests"]["sent"]) == (1, 0), again.err
    assert evaluate(talk, *keys, "--set", "errors.max_rate=0.2").code == 0
    planned = evaluate(talk, *keys, "--dry-run").document
    assert planned["requests"]["to_send"] == 0, planned


USER = """turns={model: {name: user, type: demo, config: {error_rate: 0}}, max_turns: 3, stop: STOP,
prompt: "Question: Eve has {{turn}} pears. She buys 1 pears. How many pears does she have now?"}"""


def test_a_simulated_user_speaks_until_it_says_the_end(talk: Path, evaluate: Any, begin: Any) -> None:
    ran = begin("user", talk, "--json", "--set", USER.replace("STOP", "never"))
    assert ran.value("heard,none") == 6.0
    sent = ran.document["requests"]["sent"]
    assert evaluate(talk, "--json", "--set", USER.replace("STOP", "never")).document["requests"]["sent"] == 0
    # It answers turn 3 with "…4": there the conversation ends, and nothing new is asked of anyone.
    ended = evaluate(talk, "--json", "--set", USER.replace("STOP", '"4[.]?$"'))
    assert ended.value("heard,none") == 4.0
    assert ended.document["requests"]["sent"] == 0
    assert sent >= 9


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ("turns=[]", "is empty"),
        ('turns=["Go on.", "  "]', "turns.1: is empty"),
        ("turns=[{role: user, content: ''}]", "turns.0: is empty"),
        ("turns={model: demo, prompt: ' '}", "turns.prompt: is empty"),
        ('turns=["{{", "x"]', "line"),
        ("turns={model: nobody, prompt: x}", "'nobody' is no entry of models"),
        ('turns={model: demo, prompt: x, stop: "("}', "is no regular expression"),
    ],
)
def test_turns_that_cannot_be_are_refused(talk: Path, turns: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        load_config(talk, [turns])


def test_a_user_that_would_have_to_be_served_is_refused(talk: Path) -> None:
    (talk.parent / "weights").mkdir()
    (talk.parent / "weights" / "model.safetensors").write_bytes(b"weights")
    eve = "{name: eve, path: weights, serve: {command: [serve, '{path}', '{port}'], gpus: 0}}"
    turns = f"turns={{model: {eve}, prompt: Go on}}"
    with pytest.raises(ConfigError, match="no server of weights is started for 'eve'"):
        make_plan(load_config(talk, [turns]), RunOptions())


def planned(ran: Any) -> dict[str, Any]:
    """What a dry run counts: the sums, and each turn's requests."""
    turns = [(turn["turn"], turn["model"], turn["to_send"], turn["cached"]) for turn in ran.document["turns"]]
    return {"requests": ran.document["requests"], "turns": turns}


def test_a_plan_counts_every_turn_and_knows_what_is_kept(talk: Path, evaluate: Any) -> None:
    bound = ("--json", "--set", "sample_params.max_tokens=64")
    before = evaluate(talk, "--dry-run", *bound)
    assert planned(before) == {
        "requests": {"to_send": 6, "cached": 0},
        "turns": [(1, "demo", 3, 0), (2, "demo", 3, 0)],
    }
    expected = before.document["expected"]["demo"]
    assert (expected["requests"], expected["completion_tokens_at_most"]) == (6, 6 * 64)
    # Of three conversations two are kept: the third goes on for sure, with what nobody knows.
    ran = evaluate(talk, *bound, "--samples", "0,1")
    assert planned(evaluate(talk, "--dry-run", *bound))["requests"] == {"to_send": 2, "cached": 4}
    tool = evaluate(talk, "--dry-run", *bound, "--set", "turns=[{role: tool, content: Rain}]")
    assert planned(tool)["requests"] == {"to_send": 1, "to_send_at_most": 2, "cached": 2}
    # A turn that says nothing of an item ends its conversation there, as it may of the third.
    silent = "turns=[\"{{more if id == 'i1' else ''}}\"]"
    silent = evaluate(talk, "--dry-run", *bound, "--set", silent)
    assert planned(silent)["requests"] == {"to_send": 2, "to_send_at_most": 3, "cached": 2}
    tokens = ran.document["tokens"]
    assert expected["prompt_tokens"] < expected["prompt_tokens_at_most"] > tokens["prompt"]
    assert evaluate(talk, *bound).document["requests"]["sent"] == 2
    after = evaluate(talk, "--dry-run", *bound)
    assert planned(after) == {
        "requests": {"to_send": 0, "cached": 6},
        "turns": [(1, "demo", 0, 3), (2, "demo", 0, 3)],
    }
    assert [pair["state"] for pair in after.document["pairs"]] == ["cached", "cached"]
    more = evaluate(talk, "--dry-run", *bound[1:], "--set", turns_of(talk, LATER))
    assert "3 items, 3 requests to send, 6 cached" in more.out
    assert "turn 2, demo: 0 to send, 3 cached" in more.out
    assert "turn 3, demo: 3 to send, 0 cached" in more.out


def test_a_plan_with_a_simulated_user_says_at_least_and_at_most(
    talk: Path, evaluate: Any, begin: Any
) -> None:
    user = ("--set", USER.replace("STOP", "never"))
    before = evaluate(talk, "--dry-run", "--json", *user)
    assert before.document["requests"] == {"to_send": 6, "to_send_at_most": 15, "cached": 0}
    assert before.document["models"]["demo"] == {"to_send": 3, "to_send_at_most": 9, "cached": 0}
    assert before.document["users"]["user"] == {"to_send": 3, "to_send_at_most": 6, "cached": 0}
    assert before.document["expected_users"]["user"]["requests_at_most"] == 6
    said = evaluate(talk, "--dry-run", *user).out
    assert "at least 6, at most 15 requests to send" in said
    assert "user as the user: at least 3 and at most 6 requests" in said
    ran = begin("user", talk, "--json", *user)
    assert 6 <= ran.document["requests"]["sent"] <= 15, ran.err
    after = evaluate(talk, "--dry-run", "--json", *user)
    assert after.document["requests"]["to_send"] == 0
    assert "to_send_at_most" not in after.document["requests"]
    # Recorded conversations are scored as they are: nobody is asked to go on with them.
    rows = (talk.parent / "out" / "responses.jsonl").read_bytes()
    again = evaluate(talk, "--json", "--phase", "score", *user)
    assert again.document["requests"]["sent"] == 0, again.err
    assert again.value("heard,none") == ran.value("heard,none") == 6.0
    assert (talk.parent / "out" / "responses.jsonl").read_bytes() == rows


def test_scoring_asks_for_no_turn(talk: Path, evaluate: Any) -> None:
    assert evaluate(talk, "--json", "--phase", "infer").document["requests"]["sent"] == 6
    elsewhere = ("--phase", "score", "--output", talk.parent / "new")  # there is no recording
    more = ("--set", turns_of(talk, LATER))
    refused = evaluate(talk, "--json", *elsewhere, *more)
    assert (refused.code, refused.out) == (2, "")
    assert "--phase score asks no model, and demo has requests without an answer" in refused.err
    assert "asks no model, and demo has" in evaluate(talk, "--dry-run", *elsewhere, *more).out
    user = ("--set", USER.replace("STOP", "never"))
    assert "asks no model, and demo, user has" in evaluate(talk, *elsewhere, *user).err
    assert evaluate(talk, "--json", *elsewhere).value("heard,none") == 4.0


def test_a_users_endpoint_is_tried_before_anything_is_asked(talk: Path, evaluate: Any) -> None:
    nobody = "{name: user, config: {base_url: 'http://127.0.0.1:9/v1'}}"
    ran = evaluate(
        talk, "--json", "--set", USER.replace("{name: user, type: demo, config: {error_rate: 0}}", nobody)
    )
    assert ran.code == 2
    assert "http://127.0.0.1:9/v1" in ran.err
    assert not (talk.parent / "store" / "answers").exists()


@pytest.mark.services
def test_a_kill_in_turn_2_asks_nothing_of_turn_1_again(talk: Path, home: Path) -> None:
    """SIGKILL while the second turn is asked: the same command asks no more than was in flight again."""
    items = 24
    question = "Question: Tom has {} apples. He buys 3 apples. How many apples does he have now?"
    rows = [{"id": f"i{n}", "more": n + 4, "question": question.format(n)} for n in range(items)]
    (talk.parent / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serve(DemoOptions(error_rate=0, latency=0.25)) as serving:
        config = {"model": "demo", "base_url": serving.base_url, "max_concurrency": 2}
        models = json.dumps([{"name": "m", "identity": "same", "config": config}])
        command = [sys.executable, "-m", "flows.eval", str(talk), "--json", "--set", f"models={models}"]
        command += ["--store", str(talk.parent / "store"), "--output", str(talk.parent / "out")]

        def start() -> "subprocess.Popen[str]":
            return subprocess.Popen(
                command, cwd=PROJECT, env=own(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )  # fmt: skip

        killed = start()
        deadline = time.monotonic() + 120
        while serving.stats()["answered"] < items + 6 and killed.poll() is None:
            assert time.monotonic() < deadline, "the run does not get to its second turn"
            time.sleep(0.01)
        killed.send_signal(signal.SIGKILL)
        killed.communicate(timeout=30)
        before = serving.stats()
        assert killed.returncode == -signal.SIGKILL, "it was over before it was killed"
        assert items < before["answered"] < 2 * items
        out, err = start().communicate(timeout=120)
        after = serving.stats()
    document = json.loads(out)
    assert document["requests"]["failed"] == 0, err
    heard = next(row for row in document["results"] if row["metric"] == "heard")
    assert (heard["value"], heard["n_scored"]) == (4.0, items)
    assert after["received"] - before["received"] == document["requests"]["sent"]
    assert document["requests"]["sent"] <= 2 * items - before["answered"] + 2
    assert document["requests"]["cached"] >= before["answered"] - 2
    infers = [run for run in document_of(talk)["task_runs"] if run["stage"] == "infer"]
    assert [run["outcome"] for run in infers] == ["cached", "computed"]


def document_of(talk: Path) -> dict[str, Any]:
    """The manifest of the run beside the config."""
    return json.loads((talk.parent / "out" / "manifest.json").read_text())  # type: ignore[no-any-return]
