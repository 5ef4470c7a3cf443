"""Which code is in which step's key, and whether the cause of a new key is named."""

import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.config.load import load_config
from flows.config.schema import RunOptions
from flows.plan.build import make_plan
from flows.plan.steps import Plan
from tasks.ask import score_replies
from tasks.caching import ingredients
from tasks.filter import filter_responses
from tasks.infer import infer
from tasks.load import load
from tasks.reduce import aggregate, reduce
from tasks.render import render
from tasks.score import score
from tasks.store.keys import digest
from tasks.store.reasons import Reason, Subject, differences, flat
from tasks.store.storage import Store

PROJECT = Path(__file__).resolve().parents[2]
CASES = PROJECT / "tests" / "tasks" / "benchmarks" / "lm_eval" / "cases"
JUDGE = PROJECT / "deployments" / "benchmarks" / "scorers" / "llm_judge.yaml"
REMOTE = "models=[{name: m, config: {model: m, base_url: 'http://localhost:1/v1'}}]"
Made = dict[str, dict[str, Any]]


def made_of(plan: Plan) -> Made:
    """What the key of every step of a plan is made of, beside its inputs."""
    found = {"load": _made(load, plan.load), "infer": _made(infer, next(iter(plan.models.values())))}
    found |= {"render": _made(render, next(iter(plan.prompts.values())))}
    for entry in plan.filters:
        found[f"filter {entry.name}"] = _made(filter_responses, entry.step)
        for pair in entry.pairs:
            found[f"score {pair.name}"] = _made(score if pair.asks is None else score_replies, pair.score)
            found[f"reduce {pair.name}"] = _made(reduce, pair.reduce)
            found[f"aggregate {pair.name}"] = _made(aggregate, pair.aggregate)
    return found


def _made(task: Any, step: Any) -> dict[str, Any]:
    return flat(ingredients(task.name, inspect.unwrap(task.fn), {"step": step}))


def planned(config: Path | None = None, *overrides: str) -> Plan:
    return make_plan(load_config(config, overrides), RunOptions())


def packages(made: dict[str, Any]) -> set[str]:
    return {name.removeprefix("code.") for name in made if name.startswith("code.")}


def test_every_key_holds_the_packages_behind_its_stage() -> None:
    made = made_of(planned())
    assert {"metrics", "metrics.text", "scorers", "tasks.score"} <= packages(made["score bleu,none"])
    assert "tasks.models" not in packages(made["score bleu,none"])
    assert {"tasks.models", "tasks.infer"} <= packages(made["infer"])
    assert not [name for entry in made.values() for name in packages(entry) if name.startswith("flows")]


def test_a_metric_of_the_program_has_no_sources_of_its_own() -> None:
    made = made_of(planned(JUDGE))
    assert not [name for entry in made.values() for name in entry if ".code." in name]


def test_every_provider_is_in_the_keys_of_answers_whichever_is_asked() -> None:
    reached = packages(made_of(planned())["infer"])
    assert {"tasks.models", "tasks.models.providers", "tasks.models.providers.openai"} <= reached


def test_a_provider_in_a_users_file_is_in_the_key_of_its_answers(tmp_path: Path) -> None:
    code = """
from metrics.config import Strict
from tasks.models.providers.provider import RecordedProvider

class Mine(RecordedProvider[Strict]):
    schema = Strict
    def facts(self):
        return {}
    def responses(self, requests, options):
        raise NotImplementedError("VERSION")
"""
    mine = f"models=[{{name: m, type: '{tmp_path}/mine.py:Mine'}}]"
    made = []
    for version in ("1", "2"):
        (tmp_path / "mine.py").write_text(code.replace("VERSION", version * int(version)))
        made.append(made_of(planned(None, mine))["infer"])
    assert {name for name in made[0] if made[0][name] != made[1].get(name)} == {"step.provider.mine.py"}


FACTORY = """
class Scorer:
    def get_metrics(self, filter_name): return ["own"]
    def score(self, batch): return [1.0 for _ in batch.predictions]
class Corpus:
    def __init__(self, n): self.n = n
    def __call__(self, references, predictions): return self.n
    def aggregation(self, values): return self.n
def of(n):
    return lambda *given, **named: n
def corpus(n):
    class Made(Corpus):
        def __init__(self): super().__init__(n)
    return Made
"""
NAMED = """
from functools import partial
from factory import Corpus, Scorer, corpus, of
one, two = of(1), of(2)
part, other_part = partial(of(1)), partial(of(2))
whole, other_whole = Corpus(1), Corpus(2)
made, other_made = corpus(1), corpus(2)
"""


def identities(folder: Path, name: str, override: str) -> dict[str, str]:
    """What is in the keys of each stage of a config that names something of ``named.py``."""
    plan = planned(None, override.replace("NAME", f"'{folder}/named.py:{name}'"))
    (pair,) = plan.filters[-1].pairs[-1:]
    steps = (plan.filters[-1].step, pair.score, pair.reduce, pair.aggregate)
    return {
        name: digest(step.identity)
        for name, step in zip(("filter", "score", "reduce", "aggregate"), steps, strict=True)
    }


METRIC = "filter_list=[{name: none, filter: [], metric_list: [{metric: NAME, alias: m}]}]"
STEP = "filter_list=[{name: none, filter: [{function: NAME}], metric_list: [{metric: exact_match}]}]"
REDUCTION = "filter_list=[{name: none, filter: [], metric_list: [{metric: exact_match, reduction: [NAME]}]}]"
AGGREGATION = (
    "filter_list=[{name: none, filter: [], metric_list: [{metric: exact_match, aggregation: NAME}]}]"
)


@pytest.mark.parametrize(
    ("override", "stages", "names"),
    [
        (METRIC, {"score"}, ("one", "two")),
        (METRIC, {"score"}, ("part", "other_part")),
        (METRIC, {"score", "aggregate"}, ("whole", "other_whole")),
        (METRIC, {"score", "aggregate"}, ("made", "other_made")),
        (STEP, {"filter"}, ("one", "two")),
        (REDUCTION, {"reduce"}, ("one", "two")),
        (AGGREGATION, {"aggregate"}, ("one", "two")),
        ("scorer={type: NAME}", {"score"}, ("Scorer",)),
    ],
)
def test_the_file_that_a_config_names_is_in_the_key_wherever_its_function_was_made(
    override: str, stages: set[str], names: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "factory.py").write_text(FACTORY)
    (tmp_path / "named.py").write_text(NAMED)
    before = [identities(tmp_path, name, override) for name in names]
    (tmp_path / "named.py").write_text(f"{NAMED}# edited\n")
    after = [identities(tmp_path, name, override) for name in names]
    for stage in stages:
        found = [entry[stage] for entry in (*before, *after)]
        assert len(set(found)) == len(found), f"{stage}: an edit, or another name, has the same key"


@pytest.mark.parametrize(
    ("override", "step", "cause"),
    [
        ("prompt_template=Say {{question}}", "render", "prompt_template changed"),
        ("target='{{answer}}!'", "render", "target changed from '{{answer}}' to '{{answer}}!'"),
        ("fewshot={num: 1}", "render", "fewshot changed"),
        ("system_prompt=Be brief", "render", "system_prompt changed from None to 'Be brief'"),
        ("models.0.config={error_rate: 0.5}", "infer", "model.error_rate changed from 0.2 to 0.5"),
        ("sample_params.temperature=0.5", "infer", "sampling.temperature changed from 0.0 to 0.5"),
        ("sample_params.max_tokens=17", "infer", "sampling.max_tokens changed from 256 to 17"),
        ("sample_params.seed=3", "infer", "seed changed from None to 3"),
        ("sample_params.num_samples=2", "infer", "samples changed from 1 to 2"),
        ("models.0.sample_params={top_p: 0.5}", "infer", "sampling.top_p is new"),
        ("cluster=question", "load", "dataset changed"),
        ("filter_list.0.filter.0.group_select=1", "filter strict-match", "steps.0.group_select is new"),
        (
            "filter_list.0.metric_list.0.ignore_numbers=true",
            "score exact_match,strict-match",
            "arguments.ignore_numbers is new",
        ),
        ("facets=[model_name]", "reduce bleu,none", "facets"),
        ("filter_list.0.metric_list.0.reduction=[max]", "reduce exact_match,strict-match", "reductions.0"),
        ("statistics.seed=5", "aggregate bleu,none", "statistics.seed changed from 0 to 5"),
        ("statistics.ci_level=0.9", "aggregate bleu,none", "statistics.ci_level changed from 0.95 to 0.9"),
        ("name=another", "reduce bleu,none", "benchmark changed from 'demo_gsm8k' to 'another'"),
    ],
)
def test_the_cause_is_named_for_every_field(override: str, step: str, cause: str, tmp_path: Path) -> None:
    before, after = made_of(planned())[step], made_of(planned(None, override))[step]
    said = differences(Store(str(tmp_path)), reason(before), reason(after))
    assert said[0].startswith(cause) or any(entry.startswith(cause) for entry in said), said


def reason(made: dict[str, Any]) -> Reason:
    return Reason(Subject("b", "s", "step"), digest(made), "run", "now", made, {})


def test_secrets_and_texts_are_kept_as_digests_only() -> None:
    given = {
        "model": {"extra_body": {"password": "hunter2"}, "headers": {"x": "sk-123"}, "api_key_env": "KEY"},
        "prompt": "A very long prompt that nobody wants to read in a message about caches.",
        "rows": [{"question": "q" * 200}] * 3,
    }
    text = json.dumps(flat(given))
    assert not [secret for secret in ("hunter2", "sk-123", "KEY", "very long", "qqq") if secret in text]


READ = "return self.parsed(text, text_or_none(reasoning), calls)"
"""What a reply's text becomes: kept replies are read anew where that was edited, and nobody is asked."""


@pytest.mark.services
def test_an_edited_package_recomputes_what_reaches_it_asks_nothing_and_is_named(
    home: Path, tmp_path: Path
) -> None:
    """The whole way: a copy of the project is edited between runs of the command line."""
    copy = tmp_path / "project"
    for name in ("flows", "tasks", "scorers", "metrics", "deployments"):
        shutil.copytree(PROJECT / name, copy / name)  # with what is compiled
    shutil.copy(PROJECT / "pyproject.toml", copy)

    def run(*arguments: str) -> dict[str, Any]:
        command = [sys.executable, "-m", *arguments, "--json"]
        environment = {
            "NIGHTJAR_HOME": str(home),
            "NIGHTJAR_STORE": str(tmp_path / "store"),
            "PATH": "/usr/bin:/bin",
        }
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=180
        )
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def edit(label: str, definition: str) -> None:
        path = copy / label
        path.write_text(f"{path.read_text()}\n\n{definition}\n")

    evaluate = ("flows.eval", "--limit", "4", "--output", str(tmp_path / "out"))
    run(*evaluate)
    for label in ("flows/eval/flow.py", "tasks/reporting/progress.py"):
        edit(label, "EDITED = True")
    assert {step["computed"] for step in run(*evaluate)["steps"].values()} == {0}
    edit("metrics/text/exact_match.py", "EDITED = 1")
    steps = run(*evaluate)["steps"]
    assert {step["cached"] for step in steps.values()} == {0}
    said = run("flows.why", str(tmp_path / "out"), "strict-match × exact_match")["steps"][0]
    assert said["differences"] == ["exact_match.py in metrics.text changed"]
    edit("tasks/models/http.py", "EDITED = 1")
    document = run(*evaluate)
    steps = document["steps"]
    assert (steps["infer"]["computed"], document["requests"]["sent"]) == (1, 0)
    # The same responses are filtered, scored and reduced as before.
    assert {name: step["computed"] for name, step in steps.items() if step["computed"]} == {"infer": 1}
    assert exact_matches(document) != {0.0}
    decoder = copy / "tasks/models/providers/openai/generation.py"
    assert READ in decoder.read_text()
    decoder.write_text(decoder.read_text().replace(READ, 'return self.parsed("NOTHING", None, calls)'))
    document = run(*evaluate)
    assert (document["steps"]["infer"]["computed"], document["requests"]["sent"]) == (1, 0)
    assert exact_matches(document) == {0.0}


def exact_matches(document: dict[str, Any]) -> set[float]:
    return {row["value"] for row in document["results"] if row["metric"] == "exact_match"}
