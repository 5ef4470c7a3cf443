"""Nights made without asking anything: judged and recorded one after the other."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from flows.suite.judging import JudgedNight, judge_night
from flows.suite.plan import SuiteOptions, load_suite, plan_night
from flows.suite.telling import begin
from tasks.history.layout import record_run
from tasks.history.nights import NightEvaluation, record_night
from tasks.store.schemas import ITEM_ROWS, RESULTS
from tasks.store.storage import Store

Judge = Callable[..., JudgedNight]
DONE = (NightEvaluation(name="sums", run_id="run-0", ok=True),)
"""The evaluations of a night that did what it was to do."""
BENCHMARK = {
    "name": "sums", "output_type": "generate_until", "dataset": "items.jsonl", "target": "{{answer}}",
    "prompt_template": "{{question}}", "metric_list": ["exact_match"],
    "models": [{"name": "own", "type": "demo"}],
}  # fmt: skip
PAIR = {"benchmark": "sums", "filter": "none", "metric": "exact_match", "reduction": "mean", "label": None,
        "facets": json.dumps({"model_name": "own"})}  # fmt: skip


def suite_file(folder: Path, items: int = 5, **keys: Any) -> Path:
    """A suite on one benchmark."""
    rows = ({"id": str(n), "question": f"{n}+1?", "answer": str(n + 1)} for n in range(items))
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "sums.yaml").write_text(json.dumps(BENCHMARK | keys.pop("benchmark", {})))
    path = folder / "suite.yaml"
    path.write_text(json.dumps({"name": "night", "benchmarks": ["sums.yaml"], **keys}))
    return path


def recorded_suite(folder: Path, items: int, **gate: Any) -> Path:
    """A suite on recorded answers: whatever takes long in its nights is Prefect's."""
    recorded = {"name": "recorded", "type": "replay", "config": {"path": "said.jsonl"}}
    return suite_file(folder, items, benchmark={"models": [recorded]}, gate=gate)


def record_answers(folder: Path, items: int, wrong: int) -> None:
    """Records a night's answers, the first ones wrong."""
    rows = (
        {"item_id": str(n), "sample_index": 0, "response": "?" if n < wrong else str(n + 1)}
        for n in range(items)
    )
    (folder / "said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def judge_in(tmp_path: Path) -> Judge:
    """Judges and records nights one after the other: ``night(right answers, of, gate…)``. ``failed`` says
    why there are no scores, ``refused`` is a night whose evaluation left nothing, ``limit`` and ``against``
    one by hand."""
    count = 0

    def judged(
        wrong: Sequence[int] = (),
        of: int = 1000,
        sent: int = 5,
        ok: bool = True,
        model: str = "demo",
        baseline: str = "last-passed",
        metric: str = "exact_match",
        failed: str | None = None,
        refused: bool = False,
        name: str = "night",
        benchmark: str = "sums",
        empty: Sequence[int] = (),
        limit: int | None = None,
        against: str | None = None,
        **gate: Any,
    ) -> JudgedNight:
        nonlocal count
        count += 1
        planned = plan_night(
            load_suite(
                suite_file(tmp_path, name=name, benchmark={"name": benchmark}, gate=gate, baseline=baseline)
            ),
            SuiteOptions(
                store=str(tmp_path / "store"), output=str(tmp_path / "out"), limit=limit, baseline=against
            ),
            f"{count:032}",
        )
        run_id, evaluated = str(planned.evaluations[0].options.run_id), planned.evaluations[0].name
        of = 0 if failed else min(of, limit or of)
        values = [0.0 if item in set(wrong) else 1.0 for item in range(of)]
        pair = PAIR | {"benchmark": benchmark, "metric": metric}
        items = pa.Table.from_pylist(
            [
                pair | {"item_id": f"q{n}", "item_digest": f"q{n}", "value": value, "statistics": [value],
                        "n_samples": 1, "n_scored": 1, "n_empty": int(n in set(empty)), "n_cut_off": 0,
                        "n_refused": 0}
                for n, value in enumerate(values)
            ],
            schema=ITEM_ROWS,
        )  # fmt: skip
        result = pair | {"status": "failed" if failed else "ok", "error": failed,
                         "signature": None if failed else f"{metric}|agg:mean", "higher_is_better": True,
                         "value": None if failed else sum(values) / of,
                         "n_items": of, "n_samples": of, "n_scored": of, "n_unscored": 0}  # fmt: skip
        manifest = {
            "run_id": run_id, "benchmark": benchmark,
            "artifacts": {"filter": [{"kind": "filter", "key": "k", "digest": str(sorted(wrong))}]},
            "models": {"own": {"sent": sent, "cached": of - sent}},
            "config": {"models": [{"name": "own", "type": model}]},
        }  # fmt: skip
        results = pa.Table.from_pylist([result], schema=RESULTS)
        if not refused:
            record_run(Store(planned.store), manifest, [results], [items])
        begun, ok = begin(planned), ok and not (failed or refused)
        found = judge_night(planned, (NightEvaluation(name=evaluated, run_id=run_id, ok=ok),), begun)
        record_night(Store(planned.store), found.night)
        return found

    return judged
