"""Which code is in which step's key, and whether the cause of a new key is named."""

import inspect
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.config.load import load_config
from flows.config.schema import RunOptions
from flows.plan.build import make_plan
from flows.plan.steps import Plan
from tasks.aggregate import aggregate
from tasks.ask import score_replies
from tasks.caching import ingredients
from tasks.filter import filter_responses
from tasks.infer import infer
from tasks.load import load
from tasks.reduce import reduce
from tasks.render import render
from tasks.score import score
from tasks.store import fingerprint
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


def files(made: dict[str, Any]) -> set[str]:
    return {name[name.index("code.") + 5 :] for name in made if "code." in name}


def with_changed(monkeypatch: pytest.MonkeyPatch, label: str) -> None:
    """Makes a file of the project look edited."""
    original = fingerprint._source

    def source(path: Path) -> Any:
        found = original(path)
        changed = path == PROJECT / label
        return replace(found, digest=digest([found.digest, "edited"])[:16]) if changed else found

    assert (PROJECT / label).is_file()
    monkeypatch.setattr(fingerprint, "_source", source)
    from tasks.caching import _stage_code

    _stage_code.cache_clear()
    monkeypatch.setattr("tasks.caching._stage_code", inspect.unwrap(_stage_code))


def changed_steps(monkeypatch: pytest.MonkeyPatch, label: str, *arguments: Any) -> set[str]:
    before = made_of(planned(*arguments))
    with_changed(monkeypatch, label)
    after = made_of(planned(*arguments))
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


def test_a_native_pairs_keys_hold_few_files() -> None:
    made = made_of(planned())
    counts = {name: len(files(entry)) for name, entry in made.items()}
    assert counts["load"] < 25
    assert counts["render"] < 25
    assert counts["infer"] < 45
    assert counts["score exact_match,strict-match"] < 30


@pytest.mark.parametrize(
    "label",
    [
        "scorers/judge/reading.py",
        "scorers/judge/scorer.py",
        "scorers/factory.py",
        "tasks/reporting/report.py",
        "tasks/reporting/progress.py",
        "tasks/models/demo/server.py",
        "tasks/models/limits.py",
        "tasks/models/answers/first.py",
        "tasks/models/echo.py",
        "tasks/running.py",
        "tasks/benchmarks/lm_eval/yaml.py",
        "tasks/benchmarks/lm_eval/benchmark.py",
        "tasks/server.py",
        "tasks/store/storage.py",
        "metrics/reductions/pass_at_k.py",
    ],
)
def test_code_that_changes_no_row_is_in_no_key(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed_steps(monkeypatch, label) == set()


EXACT = {"score exact_match,strict-match", "score exact_match,flexible-extract"}


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("metrics/text/exact_match.py", EXACT),
        ("metrics/text/bleu.py", {"score bleu,none", "aggregate bleu,none"}),
        ("scorers/filters/extraction.py", {"filter strict-match"}),
        ("scorers/filters/rewriting.py", {"filter flexible-extract"}),
        ("tasks/benchmarks/prompts.py", {"load", "render"}),
        ("tasks/models/http.py", {"infer"}),
        ("tasks/models/generation.py", {"infer"}),
    ],
)
def test_code_behind_a_step_is_in_its_key(
    label: str, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert changed_steps(monkeypatch, label) == expected


@pytest.mark.parametrize(
    ("label", "config", "override", "step"),
    [
        ("scorers/judge/scorer.py", JUDGE, None, "score llm_judge,none"),
        ("scorers/judge/reading.py", JUDGE, None, "score llm_judge,none"),
        ("tasks/benchmarks/lm_eval/benchmark.py", CASES / "answers.yaml", REMOTE, "render"),
        ("tasks/benchmarks/lm_eval/documents.py", CASES / "answers.yaml", REMOTE, "load"),
        ("tasks/models/echo.py", CASES / "lines.yaml", REMOTE, "infer"),
        ("tasks/models/openai.py", None, REMOTE.replace("/v1'", "/v1', client: openai"), "infer"),
    ],
)
def test_behind_a_seam_the_chosen_class_and_its_helpers_count(
    label: str, config: Path | None, override: str | None, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert step in changed_steps(monkeypatch, label, config, *([override] if override else []))


def test_another_class_behind_a_seam_is_another_key() -> None:
    http = made_of(planned(None, REMOTE))["infer"]
    official = made_of(planned(None, REMOTE.replace("/v1'", "/v1', client: openai")))["infer"]
    assert "tasks/models/http.py" in files(http)
    assert "tasks/models/http.py" in files(official)  # it reads statuses as the thin client does
    assert "tasks/models/openai.py" in files(official) - files(http)


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


@pytest.mark.services
def test_an_edited_file_recomputes_its_own_pairs_and_is_named(home: Path, tmp_path: Path) -> None:
    """The whole way: a copy of the project is edited between runs of the command line."""
    copy = tmp_path / "project"
    for name in ("flows", "tasks", "scorers", "metrics", "deployments"):
        shutil.copytree(PROJECT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
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
    for label in ("scorers/judge/reading.py", "tasks/reporting/progress.py", "tasks/models/demo/server.py"):
        edit(label, "EDITED = True")
    assert {step["computed"] for step in run(*evaluate)["steps"].values()} == {0}
    edit("metrics/text/exact_match.py", "EDITED = 1")
    edit("scorers/filters/rewriting.py", "def last_too(): ...")
    steps = run(*evaluate)["steps"]
    # The filters made the same predictions, and equal scores are reduced and aggregated as before.
    assert steps["filter"]["computed"] == 1
    assert 1 <= steps["score"]["computed"] <= 2
    assert steps["reduce"]["computed"] == steps["aggregate"]["computed"] == 0
    assert steps["infer"]["computed"] == steps["render"]["computed"] == 0
    said = run("flows.why", str(tmp_path / "out"), "filter flexible-extract")["steps"][0]
    assert said["differences"] == ["last_too in scorers/filters/rewriting.py changed"]
    said = run("flows.why", str(tmp_path / "out"), "strict-match × exact_match")["steps"][0]
    assert said["differences"] == ["EDITED in metrics/text/exact_match.py changed"]
