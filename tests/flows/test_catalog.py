import json
import subprocess
import sys
from collections import Counter
from contextlib import redirect_stdout
from io import StringIO

import pytest

from flows.catalog import LISTINGS, catalog, print_entries
from metrics.registry import AGGREGATIONS, METRICS, REDUCTIONS
from scorers.config import SCORER_CONFIGS
from scorers.filters import FILTERS
from scorers.metric_lists import SCORER_METRICS
from tasks.models.registry import schemas


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows.catalog", *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("metrics", METRICS),
        ("metrics", SCORER_METRICS),
        ("aggregations", AGGREGATIONS),
        ("reductions", REDUCTIONS),
        ("filters", FILTERS),
        ("scorers", SCORER_CONFIGS),
        ("models", schemas()),
    ],
)
def test_every_registered_name_is_listed(kind: str, names: object) -> None:
    assert set(names) <= {entry.name for entry in catalog(kind)}  # type: ignore[call-overload]


def test_no_meaning_ends_within_a_sentence() -> None:
    cut = [
        (entry.kind, entry.name) for entry in catalog() if entry.meaning and entry.meaning[-1] not in ".:!?"
    ]
    assert cut == []


@pytest.mark.parametrize("kind", ["metrics", "aggregations", "reductions"])
def test_range_direction_meaning_and_source_are_given(kind: str) -> None:
    lacking = [
        entry.name
        for entry in catalog(kind)
        if not (entry.range and entry.direction and entry.meaning and entry.source)
    ]
    assert lacking == []


@pytest.mark.parametrize("kind", LISTINGS)
def test_every_entry_says_what_it_is(kind: str) -> None:
    assert [entry.name for entry in catalog(kind) if not entry.meaning] == []


def test_a_metric_has_its_range_direction_and_default() -> None:
    (bleu,) = [entry for entry in catalog("metrics") if entry.name == "bleu"]
    assert (bleu.range, bleu.direction) == ("0 to 100", "higher is better")
    assert bleu.default.startswith("aggregation bleu")


def test_an_aggregation_of_a_metrics_own_scale_has_that_range() -> None:
    spans = {entry.name: entry.range for entry in catalog("metrics")}
    for entry in catalog("aggregations"):
        if entry.name in spans and not entry.name.endswith("perplexity"):  # 1 for text, 0 for any numbers
            assert entry.range == spans[entry.name] or entry.name == "bypass"


def test_the_command_prints_one_kind_as_a_table_with_whole_names() -> None:
    done = run("reductions")
    assert done.returncode == 0
    assert all(name in done.stdout for name in REDUCTIONS)
    assert "Chen et al. 2021" in done.stdout


@pytest.mark.parametrize("width", [30, 60, 100, 400])
def test_texts_are_whole_at_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.catalog.WIDTH", width)
    entries = catalog("aggregations")
    with redirect_stdout(StringIO()) as printed:
        print_entries("aggregations", entries)
    letters = Counter("".join(printed.getvalue().split()))
    due = Counter("".join(f"{entry.name}{entry.meaning}{entry.source}" for entry in entries).replace(" ", ""))
    assert not due - letters
    assert "…" not in printed.getvalue()


def test_a_meaning_does_not_end_at_the_first_line_of_a_docstring() -> None:
    cut = [
        (kind, entry.name)
        for kind in ("scorers", "models", "evaluation_methods")
        for entry in catalog(kind)
        if not entry.meaning.rstrip().endswith((".", ":", ")"))
    ]
    assert cut == []


def test_the_command_prints_json_and_takes_other_spellings() -> None:
    entries = json.loads(run("Model-Types", "--json").stdout)
    assert {entry["name"] for entry in entries} == set(schemas())


def test_an_unknown_kind_is_answered() -> None:
    done = run("metrix")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "error: kind 'metrix' is not known; did you mean 'metrics'? (known: metrics, "
    )
