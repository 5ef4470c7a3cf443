"""Scorers end to end: judges that can't be read, calibrations, and every example config, over real HTTP."""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows.compare.__main__ import main as compare
from flows.config.load import load_config
from flows.config.schema import RunOptions
from flows.plan.build import make_plan
from flows.plan.pairs import read_calibrations
from flows.plan.steps import PairPlan
from metrics.errors import NightjarError
from scorers.judge.config import JudgeConfig
from scorers.judge.scorer import LLMJudgeScorer
from tasks.history.query import query
from tasks.store.storage import Store
from tests.flows.endpoints import chat_endpoint, says

PROJECT = Path(__file__).resolve().parents[2]
BENCHMARKS = PROJECT / "deployments" / "benchmarks"
PROBLEMS = BENCHMARKS / "demo" / "problems.jsonl"
ITEMS = 20
NONSENSE = "I would rather talk about the weather."

Evaluate = Callable[..., Any]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def last_number(text: str) -> str:
    return re.findall(r"-?\d[\d,]*", text)[-1].replace(",", "")


@dataclass
class Judge:
    """An endpoint that grades: nonsense the first time it sees a prompt that holds one of ``mumbles``."""

    mumbles: tuple[str, ...]
    base_url: str = ""
    asked: list[str] = field(default_factory=list)
    seen: int = 0
    seconds: float = 0.0

    def reply(self, prompt: str) -> str:
        time.sleep(self.seconds)
        first = prompt not in self.asked
        self.asked.append(prompt)
        if first and any(text in prompt for text in self.mumbles):
            return NONSENSE
        return self.verdict(prompt)

    def verdict(self, prompt: str) -> str:
        _, reference, response = re.split(r"Gold: |Said: ", prompt)
        return "yes" if last_number(reference) == last_number(response) else "no"

    def take_asked(self) -> list[str]:
        """The prompts since the last call."""
        taken = self.asked[self.seen :]
        self.seen += len(taken)
        return taken


@pytest.fixture
def judge() -> Iterator[Judge]:
    """A judge's server on a free port; about one in ten problems makes it mumble, and one calibration row."""
    questions = [problem["question"] for problem in lines(PROBLEMS)[:ITEMS]]
    grading = Judge((questions[3], questions[11], "calibration question 2\n"))
    with chat_endpoint(lambda body: says(grading.reply(body["messages"][-1]["content"]))) as url:
        grading.base_url = url
        yield grading


PEOPLE = [
    # What people said, and the number in the answer; the judge says "yes" where that is 4.
    {"human": human, "question": f"calibration question {place}\n", "reference": "4", "response": str(number)}
    for place, (human, number) in enumerate(
        [*[(True, 4)] * 7, (True, 5), *[(False, 5)] * 5, (False, 4)]
    )
]  # fmt: skip


def judged_config(
    folder: Path, base_url: str, people: Sequence[Mapping[str, Any]] = PEOPLE, name: str = "people.jsonl"
) -> Path:
    """A benchmark under a judge, and its calibration beside it."""
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in people))
    config = {
        "name": "judged",
        "dataset": str(PROBLEMS),
        "prompt_template": "Question: {{question}}\nAnswer:",
        "target": "{{answer}}",
        "models": [{"name": "demo", "type": "demo", "config": {"error_rate": 0.5}}],
        "metric_list": ["exact_match"],
        "scorer": {
            "type": "llm_judge",
            "judges": [{"name": "judge", "type": "openai",
                        "config": {"base_url": base_url, "model": "judge", "api": "chat"}}],
            "system_prompt": "You grade.",
            "prompt": "{{ question }} Gold: {{ reference }} Said: {{ response }}",
            "parse": {"type": "choice", "choices": {"yes": 1, "no": 0}},
            "calibration": name,
        },
    }  # fmt: skip
    path = folder / "judged.yaml"
    path.write_text(json.dumps(config))
    return path


def test_judge_that_is_not_there_is_refused_before_anything_is_asked(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    config = judged_config(tmp_path, "http://127.0.0.1:9/v1")
    ran = evaluate(config, "--limit", "2")
    assert ran.code == 2
    assert "judge" in ran.err
    assert "127.0.0.1" in ran.err
    assert evaluate(config, "--limit", "2", "--phase", "infer").code == 0


def test_judge_of_which_nothing_can_be_read_fails_its_pair(
    evaluate: Evaluate, judge: Judge, tmp_path: Path
) -> None:
    judge.mumbles = ("Gold",)
    config = json.loads(judged_config(tmp_path, judge.base_url).read_text())
    del config["scorer"]["calibration"]
    path = tmp_path / "mumbled.yaml"
    path.write_text(json.dumps(config))
    ran = evaluate(path, "--json", "--limit", "3")
    assert ran.code == 1
    graded = row_of(ran, "llm_judge")
    assert (graded["status"], graded["value"]) == ("failed", None)
    assert "no reply of llm_judge to 3 responses could be read; the first: " in graded["error"]
    assert NONSENSE in graded["error"]
    assert row_of(ran, "exact_match")["status"] == "ok"
    (run,) = query(Store(str(tmp_path / "store")), "SELECT run_id, status FROM runs").rows
    assert run == (graded["run_id"], "failed"), "the history says what the exit code said"


def test_a_grading_prompt_that_fails_on_one_models_answer_fails_its_grades_alone_in_each_run(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    with chat_endpoint(lambda body: says({"a": "4", "b": "four"}.get(body["model"], "yes"))) as url:
        config = json.loads(judged_config(tmp_path, url).read_text())
        del config["scorer"]["calibration"]
        config["models"] = [{"name": name, "config": {"base_url": url}} for name in "ab"]
        config["scorer"]["prompt"] = "Said: {{ {'4': 'four'}[response] }}"
        path = tmp_path / "judged.yaml"
        path.write_text(json.dumps(config))
        for sent in (5, 0):  # two answers of each model; equal ones are graded once
            ran = evaluate(path, "--json", "--limit", "2", "--force")
            assert (ran.code, ran.value("llm_judge,none", "a")) == (1, 1.0), ran.err
            assert ran.value("exact_match,none", "b") is not None
            assert ran.document["requests"]["sent"] == sent


def row_of(ran: Any, metric: str) -> dict[str, Any]:
    found = [row for row in ran.document["results"] if row["metric"] == metric]
    assert len(found) == 1, ran.err
    return dict(found[0])


def test_unreadable_verdicts_are_unscored_and_only_they_are_asked_again(
    evaluate: Evaluate, judge: Judge, tmp_path: Path
) -> None:
    config = judged_config(tmp_path, judge.base_url)
    arguments = (config, "--json", "--limit", str(ITEMS))
    assert evaluate(*arguments, "--dry-run").document["judges"] == {"judge": {"to_send": None, "cached": 0}}
    first = evaluate(*arguments)
    assert first.code == 0, first.err
    asked = judge.take_asked()
    assert len(asked) == len(set(asked)) == ITEMS + len(PEOPLE)
    about_items = [prompt for prompt in asked if "calibration question" not in prompt]
    mumbled = {prompt for prompt in asked if any(text in prompt for text in judge.mumbles)}
    assert len(mumbled) == 3
    readable = [judge.verdict(prompt) == "yes" for prompt in about_items if prompt not in mumbled]
    graded = row_of(first, "llm_judge")
    assert (graded["status"], graded["n_items"], graded["n_scored"], graded["n_unscored"]) == (
        "ok",
        20,
        18,
        2,
    )
    assert graded["value"] == pytest.approx(sum(readable) / 18, abs=1e-12)
    assert 0 < sum(readable) < 18
    items = pq.read_table(tmp_path / "out" / "items.parquet").to_pylist()
    values = [row["value"] for row in items if row["metric"] == "llm_judge"]
    assert (len(values), values.count(None)) == (ITEMS, 2)
    assert row_of(first, "exact_match")["n_unscored"] == 0
    # The row of the calibration that could not be read does not count: 6 of 7 right answers, 5 of 6 wrong.
    corrected_is(row_of(first, "llm_judge_corrected"), sum(readable) / 18, 6 / 7, 5 / 6)

    planned = evaluate(*arguments, "--dry-run").document
    assert planned["judges"] == {"judge": {"to_send": 3, "cached": ITEMS + len(PEOPLE)}}
    assert {pair["metric"]: pair["cached"] for pair in planned["pairs"]} == {
        "exact_match": True,
        "llm_judge": False,
        "llm_judge_corrected": False,
    }
    assert judge.take_asked() == []
    second = evaluate(*arguments)
    assert second.code == 0, second.err
    assert sorted(judge.take_asked()) == sorted(mumbled)
    assert second.document["requests"]["sent"] == 3
    verdicts = [judge.verdict(prompt) == "yes" for prompt in about_items]
    graded = row_of(second, "llm_judge")
    assert (graded["n_scored"], graded["n_unscored"]) == (ITEMS, 0)
    assert graded["value"] == pytest.approx(sum(verdicts) / ITEMS, abs=1e-12)
    corrected_is(row_of(second, "llm_judge_corrected"), sum(verdicts) / ITEMS, 7 / 8, 5 / 6)

    planned = evaluate(*arguments, "--dry-run").document
    assert planned["judges"]["judge"]["to_send"] == 0
    assert all(pair["cached"] for pair in planned["pairs"])
    third = evaluate(*arguments)
    assert judge.take_asked() == []
    assert third.document["requests"]["sent"] == 0
    assert [row["value"] for row in third.document["results"]] == [
        row["value"] for row in second.document["results"]
    ]
    assert sum(counts["computed"] for counts in third.document["steps"].values()) == 0


def test_a_judge_behind_two_filters_that_ask_the_same_counts_once(
    evaluate: Evaluate, judge: Judge, tmp_path: Path
) -> None:
    """Its two steps have one key, and go on beside each other: each took all answers for its own."""
    judge.mumbles, judge.seconds = (), 0.05
    config = json.loads(judged_config(tmp_path, judge.base_url).read_text())
    del config["scorer"]["calibration"]
    config["filter_list"] = [{"name": "one"}, {"name": "two", "filter": ["strip"]}]
    config["scorer"]["judges"][0]["config"]["max_concurrency"] = 1
    path = tmp_path / "twice.yaml"
    path.write_text(json.dumps(config))
    assert evaluate(path, "--limit", str(ITEMS)).code == 0
    assert len(judge.asked) == ITEMS
    counts = json.loads((tmp_path / "out" / "manifest.json").read_text())["judges"]["judge"]
    assert (counts["sent"], counts["cached"], counts["total_tokens"]) == (ITEMS, ITEMS, 7 * ITEMS)


def test_unreadable_verdicts_are_asked_again_beside_a_request_that_always_fails(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    questions = [problem["question"] for problem in lines(PROBLEMS)[:4]]
    judge = Judge((questions[1],))

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["messages"][-1]["content"]
        broken = questions[2] in prompt
        return says(judge.reply(prompt)) | ({"finish_reason": "network_error"} if broken else {})

    with chat_endpoint(answer) as url:
        path = judged_config(tmp_path, url)
        config = json.loads(path.read_text())
        del config["scorer"]["calibration"]
        config["scorer"]["judges"][0]["config"]["max_retries"] = 0
        path.write_text(json.dumps(config))
        asked = []
        for _ in range(4):
            ran = evaluate(path, "--json", "--limit", "4")
            prompts = judge.take_asked()
            asked.append([at for at, text in enumerate(questions) if any(text in one for one in prompts)])
            assert len(prompts) == len(asked[-1]), "nothing is asked twice in one run"
    assert asked == [[0, 1, 2, 3], [1, 2], [2], [2]]
    graded = row_of(ran, "llm_judge")
    assert (graded["n_scored"], graded["n_unscored"]) == (3, 1)


def test_unreadable_verdicts_are_asked_again_beside_another_judges_request_that_always_fails(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    questions = [problem["question"] for problem in lines(PROBLEMS)[:4]]
    judge = Judge((questions[1],))
    asked_of_broken: list[str] = []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["messages"][-1]["content"]
        if body["model"] == "judge":
            return says(judge.reply(prompt))
        asked_of_broken.append(prompt)
        broken = questions[2] in prompt
        return says("yes") | ({"finish_reason": "network_error"} if broken else {})

    with chat_endpoint(answer, ["judge", "broken"]) as url:
        path = judged_config(tmp_path, url)
        config = json.loads(path.read_text())
        del config["scorer"]["calibration"]
        (own,) = config["scorer"]["judges"]
        own["config"]["max_retries"] = 0
        broken = {**own, "name": "broken", "config": {**own["config"], "model": "broken"}}
        config["scorer"]["judges"] = [broken, own]
        path.write_text(json.dumps(config))
        asked = []
        for _ in range(3):
            ran = evaluate(path, "--json", "--limit", "4")
            prompts = judge.take_asked()
            asked.append([at for at, text in enumerate(questions) if any(text in one for one in prompts)])
    assert asked == [[0, 1, 2, 3], [1], []]
    assert sum(questions[2] in prompt for prompt in asked_of_broken) == 3
    assert row_of(ran, "llm_judge")["n_unscored"] == 1


def test_corrected_rates_are_gated(
    evaluate: Evaluate, judge: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge.mumbles = ()
    config = judged_config(tmp_path, judge.base_url, PEOPLE * 3)
    folders = {}
    for name, errors in (("good", 0.05), ("again", 0.05), ("bad", 0.6)):
        folders[name] = tmp_path / name
        models = f"models=[{{name: demo, type: demo, config: {{error_rate: {errors}}}}}]"
        ran = evaluate(config, "--json", "--limit", "60", "--set", models, "--output", folders[name])
        assert ran.code == 0, ran.err
    terms = tmp_path / "gate.yaml"
    terms.write_text('{margin: 0.05, pairs: {"llm_judge_corrected,none": {}}}')

    def gated(*names: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            compare([*(str(folders[name]) for name in names), "--gate", str(terms), "--json"])
        pairs = json.loads(capsys.readouterr().out)["pairs"]
        (pair,) = [pair for pair in pairs if pair["metric"] == "llm_judge_corrected"]
        return int(ended.value.code or 0), pair

    code, pair = gated("good", "bad")
    assert (code, pair["verdict"]) == (1, "regression")
    rows = {row["metric"]: row for row in pq.read_table(folders["good"] / "results.parquet").to_pylist()}
    assert pair["base"] == pytest.approx(rows["llm_judge_corrected"]["value"])
    assert pair["ci_low"] < pair["difference"] < pair["ci_high"] < -0.05
    assert "one calibration" in pair["warning"]
    code, pair = gated("good", "again")
    assert (code, pair["verdict"]) == (0, "pass")


def test_peoples_grades_rectify_a_judges_grades(evaluate: Evaluate, judge: Judge, tmp_path: Path) -> None:
    """The judge gives 4 and 2; people gave half a grade more, on answers of the same kind."""
    judge.mumbles = ()
    judge.verdict = lambda prompt: "4" if Judge.verdict(judge, prompt) == "yes" else "2"  # type: ignore[method-assign]
    people = [
        {**row, "human": (4.5 if row["response"] == "4" else 2.5) + (place % 2) / 2} for place, row in
        enumerate(PEOPLE * 3)
    ]  # fmt: skip
    path = judged_config(tmp_path, judge.base_url, people)
    config = json.loads(path.read_text())
    config["scorer"] |= {
        "parse": {"type": "number", "min": 1, "max": 5},
        "calibration": {"path": "people.jsonl", "method": "ppi"},
    }
    path.write_text(json.dumps(config))
    ran = evaluate(path, "--json", "--limit", "40")
    assert ran.code == 0, ran.err
    plain, rectified = row_of(ran, "llm_judge"), row_of(ran, "llm_judge_corrected")
    assert rectified["stderr_method"] == "prediction-powered inference"
    assert rectified["value"] == pytest.approx(plain["value"] + 0.75, abs=0.1)
    assert 1 <= rectified["ci_low"] < rectified["value"] < rectified["ci_high"] <= 5
    config["scorer"]["calibration"] = "people.jsonl"
    path.write_text(json.dumps(config))
    refused = evaluate(path, "--limit", "40")
    assert refused.code == 2
    assert "people.jsonl, row 1: a grade, and error rates are those of verdicts" in refused.err


def corrected_is(row: dict[str, Any], rate: float, sensitivity: float, specificity: float) -> None:
    """The corrected rate with an interval around it, which is wider than that of the judged rate alone."""
    expected = (rate + specificity - 1) / (sensitivity + specificity - 1)
    assert row["value"] == pytest.approx(min(max(expected, 0.0), 1.0), abs=1e-12)
    assert row["stderr_method"] == "calibration"
    assert row["stderr"] > (rate * (1 - rate) / row["n_items"]) ** 0.5
    assert 0 <= row["ci_low"] < row["value"] <= row["ci_high"] <= 1


def planned(
    folder: Path, people: Sequence[Mapping[str, Any]], name: str = "people.jsonl"
) -> dict[str, PairPlan]:
    """The pairs of a plan by metric, with a calibration."""
    path = judged_config(folder, "http://127.0.0.1:9/v1", people, name)
    made = make_plan(load_config(path, []), RunOptions())
    return {pair.identity.metric.name: pair for pair in made.pairs()}


GIVEN = [{"human": True, "judge": True}, {"human": False, "judge": False}, {"human": False, "judge": True}]


def test_rows_of_the_calibration_and_not_its_file_name_are_in_the_cache_key(tmp_path: Path) -> None:
    before, renamed = planned(tmp_path, GIVEN), planned(tmp_path, GIVEN, "persons.jsonl")
    changed = planned(tmp_path, [*GIVEN, GIVEN[0]])

    def same(other: Mapping[str, PairPlan]) -> dict[str, bool]:
        return {
            name: pair.aggregate.identity == other[name].aggregate.identity for name, pair in before.items()
        }

    assert same(renamed) == {"exact_match": True, "llm_judge": True, "llm_judge_corrected": True}
    assert same(changed) == {"exact_match": True, "llm_judge": False, "llm_judge_corrected": False}
    corrected = before["llm_judge_corrected"]
    assert corrected.calibration is None
    scorer = corrected.aggregate.setup.scorer()
    assert isinstance(scorer, LLMJudgeScorer)
    assert scorer.calibration is not None
    assert scorer.calibration.wrong == 2


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "people.jsonl is empty"),
        ([{"human": "perhaps", "judge": True}], "people.jsonl, row 1: human"),
        ([{"human": True, "response": "4", "question": "?"}], "people called all answers right"),
        ([{"human": True, "response": "4"}, {"human": False, "response": "5"}], "question"),
    ],
)
def test_calibration_that_cannot_work_is_refused_before_anything_is_asked(
    tmp_path: Path, rows: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(NightjarError, match=said):
        planned(tmp_path, rows)


def test_calibration_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    judge = JudgeConfig.model_validate(
        {"judges": ["j"], "prompt": "p", "calibration": "gone.jsonl",
         "parse": {"type": "choice", "choices": {"yes": 1, "no": 0}}}
    )  # fmt: skip
    with pytest.raises(NightjarError, match=r"scorer.calibration: gone.jsonl is not there"):
        read_calibrations(judge, tmp_path)


EXAMPLES = {
    "arena": {"win_rate,none", "exact_match,none"},
    "agreement": {"filter_agreement,*", "exact_match,strict-match", "exact_match,flexible-extract"},
    "ensemble": {"ensemble,flexible-extract"},
    "llm_judge": {
        "exact_match,none",
        "llm_judge,none",
        "llm_judge_agreement,none",
        "llm_judge_corrected,none",
    },
    "mathematics": {"math_match,none", "as_text,none", "exact_match,none"},
    "programs": {"tests_passed,code"},
    "reward_model": {"rouge1,none", "reward,none"},
    "user_scorer": {"steps,none", "as_many_steps,none"},
}


def test_every_example_has_its_row() -> None:
    assert {path.stem for path in (BENCHMARKS / "scorers").glob("*.yaml")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name: str, evaluate: Evaluate, request: pytest.FixtureRequest) -> None:
    if name == "programs":
        request.getfixturevalue("sandbox")
    ran = evaluate(BENCHMARKS / "scorers" / f"{name}.yaml", "--json", "--limit", "12")
    assert ran.code == 0, ran.err
    rows = {f"{row['metric']},{row['filter']}": row for row in ran.document["results"]}
    assert set(rows) >= EXAMPLES[name]
    for pair, row in rows.items():
        assert (row["status"], row["n_unscored"]) == ("ok", 0), pair
        assert row["value"] is not None, pair
    if name == "mathematics":  # of the seven the half-open interval is not the closed one
        values = [rows[f"{metric},none"]["value"] for metric in ("math_match", "as_text", "exact_match")]
        assert values == [6 / 7, 3 / 7, 0]
        assert "math-verify:0." in rows["math_match,none"]["signature"]
    if name == "llm_judge":
        corrected_is(rows["llm_judge_corrected,none"], rows["llm_judge,none"]["value"], 11 / 12, 7 / 8)


def test_pairs_that_differ_in_one_argument_are_two_of_everything(evaluate: Evaluate, tmp_path: Path) -> None:
    metrics = (
        "metric_list=[{metric: exact_match, ignore_case: true}, {metric: exact_match, ignore_case: false}]"
    )
    ran = evaluate(
        BENCHMARKS / "demo" / "gsm8k.yaml", "--json", "--limit", "4",
        "--set", metrics, "--set", "filter_list=[{name: none}]",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    names = [row["metric"] for row in ran.document["results"]]
    assert len(names) == len(set(names)) == 2
    assert all(name.startswith("exact_match") and "ignore_case" in name for name in names)
    assert ran.steps("score") == (2, 0)
    assert len(list((tmp_path / "store" / "score").glob("*.parquet"))) == 2


ACROSS = """
class AnyRight:
    across_filters = True

    def get_metrics(self, filter_name):
        return ["any_right"] if filter_name == "*" else ["right"]

    def score(self, batch, metric):
        if metric.name == "right":
            return [float(p in gold) for p, gold in zip(batch.predictions, batch.references)]
        return [
            float(any(p in gold for p in by_filter.values()))
            for by_filter, gold in zip(batch.predictions, batch.references)
        ]
"""
ACROSS_CONFIG = """
name: across
dataset: {path: items.jsonl, ground_truth: answer}
prompt_template: "{{question}}"
models: [{name: recorded, type: replay, config: {path: responses.jsonl}}]
filter_list:
  - {name: first, filter: [{function: regex, regex_pattern: "^(\\\\w+)"}, take_first]}
  - {name: last, filter: [{function: regex, regex_pattern: "(\\\\w+)$"}, take_first]}
scorer: {type: "mine.py:AnyRight"}
"""


def test_a_scorer_class_of_ones_own_looks_across_filters(evaluate: Evaluate, tmp_path: Path) -> None:
    said = ["yes no", "no yes", "no no", "yes yes", "maybe"]
    items = [{"id": str(n), "question": f"q{n}", "answer": "yes"} for n in range(len(said))]
    recorded = [{"item_id": str(n), "sample_index": 0, "response": text} for n, text in enumerate(said)]
    for name, rows in (("items.jsonl", items), ("responses.jsonl", recorded)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "mine.py").write_text(ACROSS, encoding="utf-8")
    (tmp_path / "across.yaml").write_text(ACROSS_CONFIG, encoding="utf-8")
    ran = evaluate(tmp_path / "across.yaml", "--json")
    assert ran.code == 0, ran.err
    assert ran.value("right,first") == pytest.approx(2 / 5)
    assert ran.value("right,last") == pytest.approx(2 / 5)
    assert ran.value("any_right,*") == pytest.approx(3 / 5)


TOKENS = """
import json

def tokens(references, predictions, result):
    with open({seen!r}, "a") as file:
        file.write(json.dumps([result.choices, result.token_lengths, result.byte_lengths]) + "\\n")
    return sum(result.token_lengths)
"""


def test_a_users_metric_of_likelihoods_sees_how_many_tokens_each_choice_has(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    items = [
        {"id": "a", "question": "1 + 1 =", "choices": ["2", "three", "ü"], "answer": 0},
        {"id": "b", "question": "2 + 2 =", "choices": ["5", "4"], "answer": 1},
    ]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in items), encoding="utf-8")
    (tmp_path / "mine.py").write_text(TOKENS.format(seen=str(tmp_path / "seen.jsonl")), encoding="utf-8")
    (tmp_path / "tokens.yaml").write_text(
        'name: tokens\noutput_type: multiple_choice\ndataset: items.jsonl\nprompt_template: "{{question}}"\n'
        'choices: "{{choices}}"\ntarget: "{{answer}}"\n'
        "models: [{name: demo, type: demo, config: {api: completions}}]\n"
        'metric_list: [{function: "mine.py:tokens", metric: tokens}]\n',
        encoding="utf-8",
    )
    ran = evaluate(tmp_path / "tokens.yaml", "--json")
    assert ran.code == 0, ran.err
    # The embedded server has a token a byte; a choice is asked with the space before it.
    assert ran.value("tokens,none") == pytest.approx(((2 + 6 + 3) + (2 + 2)) / 2)
    seen = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]
    assert [["2", "three", "ü"], [2, 6, 3], [1, 5, 2]] in seen


ALARMS = """
import signal

def quickly(text, right):
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        return right in text
    except Exception:
        return False
    finally:
        signal.alarm(0)

def metric(references, predictions):
    return float(quickly(predictions[0], references[0]))

def step(resps, docs):
    return [[text if quickly(text, "") else None for text in own] for own in resps]

def method(response, ground_truth, inference_result):
    return quickly(response, ground_truth)

class Scorer:
    def score(self, batch):
        return [quickly(text, right[0]) for text, right in zip(batch.predictions, batch.references)]
"""
ALARMS_CONFIG = """
name: alarms
dataset: {path: items.jsonl, ground_truth: answer}
prompt_template: "{{question}}"
target: "{{answer}}"
models: [{name: recorded, type: replay, config: {field: said}}]
filter_list:
  - {name: none, metric_list: [{metric: "mine.py:metric"}]}
  - {name: stepped, filter: [{function: "mine.py:step"}], metric_list: [exact_match]}
"""


@pytest.mark.parametrize(
    ("more", "names"),
    [
        (
            'evaluation_methods: [{name: judged, function: "mine.py:method"}]\n',
            ["metric,none", "exact_match,stepped"],
        ),
        ('scorer: {type: "mine.py:Scorer"}\n', ["exact_match,stepped"]),
    ],
)
def test_functions_that_set_alarms_may_do_so_in_a_run_without_processes(
    more: str, names: list[str], evaluate: Evaluate, tmp_path: Path
) -> None:
    """In other threads than the first Python refuses alarms, which such functions take for a wrong answer."""
    items = [{"id": str(n), "question": f"q{n}", "answer": "4", "said": "4"} for n in range(5)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in items), encoding="utf-8")
    (tmp_path / "mine.py").write_text(ALARMS, encoding="utf-8")
    (tmp_path / "alarms.yaml").write_text(ALARMS_CONFIG + more, encoding="utf-8")
    ran = evaluate(tmp_path / "alarms.yaml", "--json")
    assert ran.code == 0, ran.err
    assert [ran.value(name) for name in names] == [1.0] * len(names)
    verdicts = tmp_path / "out" / "evaluation_results.jsonl"
    assert not verdicts.exists() or all(row["passed"] for row in lines(verdicts))
