"""Multiple choice by asking, from the config to the findings: letters in text, letters of the first token."""

import json
import math
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from flows.compare.__main__ import main as compare_main
from flows.config.load import load_config
from metrics.errors import ConfigError
from tests.flows.endpoints import chat_endpoint, says

COLOURS = ["red", "green", "blue", "grey"]
Answering = Callable[[str, dict[str, str], dict[str, Any]], Any]


class Chooser:
    """A chat endpoint that is shown choices with letters: ``answer`` says its text, or the probabilities of
    its first token, from the question, the choices by letter and the body."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.answer: Answering = lambda question, choices, body: "A"

    def choice(self, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append(body)
        prompt = body["messages"][-1]["content"]
        choices = dict(re.findall(r"^([A-Z])\. (.*)$", prompt, re.MULTILINE))
        said = self.answer(prompt.splitlines()[0], choices, body)
        if not isinstance(said, dict):
            return says(said)
        tops = [{"token": token, "logprob": math.log(p)} for token, p in said.items()]
        logprobs = {"content": [{**tops[0], "top_logprobs": tops}]}
        return {**says(tops[0]["token"]), "logprobs": logprobs, "finish_reason": "length"}


@pytest.fixture
def endpoint() -> Iterator[Chooser]:
    chooser = Chooser()
    with chat_endpoint(chooser.choice, ["m"]) as chooser.url:
        yield chooser


@pytest.fixture
def config(tmp_path: Path, endpoint: Chooser) -> Callable[..., Path]:
    """Writes a benchmark of items q0, q1 …; the right colour moves on from item to item."""

    def write(n: int = 4, name: str = "config.yaml", **keys: Any) -> Path:
        items = [{"id": f"i{i}", "question": f"q{i}", "options": COLOURS, "answer": i % 4} for i in range(n)]
        (tmp_path / "data.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
        merged = {
            "name": "colours",
            "output_type": "multiple_choice",
            "dataset": "data.jsonl",
            "prompt_template": "{{question}}\nAnswer:",
            "choices": "{{options}}",
            "target": "{{answer}}",
            "choices_by": "letter",
            "models": [{"name": "m", "config": {"base_url": endpoint.url, "max_retries": 0}}],
            **keys,
        }
        path = tmp_path / name
        path.write_text(yaml.safe_dump(merged))
        return path

    return write


def letter_of(choices: dict[str, str], wanted: str) -> str:
    return next(letter for letter, text in choices.items() if text == wanted)


def colour_of(question: str) -> str:
    return COLOURS[int(question[1:]) % 4]


def finding(ran: Any, kind: str) -> dict[str, Any]:
    (found,) = [entry for entry in ran.document["diagnostics"] if entry["kind"] == kind]
    return found


def lines_of(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.glob("samples_*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_permuted_repeats_predict_the_choice_in_its_own_place(evaluate, config, endpoint, tmp_path):
    phrases = ["{}", "The answer is ({}).", "I say \\boxed{{{}}}", "**{}**. Sure"]

    def answer(question: str, choices: dict[str, str], body: dict[str, Any]) -> str:
        number = int(question[1:])
        letter = letter_of(choices, "blue" if number == 7 else colour_of(question))
        return "I would rather not." if number == 5 else phrases[number % 4].format(letter)

    endpoint.answer = answer
    metrics = [{"metric": "acc_letter", "reduction": ["mean", "maj@4"]}]
    made = config(8, sample_params={"num_samples": 4, "seed": 1}, metric_list=metrics)
    ran = evaluate(made, "--json")
    assert ran.code == 0, ran.err
    # One of eight is not read, one is wrong: in whatever order the choices were shown.
    assert {row["reduction"]: row["value"] for row in ran.document["results"]} == {
        "mean": 6 / 8, "maj@4": 6 / 8,
    }  # fmt: skip
    samples = lines_of(tmp_path / "out")
    assert [line["filtered_resps"] for line in samples] == [
        [[None] * 4 if i == 5 else [2 if i == 7 else i % 4] * 4] for i in range(8)
    ]
    asked = [body["messages"][-1]["content"] for body in endpoint.bodies]
    assert len(set(asked)) == 32
    assert (
        "q0\n\nA. red\nB. green\nC. blue\nD. grey\n\nReply with the letter of the right choice alone."
        in asked
    )
    placed = [
        re.findall(r"^([A-D])\. grey$", text, re.MULTILINE)[0] for text in asked if text.startswith("q1\n")
    ]
    assert sorted(placed) == list("ABCD")  # each choice once at every place
    said = finding(ran, "letters_read")["message"]
    assert "alone 25 %" in said
    assert "none 12 %" in said
    assert not [entry for entry in ran.document["diagnostics"] if entry["kind"] == "position_bias"]


def test_a_models_known_letter_bias_is_found(evaluate, config, endpoint):
    draw = random.Random(3)

    def answer(question: str, choices: dict[str, str], body: dict[str, Any]) -> str:
        return "A" if draw.random() < 0.35 else letter_of(choices, draw.choice(COLOURS))

    endpoint.answer = answer
    ran = evaluate(config(60, sample_params={"num_samples": 4}), "--json")
    found = finding(ran, "position_bias")
    assert found["severity"] == "warning"
    assert re.search(r"A was chosen in [45]\d % .* where 25 % were expected", found["message"])


def test_letters_have_the_probabilities_that_the_server_gives_them(evaluate, config, endpoint):
    draw = random.Random(7)

    def answer(question: str, choices: dict[str, str], body: dict[str, Any]) -> str:
        wrong = COLOURS[(int(question[1:]) + 1) % 4]
        return letter_of(choices, colour_of(question) if draw.random() < 0.6 else wrong)

    endpoint.answer = answer
    ran = evaluate(config(100, sample_params={"num_samples": 4}), "--json")
    (row,) = ran.document["results"]
    assert abs(row["value"] - 0.6) < 3 * math.sqrt(0.6 * 0.4 / 400)
    assert row["metric"] == "acc_letter"


def test_first_tokens_are_renormalised_and_unscored_below_their_coverage(
    evaluate, config, endpoint, tmp_path
):
    def answer(question: str, choices: dict[str, str], body: dict[str, Any]) -> dict[str, float]:
        assert (body["max_tokens"], body["logprobs"], body["top_logprobs"]) == (1, True, 20)
        right = letter_of(choices, colour_of(question))
        others = [letter for letter in choices if letter != right]
        if question == "q3":
            return {"<think>": 0.9, right: 0.06, others[0]: 0.04}
        # The letter with and without a blank is one answer, and outweighs the likeliest token.
        return {others[0]: 0.3, right: 0.2, f" {right}": 0.25, "The": 0.2}

    endpoint.answer = answer
    ran = evaluate(config(4, choices_by="first_token"), "--json")
    assert ran.code == 0, ran.err
    (row,) = ran.document["results"]
    assert (row["value"], row["n_scored"], row["n_unscored"], row["n_cut_off"]) == (1.0, 3, 1, 0)
    table = pq.read_table(tmp_path / "out/results.parquet").to_pylist()
    assert table[0]["metric"] == "acc_letter"
    reason = finding(ran, "unscored")["examples"][0]["text"]
    assert "0.100 at the first token, below 0.5" in reason
    said = finding(ran, "letters_read")["message"]
    assert "cover" in said
    assert "10 %" in said
    again = evaluate(config(4, choices_by={"ask": "first_token", "coverage": 0.05}), "--json")
    assert (again.document["requests"]["sent"], again.document["results"][0]["n_unscored"]) == (0, 0)


def test_first_tokens_equal_the_renormalised_likelihoods_of_the_letters(evaluate, tmp_path):
    """The embedded server's model over bytes, asked both ways: as a chat for its first token, and for the
    log-likelihoods of the letters behind the same text."""
    items = [
        {"id": f"i{i}", "question": f"Is {i} odd?", "options": ["yes", "no"], "answer": (i + 1) % 2}
        for i in range(6)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    ending = "{{ question }}\nA. {{ choices[0] }}\nB. {{ choices[1] }}\n"
    common = {
        "dataset": "data.jsonl", "output_type": "multiple_choice", "target": "{{answer}}",
    }  # fmt: skip
    asked = {
        **common, "name": "asked", "prompt_template": "{{question}}", "choices": "{{options}}",
        "choices_by": {"ask": "first_token", "template": ending, "coverage": 0},
        "models": [{"name": "demo", "type": "demo", "config": {"api": "chat"}}],
    }  # fmt: skip
    likely = {
        **common, "name": "likely", "prompt_template": "{{question}}\nA. {{options[0]}}\nB. {{options[1]}}\n",
        "choices": ["A", "B"], "target_delimiter": "",
        "models": [{"name": "demo", "type": "demo", "config": {"api": "completions"}}],
    }  # fmt: skip
    found = []
    for name, keys in (("asked", asked), ("likely", likely)):
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(keys))
        ran = evaluate(path, "--output", tmp_path / name, "--json")
        assert ran.code == 0, ran.err
        found.append(lines_of(tmp_path / name))
    shares = probabilities_in(tmp_path / "store")
    for first, both in zip(*found, strict=True):
        lls = [float(entry[0][0]) for entry in both["resps"]]
        total = math.fsum(map(math.exp, lls))
        expected = [math.exp(value) / total for value in lls]
        assert shares.pop(f"i{first['doc_id']}") == pytest.approx(expected, abs=1e-4)
        assert first["filtered_resps"] == [expected.index(max(expected))]
    assert not shares


def probabilities_in(store: Path) -> dict[str, list[float]]:
    """What each letter has of the first token, by item: in the details of the scores in a store."""
    found = {}
    for path in store.rglob("*.parquet"):
        if "details_json" in pq.read_schema(path).names:
            for row in pq.read_table(path, columns=["item_id", "details_json"]).to_pylist():
                details = json.loads(row["details_json"] or "{}")
                if "probabilities" in details:
                    found[row["item_id"]] = details["probabilities"]
    return found


HARNESS = """
task: colours_harness
dataset_path: json
dataset_kwargs: {data_files: {test: data.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}\\nAnswer:"
doc_to_target: answer
doc_to_choice: options
num_fewshot: 1
fewshot_split: test
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}, {metric: acc_norm}]
"""


def test_a_harness_benchmark_is_asked_by_letters_on_a_chat_endpoint(evaluate, config, endpoint, tmp_path):
    endpoint.answer = lambda question, choices, body: letter_of(choices, "blue")
    config(4)
    path = tmp_path / "harness.yaml"
    path.write_text(HARNESS)
    models = json.dumps([{"name": "m", "config": {"base_url": endpoint.url}}])
    ran = evaluate(
        path, "--set", f"models={models}", "--set", "choices_by=letter", "--set",
        "sample_params.num_samples=2", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert [(row["metric"], row["value"], row["n_samples"]) for row in ran.document["results"]] == [
        ("acc_letter", 0.25, 8)
    ]
    example, answered, question = endpoint.bodies[0]["messages"]
    assert re.fullmatch(r"q\d\nA\. red\nB\. green\nC\. blue\nD\. grey\nAnswer:", example["content"])
    assert answered == {"role": "assistant", "content": "ABCD"[int(example["content"][1])]}
    assert question["content"].endswith("Reply with the letter of the right choice alone.")


def test_letters_and_likelihoods_are_not_compared_without_a_word(
    evaluate, config, endpoint, tmp_path, capsys
):
    endpoint.answer = lambda question, choices, body: "A"
    assert evaluate(config(), "--output", tmp_path / "letters").code == 0
    models = [{"name": "m", "type": "demo", "config": {"api": "completions"}}]
    likely = config(name="likely.yaml", choices_by="likelihood", models=models)
    assert evaluate(likely, "--output", tmp_path / "likely").code == 0
    gate = tmp_path / "gate.yaml"
    gate.write_text("margin: 0.05\n")
    with pytest.raises(SystemExit):
        compare_main([str(tmp_path / "likely"), str(tmp_path / "letters"), "--gate", str(gate)])
    said = capsys.readouterr()
    assert "acc_letter is another number than acc" in " ".join((said.out + said.err).split())


REFUSED = [
    ({"metric_list": ["acc"]}, "another number than those of likelihoods"),
    ({"output_type": "generate_until", "choices": None}, "belongs to output_type multiple_choice"),
    ({"choices_by": None, "metric_list": ["acc_letter"]}, "add choices_by: letter"),
    ({"scorer": {"type": "agreement"}}, "have the metric acc_letter alone"),
    ({"filter_list": [{"name": "low", "filter": [{"function": "lowercase"}]}]}, "works on text"),
    ({"choices_by": "letters"}, "expected one of likelihood, letter, first_token"),
    (
        {"messages": [{"role": "user", "content": "{{question}}"}], "prompt_template": None},
        "messages: choices_by: letter shows the choices below a prompt of text; use prompt_template, or list "
        "the choices in messages under output_type generate_until",
    ),
    ({"turns": ["sure?"]}, "turns: choices_by: letter shows the choices below a prompt of text, and has no"),
    ({"evaluation_methods": [{"name": "exact_match"}]}, "evaluation_methods: would get the letter"),
]


@pytest.mark.parametrize(("keys", "said"), REFUSED)
def test_what_does_not_go_with_letters_is_refused(config, keys, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_config(config(**keys))
