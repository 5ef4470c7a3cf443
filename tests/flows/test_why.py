"""``flows.why`` says first, in a few lines, what became of a run's steps."""

import shutil
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from flows.why import REASONS, app, step_line, summary_lines
from tasks.history.layout import record_run
from tasks.store.reasons import Reason, Subject, keep_reason
from tasks.store.schemas import ITEM_ROWS, RESULTS
from tasks.store.storage import Store


def test_a_thousand_steps_are_a_few_lines_with_counts_and_reasons() -> None:
    steps = [
        {"stage": "score", "outcome": "cached" if n % 4 else "computed", "differences": [f"reason {n % 8}"]}
        for n in range(1000)
    ]
    steps.append({"stage": "publish", "outcome": "computed", "differences": ["computed for the first time"]})
    lines = list(summary_lines(steps))
    assert lines[0] == "score: 250 computed, 750 cached"
    assert len(lines) == REASONS + 5
    assert "publish: 1 computed" in lines
    assert "1,001 steps" in lines[-1]


def test_a_step_and_all_steps_are_not_asked_for_at_once() -> None:
    told = CliRunner().invoke(app, ["run", "score", "--all"])
    assert "--all lists the steps of a whole run" in str(told.exception)


@pytest.mark.parametrize(
    ("step", "line"),
    [
        ("infer a", "cached    infer a (plain): unchanged"),
        ("infer a · plain", "cached    infer a · plain: unchanged"),
        ("filter none", "cached    filter none (a · plain): unchanged"),
    ],
)
def test_a_line_names_model_and_prompt_once(step: str, line: str) -> None:
    entry = {"outcome": "cached", "step": step, "model_name": "a", "prompt_template": "plain"}
    assert step_line({**entry, "differences": ["unchanged"]}) == line


@pytest.mark.parametrize(
    ("named", "is_copied"),
    [("monday", True), ("out", True), ("out", False)],
)
def test_a_run_is_explained_by_the_store_that_knows_it_or_else_by_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, is_copied: bool
) -> None:
    own, meant = Store(str(tmp_path / "own")), Store(str(tmp_path / "meant"))
    subject = Subject("sums", "score", "score m")
    for key in "ab":
        keep_reason(own, Reason(subject, key * 32, "monday", key, {"limit": ord(key)}, {}))
    step = {"stage": "score", "step": "score m", "key": "b" * 32, "outcome": "computed", "why": "unknown"}
    manifest = {"run_id": "monday", "store": own.uri, "task_runs": [step]}
    empty = [RESULTS.empty_table()], [ITEM_ROWS.empty_table()]
    record_run(own, manifest, *empty)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_bytes(orjson.dumps(manifest))
    if is_copied:
        shutil.move(tmp_path / "own", tmp_path / "meant")
    else:
        record_run(meant, manifest | {"run_id": "another"}, *empty)
    monkeypatch.setenv("NIGHTJAR_STORE", meant.uri)
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, [named, "score"])
    assert "limit changed from 97 to 98" in told.stdout
    assert "compared with run monday (a)" in told.stdout
