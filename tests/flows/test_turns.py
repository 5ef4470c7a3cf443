"""Conversations: each turn is asked once, whatever comes after it; metrics see the transcript."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.config.load import load_config
from metrics.errors import ConfigError
from tasks.models.demo.options import DemoOptions, Faults
from tasks.models.demo.serving import serve

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


def test_a_turn_more_asks_nothing_of_those_before(talk: Path, evaluate: Any) -> None:
    ran = evaluate(talk, "--json")
    assert ran.code == 0, (ran.err, ran.out[-3000:])
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


USER = """turns={model: {name: user, type: demo, config: {error_rate: 0}}, max_turns: 3, stop: STOP,
prompt: "Question: Eve has {{turn}} pears. She buys 1 pears. How many pears does she have now?"}"""


def test_a_simulated_user_speaks_until_it_says_the_end(talk: Path, evaluate: Any) -> None:
    ran = evaluate(talk, "--json", "--set", USER.replace("STOP", "never"))
    assert ran.code == 0, (ran.err, ran.out[-3000:])
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
        ('turns=["{{", "x"]', "line"),
        ("turns={model: nobody, prompt: x}", "'nobody' is no entry of models"),
        ('turns={model: demo, prompt: x, stop: "("}', "is no regular expression"),
    ],
)
def test_turns_that_cannot_be_are_refused(talk: Path, turns: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        load_config(talk, [turns])
