"""The planner's command line: from history, from an assumption, and the same in a dry run."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flows.power import main
from metrics.aggregation import build_aggregation
from metrics.config import StatisticsConfig
from metrics.statistics.comparison import compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.formulas import variance_components
from metrics.statistics.gate import PairSpread, decide
from tasks.history.layout import record_run
from tasks.store.schemas import ITEM_ROWS, RESULTS
from tasks.store.storage import Store

ITEMS = 200
SHARE = replace(build_aggregation("mean"), bounds=(0.0, 1.0))
PAIR = {"benchmark": "sums", "filter": "none", "metric": "exact_match", "reduction": "mean", "label": None,
        "facets": json.dumps({"model_name": "own"})}  # fmt: skip


def config(folder: Path, **keys: Any) -> Path:
    lines = (json.dumps({"question": f"{n}+1?", "answer": str(n + 1)}) + "\n" for n in range(ITEMS))
    (folder / "items.jsonl").write_text("".join(lines))
    path = folder / "sums.yaml"
    entry = {
        "name": "sums", "dataset": "items.jsonl", "prompt_template": "{{question}}", "target": "{{answer}}",
        "metric_list": ["exact_match", "bleu"], "models": [{"name": "own", "type": "demo"}],
        "prices": {"currency": "USD", "own": {"prompt": 1.0, "completion": 2.0}},
    }  # fmt: skip
    path.write_text(json.dumps(entry | keys))
    return path


def recorded(
    store: Store,
    run_id: str,
    right: Any,
    started: float,
    tally: Any = None,
    stopped: Any = None,
    model: str = "own",
    metric: str = "exact_match",
    **numbers: Any,
) -> None:
    """A run of the benchmark in the history, whose requests took 100 and 50 tokens each."""
    pair = PAIR | {"facets": json.dumps({"model_name": model}), "metric": metric}
    tally = {
        "requests": ITEMS, "sent": ITEMS, "prompt_tokens": 100 * ITEMS, "completion_tokens": 50 * ITEMS,
    } | (tally or {})  # fmt: skip
    manifest = {"run_id": run_id, "benchmark": "sums", "started": started, "models": {model: tally}}
    manifest |= {} if stopped is None else {"stopped": stopped}
    stderr = float(np.std(right, ddof=1)) / len(right) ** 0.5
    row = dict.fromkeys(RESULTS.names) | pair | {
        "run_id": run_id, "model_name": model, "value": float(np.mean(right)), "stderr": stderr,
        "stderr_method": "wilson", "n_items": len(right), "n_samples": len(right), "n_scored": len(right),
        "n_unscored": 0, "status": "ok", "higher_is_better": True,
    } | numbers  # fmt: skip
    items = [
        dict.fromkeys(ITEM_ROWS.names) | pair | {
            "item_id": f"i{n}", "item_digest": f"d{n}", "value": float(value), "statistics": [float(value)],
            "n_samples": 1, "n_scored": 1,
        } for n, value in enumerate(right)
    ]  # fmt: skip
    record_run(
        store,
        manifest,
        [pa.RecordBatch.from_pylist([row], schema=RESULTS)],
        [pa.RecordBatch.from_pylist(items, schema=ITEM_ROWS)],
    )


def planned(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments), "--json"])
    assert not ended.value.code, capsys.readouterr().err
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_without_history_a_share_of_items_is_assumed_to_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = planned(capsys, config(tmp_path), "--store", tmp_path / "store", "--differ", 0.2)
    (pair,) = found["pairs"]  # BLEU is no mean of items
    expected = PairSpread(0.0, 0.2, 1.0)
    assert (pair["pair"], pair["model"], pair["items"], pair["samples"]) == (
        "exact_match,none",
        "own",
        ITEMS,
        1,
    )
    assert pair["source"] == "assumed: 20% of the items differ"
    assert pair["decides"] == pytest.approx(expected.margin(ITEMS, 1, 0.05))
    single = pair["designs"][0]
    assert (single["samples"], single["items"]) == (1, expected.items_for(0.02, 1, 0.05))
    assert single["cost"] == {
        "requests": single["items"], "prompt_tokens": None, "completion_tokens": None, "cost": None,
    }  # fmt: skip
    assert not single["fits"]


def two_nights() -> tuple[Any, Any]:
    """Scores of two runs of a model, of which one item in ten differs."""
    rng = np.random.default_rng(1)
    first = (rng.random(ITEMS) < 0.7).astype(float)
    return first, np.where(rng.random(ITEMS) < 0.1, 1 - first, first)


def test_a_model_is_told_by_runs_of_its_own_however_many_others_ran_since(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A suite evaluates each model in a run of its own: what others ran is no history of this one."""
    store = Store(str(tmp_path / "store"))
    first, second = two_nights()
    recorded(store, "before", first, 1.0)
    recorded(store, "now", second, 2.0)
    for number in range(12):
        recorded(store, f"other-{number}", first, 3.0 + number, model="another")
    recorded(store, "failed", first, 20.0, status="failed")
    (pair,) = planned(capsys, config(tmp_path), "--store", store.uri, "--margin", 0.05)["pairs"]
    assert pair["source"] == "from 200 items of before and now"
    assert pair["designs"][0]["cost"]["prompt_tokens"]


def test_the_last_two_runs_tell_how_items_differ_and_what_a_request_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(str(tmp_path / "store"))
    first, second = two_nights()
    recorded(store, "old", 1 - first, 1.0)
    recorded(store, "before", first, 2.0)
    recorded(store, "now", second, 3.0)
    (pair,) = planned(capsys, config(tmp_path), "--store", store.uri, "--margin", 0.05)["pairs"]
    assert pair["source"] == "from 200 items of before and now"
    variance = float(np.var(second - first, ddof=1))
    assert pair["decides"] == pytest.approx(PairSpread(0.0, variance, 1.0).margin(ITEMS, 1, 0.05), rel=0.01)
    design = pair["designs"][0]
    requests = design["cost"]["requests"]
    assert requests == design["items"]
    assert (design["cost"]["prompt_tokens"], design["cost"]["completion_tokens"]) == (
        100 * requests,
        50 * requests,
    )
    assert design["cost"]["cost"] == pytest.approx(requests * (100 * 1.0 + 50 * 2.0) / 1e6)
    # Nothing says what of that more samples take away: a range, from all of it to none.
    many, one = pair["designs"][-1], pair["designs"][0]
    assert (many["samples"], one["samples"]) == (16, 1)
    assert many["fewest"] < one["items"] / 4
    assert many["items"] > one["items"] / 2


def test_a_run_that_stopped_tells_of_the_items_that_it_asked_and_is_named_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(str(tmp_path / "store"))
    rng, asked = np.random.default_rng(1), 80
    first = (rng.random(ITEMS) < 0.7).astype(float)
    second = np.where(rng.random(ITEMS) < 0.1, 1 - first, first)
    tally = {"requests": asked, "sent": asked, "prompt_tokens": 100 * asked, "completion_tokens": 50 * asked}
    stopped = {"asked_items": asked, "of_items": ITEMS, "why": "decided"}
    recorded(store, "before", first, 2.0)
    recorded(store, "now", second[:asked], 3.0, tally=tally, stopped=stopped)
    (pair,) = planned(capsys, config(tmp_path), "--store", store.uri, "--margin", 0.05)["pairs"]
    assert pair["source"] == "from 80 items of before and now (80 of 200 items, stopped: decided)"
    variance = float(np.var((second - first)[:asked], ddof=1))
    assert pair["decides"] == pytest.approx(PairSpread(0.0, variance, 1.0).margin(ITEMS, 1, 0.05), rel=0.01)
    design = pair["designs"][0]
    assert design["cost"]["prompt_tokens"] == 100 * design["cost"]["requests"]
    assert design["cost"]["requests"] == design["items"]


def test_a_sampling_variance_that_was_measured_counts_though_it_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two runs of 16 samples at temperature 0: one sample says what sixteen do."""
    store, rng = Store(str(tmp_path / "store")), np.random.default_rng(2)
    first = (rng.random(ITEMS) < 0.7).astype(float)
    second = np.where(rng.random(ITEMS) < 0.1, 1 - first, first)
    repeats = {"n_samples": 16 * ITEMS, "stderr_sampling": 0.0, "stderr_items": 0.03}
    recorded(store, "before", first, 2.0, **repeats)
    recorded(store, "now", second, 3.0, **repeats)
    sampling = {"temperature": 0, "num_samples": 16}
    path = config(tmp_path, sample_params=sampling)
    (pair,) = planned(capsys, path, "--store", store.uri, "--margin", 0.05)["pairs"]
    items = [design["items"] for design in pair["designs"]]
    variance = float(np.var(second - first, ddof=1))
    assert items[0] == pytest.approx(PairSpread(variance, 0.0, 1.0).items_for(0.05, 1, 0.05), rel=0.01)
    assert max(items) < 2 * min(items)
    assert all(design["items"] == design["fewest"] for design in pair["designs"])
    assert pair["warning"].startswith("16 samples at temperature 0 are 16 times the same request")


def test_repeats_that_are_all_the_same_do_not_promise_that_another_run_is_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(str(tmp_path / "store"))
    right = (np.random.default_rng(2).random(ITEMS) < 0.7).astype(float)
    recorded(store, "only", right, 1.0, n_samples=4 * ITEMS, stderr_sampling=0.0, stderr_items=0.03)
    (pair,) = planned(capsys, config(tmp_path), "--store", store.uri)["pairs"]
    assert pair["source"] == "assumed: 10% of the items differ; only's repeats do not"
    assert pair["decides"] == pytest.approx(PairSpread(0.0, 0.1, 1.0).margin(ITEMS, 1, 0.05))


def test_repeats_of_a_single_run_tell_what_sampling_adds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(str(tmp_path / "store"))
    means = np.linspace(0, 1, ITEMS)
    recorded(store, "only", means, 1.0, n_samples=4 * ITEMS, stderr_sampling=0.01, stderr_items=0.02)
    (pair,) = planned(capsys, config(tmp_path), "--store", store.uri)["pairs"]
    assert pair["source"] == "from the repeats of only"
    expected = PairSpread(0.0, 2 * 4 * ITEMS * 0.01**2, 1.0)
    assert pair["decides"] == pytest.approx(expected.margin(ITEMS, 1, 0.05))


def test_the_table_says_it_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(config(tmp_path)), "--store", str(tmp_path / "store"), "--margin", "0.05"])
    out = capsys.readouterr().out
    assert not ended.value.code
    assert "sums, exact_match,none, own: assumed: 10% of the items differ" in out
    assert "200 items × 1 sample can rule out losses over 0.071" in out
    assert "more than the dataset has" in out


def test_the_table_says_from_which_number_of_items_on_where_nothing_says_what_samples_take_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, sample_params={"temperature": 0.7})
    asked = (path, "--store", tmp_path / "store", "--margin", 0.05)
    one, two, *_ = planned(capsys, *asked)["pairs"][0]["designs"]
    assert two["fewest"] < two["items"]
    with pytest.raises(SystemExit):
        main([*map(str, asked)])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    cells = {row[0]: row[1:4] for row in rows if row and row[0] in ("1", "2")}
    assert cells["1"][0] == f"{one['items']:,}"
    assert cells["2"] == [f"{two['fewest']:,}", "to", f"{two['items']:,}"]


def test_a_loss_beyond_the_range_of_the_metric_is_not_spoken_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = config(tmp_path)
    more = ("--store", str(tmp_path / "store"), "--margin", "0.9", "--differ", "1", "--limit", "6")
    (pair,) = planned(capsys, few, *more)["pairs"]
    assert (pair["decides"], pair["finds"]) == (None, None)
    with pytest.raises(SystemExit):
        main([str(few), *more])
    out = capsys.readouterr().out
    assert "6 items × 1 sample can rule out no loss; to rule out 0.9:" in out
    assert "regression" not in out


def test_few_numbers_without_a_range_can_rule_out_no_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a gate over them says."""
    (tmp_path / "own.py").write_text(
        "def worth(predictions, references):\n    return [7.5 for _ in predictions]\n"
    )
    path = config(tmp_path, metric_list=["own.py:worth"])
    store = Store(str(tmp_path / "store"))
    values = np.random.default_rng(3).normal(7.5, 0.01, ITEMS)
    recorded(store, "only", values, 1.0, metric="worth")
    asked = (path, "--store", store.uri, "--margin", 0.5)
    (few,) = planned(capsys, *asked, "--limit", 49)["pairs"]
    (enough,) = planned(capsys, *asked, "--limit", 50)["pairs"]
    assert (few["decides"], few["designs"][0]["items"]) == (None, 50)
    assert enough["decides"] < 0.05
    # Zeros and ones are their own range, to a gate as well.
    recorded(store, "later", np.arange(ITEMS) % 2, 2.0, metric="worth")
    (counted,) = planned(capsys, *asked, "--limit", 39)["pairs"]
    assert counted["decides"] is not None


def test_what_is_promised_of_scores_up_to_100_is_kept_by_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two runs that differ by five points on one item in ten hide those that lose all: 200 items were said to
    rule out .5 points, and no gate over them passed one that was as good."""
    rng, store = np.random.default_rng(9), Store(str(tmp_path / "store"))

    def drawn() -> tuple[Any, Any]:
        base = 100 * rng.beta(4, 4, ITEMS)
        moved = rng.choice([-5.0, 5.0], ITEMS) * (rng.random(ITEMS) < 0.1)
        return base, np.clip(base + moved, 0, 100)

    for started, scores in enumerate(drawn()):
        recorded(store, f"run-{started}", scores, float(started), metric="rougeL")
    path = config(tmp_path, metric_list=["rougeL"])
    (pair,) = planned(capsys, path, "--store", store.uri, "--margin", 5)["pairs"]
    rouge, passed = replace(build_aggregation("mean"), bounds=(0.0, 100.0)), 0
    for _ in range(50):
        base, candidate = (ItemColumn(own, own.reshape(-1, 1)) for own in drawn())
        made = compare_items(rouge, base, candidate, None, StatisticsConfig(bootstrap_iters=400))
        passed += decide(made, pair["decides"], 0.05).verdict in ("pass", "worse")
    assert passed / 50 >= 0.7


def test_a_dry_run_says_the_same(evaluate: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path)
    dry = evaluate(path, "--dry-run", "--json").document
    (pair,) = planned(capsys, path, "--store", tmp_path / "empty")["pairs"]
    assert dry["power"] == [
        {name: pair[name] for name in ("pair", "model", "items", "samples", "decides", "source")}
    ]
    assert "200 items × 1 sample can rule out losses over" in evaluate(path, "--dry-run").out


def sized(folder: Path, capsys: pytest.CaptureFixture[str], *more: object) -> dict[str, Any]:
    path = folder / "sums.yaml"
    if not path.exists():
        config(folder)
    (pair,) = planned(capsys, path, "--store", folder / "store", "--margin", 0.05, *more)["pairs"]
    source = re.sub(r"-[0-9a-f]{32}", "", pair["source"])
    return {"source": source, "decides": pair["decides"]} | {
        "items": [design["items"] for design in pair["designs"]]
    }


def test_an_unchanged_rerun_is_the_same_run(
    evaluate: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path)
    assert evaluate(path).code == 0
    once = sized(tmp_path, capsys)
    assert once["source"].endswith("taking two runs as unrelated")
    again = evaluate(path, "--json")
    assert again.document["requests"]["sent"] == 0
    twice = sized(tmp_path, capsys)
    assert (twice["items"], twice["decides"]) == (once["items"], once["decides"])
    dry = evaluate(path, "--dry-run", "--json").document["power"]
    assert [entry["source"].endswith("unrelated") for entry in dry] == [True]


def test_a_rerun_with_more_items_or_samples_is_no_second_measurement(
    evaluate: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, sample_params={"temperature": 0.7})
    assert evaluate(path, "--limit", 150).code == 0
    assert evaluate(path).code == 0
    assert sized(tmp_path, capsys)["source"].endswith("taking two runs as unrelated")
    assert evaluate(path, "--set", "sample_params.num_samples=2").code == 0
    # The demo model's repeats are alike, which says nothing of another run.
    assert sized(tmp_path, capsys)["source"] == "assumed: 10% of the items differ; sums's repeats do not"


def test_answers_asked_anew_are_a_second_measurement_and_a_rerun_of_them_is_not_a_third(
    evaluate: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path)
    assert evaluate(path, "--run-name", "first").code == 0
    assert evaluate(path, "--run-name", "second", "--refresh", "infer").code == 0
    assert sized(tmp_path, capsys)["source"] == f"from {ITEMS} items of first and second"
    assert evaluate(path, "--run-name", "third").code == 0
    found = sized(tmp_path, capsys)
    assert found["source"] == f"from {ITEMS} items of first and third"


def test_of_a_run_that_is_partly_reused_the_items_asked_anew_count(
    evaluate: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path)
    assert evaluate(path, "--run-name", "first").code == 0
    positions = f"0-{ITEMS * 3 // 4 - 1}"
    assert evaluate(path, "--run-name", "part", "--refresh", "infer", "--samples", positions).code == 0
    assert evaluate(path, "--run-name", "whole").code == 0
    assert sized(tmp_path, capsys)["source"] == f"from {ITEMS * 3 // 4} items of first and whole"


def test_without_the_responses_the_counts_of_the_manifest_decide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(str(tmp_path / "store"))
    right = (np.random.default_rng(1).random(ITEMS) < 0.7).astype(float)
    recorded(store, "first", right, 1.0)
    recorded(store, "again", right, 2.0, tally={"sent": 0, "cached": ITEMS})
    assert sized(tmp_path, capsys)["source"] == "from again, taking two runs as unrelated"
    recorded(store, "half", right, 3.0, tally={"sent": ITEMS // 2, "cached": ITEMS // 2})
    assert sized(tmp_path, capsys)["source"] == "from half, taking two runs as unrelated"
    recorded(store, "own", right, 4.0)
    assert sized(tmp_path, capsys)["source"] == f"from {ITEMS} items of half and own"


def _answers(rng: np.random.Generator, chance: Any, samples: int, temperature: float) -> Any:
    """The mean of each item's samples: drawn one by one, or at temperature 0 one answer, of which a tenth of
    the items' are drawn anew from run to run."""
    if temperature:
        return rng.binomial(samples, chance) / samples
    anew = rng.random(len(chance)) < 0.1
    return np.where(anew, rng.random(len(chance)) < 0.5, chance > 0.4).astype(np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("samples", [1, 4, 16])
def test_planned_designs_keep_their_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], samples: int, temperature: float
) -> None:
    rng, margin, known = np.random.default_rng(100 + samples), 0.05, 4000
    chance, store = rng.beta(0.6, 0.4, known), Store(str(tmp_path / "store"))
    for started, run_id in enumerate(("before", "now"), start=1):
        means = _answers(rng, chance, samples, temperature)
        stderr = float(means.std(ddof=1)) / known**0.5
        parts = variance_components(means, np.full(known, float(samples)), stderr)
        said = {} if parts is None else {"stderr_items": parts[0], "stderr_sampling": parts[1]}
        recorded(store, run_id, means, float(started), **{"n_samples": known * samples} | said)
    file = config(tmp_path, sample_params={"num_samples": samples, "temperature": temperature})
    (pair,) = planned(capsys, file, "--store", store.uri, "--margin", margin)["pairs"]
    for design in pair["designs"]:
        if design["samples"] not in (1, 4, 16):
            continue
        if samples == 1 and temperature and design["samples"] > 1:
            assert design["fewest"] < design["items"]  # nothing has said what more samples take away
            continue
        passed = _passed(rng, design, temperature, margin)
        assert 0.75 - 0.05 <= passed <= 0.9 + 0.05, (design, passed)


def _passed(rng: np.random.Generator, design: Any, temperature: float, margin: float) -> float:
    """How often the gate passes runs of that design that are as good as each other; 300 rounds."""
    verdicts, options = [], StatisticsConfig(bootstrap_iters=1000)
    for _ in range(300):
        own = rng.beta(0.6, 0.4, design["items"])
        runs = [_answers(rng, own, design["samples"], temperature) for _ in range(2)]
        columns = [ItemColumn(run, run.reshape(-1, 1)) for run in runs]
        found = compare_items(SHARE, columns[0], columns[1], None, options)
        verdicts.append(decide(found, margin, 0.05).verdict == "pass")
    share = float(np.mean(verdicts))
    print(f"{design['samples']} samples at {temperature}: {design['items']} items pass {share:.3f}")
    return share


@pytest.mark.parametrize("counts", [(1, 8), (8, 1), (8, 2)])
def test_two_runs_of_different_sample_counts_each_count_with_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], counts: tuple[int, int]
) -> None:
    rng, known = np.random.default_rng(11), 4000
    chance = rng.random(known)
    store = Store(str(tmp_path / "store"))
    for started, samples in enumerate(counts):
        means = _answers(rng, chance, samples, 1.0)
        parts = variance_components(means, np.full(known, float(samples)), means.std(ddof=1) / known**0.5)
        said = {} if parts is None else {"stderr_items": parts[0], "stderr_sampling": parts[1]}
        recorded(store, f"run-{started}", means, float(started), **{"n_samples": known * samples} | said)
    (pair,) = planned(capsys, config(tmp_path), "--store", store.uri, "--margin", 0.05)["pairs"]
    designs = {design["samples"]: design["items"] for design in pair["designs"]}
    drawn = PairSpread(0.0, 2 * float(np.mean(chance * (1 - chance))), 1.0)
    assert designs[1] == pytest.approx(drawn.items_for(0.05, 1, 0.05), rel=0.1)
    assert designs[8] == pytest.approx(drawn.items_for(0.05, 8, 0.05), rel=0.35)
