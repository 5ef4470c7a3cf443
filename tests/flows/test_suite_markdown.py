"""A night's page in Prefect's UI: what is not the program's own is text in it, and no markup."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from flows.compare.runs import ComparisonTable, compare_opened, comparison_document, name_of
from flows.prune import _markdown as prune_markdown
from flows.suite.scores import night_sentences
from flows.suite.words import summary_markdown
from tasks.comparison.compare import Gate
from tasks.comparison.drift import Drift
from tasks.comparison.matching import GroupKey, ItemGroup
from tasks.comparison.runs import ComparedRun
from tasks.comparison.trends import Flapping, PairCourse
from tasks.history.nights import NightEvaluation
from tasks.history.prune import Leftovers, Pruned, Pruning
from tests.flows.made_nights import judge_in
from tests.tasks.reporting.recorded_runs import results, row

HOSTILE = "a|b ![x](http://a.b/c.png) <img src=x> `c` **d** _e_ # f"
MARKUP = {"html_inline", "html_block", "link_open", "image", "em_open"}


def run(right: int) -> ComparedRun:
    """A run of 40 items, all of whose names are hostile."""
    facets = (("model_name", HOSTILE), ("topic", HOSTILE))
    key = GroupKey(HOSTILE, HOSTILE, "exact_match", "mean", HOSTILE, facets)
    names = np.array([f"{HOSTILE} {n}" for n in range(40)], dtype=object)
    value = (np.arange(40) < right).astype(float)
    items = ItemGroup(names, names, None, value, value[:, None], None, np.ones(40, dtype=bool))
    return ComparedRun(HOSTILE, {key: items})


def shape(page: str) -> tuple[list[Any], set[int]]:
    """All tokens of a page, and how many cells its rows of a table have."""
    parsed = MarkdownIt("gfm-like", {"html": True, "linkify": False}).parse(page)
    cells, counts = 0, set()
    for token in parsed:
        cells = 0 if token.type == "tr_open" else cells + token.type.startswith(("td_open", "th_open"))
        if token.type == "tr_close":
            counts.add(cells)
    return [part for token in parsed for part in (token, *(token.children or ()))], counts


def test_names_messages_and_reasons_of_a_night_are_text(tmp_path: Path) -> None:
    judged = judge_in(tmp_path)()
    compared = compare_opened(run(40), run(20), Gate(margin=0.05))
    unlike = replace(compared.pairs[0], comparison=None, reason=HOSTILE)
    key = compared.pairs[0].key
    drift = Drift(HOSTILE, 3, 0.5, 0.4, 0.001, 0.01)
    course = PairCourse(key, drift, (Flapping(HOSTILE, "101", 2),))
    failed = NightEvaluation(name=HOSTILE, run_id=HOSTILE, ok=False, message=HOSTILE)
    page = summary_markdown(
        replace(
            judged,
            night=judged.night.model_copy(update={"suite_name": HOSTILE, "evaluations": (failed,)}),
            compared=replace(compared, pairs=(compared.pairs[0], unlike)),
            courses=(course,),
        )
    )
    tokens, cells = shape(page)
    assert not {token.type for token in tokens} & MARKUP
    assert cells == {5, 9}
    headings = [token.content for token in tokens if token.type == "heading_open"]
    assert len(headings) == 4, "the night, its comparison, the drift, what flips"
    text = "".join(token.content for token in tokens if token.type in ("text", "code_inline"))
    assert text.count(HOSTILE) > 10


@pytest.mark.parametrize(("least", "said"), [(0.06, True), (0.04, False), (math.nan, False)])
def test_a_night_says_which_pairs_have_too_few_clusters_to_tell_a_drift(
    tmp_path: Path, least: float, said: bool
) -> None:
    key = compare_opened(run(40), run(20), Gate(margin=0.05)).pairs[0].key
    drift = Drift("monday", 3, 1.0, 0.0, 0.001, 0.06, least)
    page = summary_markdown(replace(judge_in(tmp_path)(), courses=(PairCourse(key, drift, ()),)))
    assert ("too few items, or clusters, to tell a drift" in page) == said


def test_a_missing_number_of_a_pair_is_a_dash(tmp_path: Path) -> None:
    compared = compare_opened(run(40), run(20), Gate(margin=0.05))
    (pair,) = compared.pairs
    assert pair.comparison is not None
    unknown = replace(pair.comparison, ci_low=math.nan, ci_high=math.nan)
    shown = replace(pair, comparison=unknown, p_adjusted=math.nan, flipped=())
    page = summary_markdown(replace(judge_in(tmp_path)(), compared=replace(compared, pairs=(pair, shown))))
    rows = [line.split(" | ") for line in page.splitlines() if line.count(" | ") == 8][1:]
    assert [row[-6:-1] for row in rows] == [
        ["1.0000", "0.5000", "-0.5000", "[-0.6480, -0.3181]", f"{pair.p_adjusted:.3g}"],
        ["1.0000", "0.5000", "-0.5000", "–", "–"],
    ]


def test_what_a_terminal_would_obey_is_written_out(tmp_path: Path) -> None:
    judged = judge_in(tmp_path)()
    failed = NightEvaluation(name="sums", run_id="run", ok=False, message="\x1b[2J\u202egone")
    page = summary_markdown(replace(judged, night=judged.night.model_copy(update={"evaluations": (failed,)})))
    assert not {"\x1b", "\u202e"} & set(page)
    assert "u001b" in page


def test_names_of_what_was_removed_are_text() -> None:
    pruned = Pruned(Pruning(runs=(HOSTILE,), artifacts=(), kept=0), Leftovers(folders=(Path("a|b `c`"),)))
    tokens, _ = shape(prune_markdown(pruned, dry_run=False))
    assert not {token.type for token in tokens} & MARKUP
    assert [token.content for token in tokens if token.type == "code_inline"] == [HOSTILE, "a|b `c`"]


def test_the_log_of_a_models_server_is_a_block_of_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks import preflight

    pages: list[tuple[str, str]] = []
    monkeypatch.setattr(preflight, "log_text", lambda _: f"```\n{HOSTILE}")
    monkeypatch.setattr(
        preflight,
        "create_markdown_artifact",
        lambda page, key, description: pages.append((page, description)),
    )
    monkeypatch.setattr(preflight, "if_possible", lambda call: call())

    class Model:
        name = HOSTILE

    class Infer:
        model = Model()

    class Setup:
        output, infer = str(tmp_path), Infer()

    preflight._keep_log(Setup(), tmp_path)  # type: ignore[arg-type]
    ((page, description),) = pages
    for said in (page, description):
        assert not {token.type for token in shape(said)[0]} & MARKUP
    assert [token.content for token in shape(page)[0] if token.type == "fence"] == [f"```\n{HOSTILE}\n"]


def test_names_in_the_tables_of_a_run_and_of_a_comparison_are_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.compare import flow as comparison
    from tasks import publish

    left: list[tuple[list[dict[str, Any]], str]] = []

    def keep(table: list[dict[str, Any]], key: str, description: str) -> None:
        left.append((table, description))

    monkeypatch.setattr(publish, "create_table_artifact", keep)
    monkeypatch.setattr(publish, "create_link_artifact", lambda *_, **__: None)
    monkeypatch.setattr(publish, "if_possible", lambda call: call())
    publication = SimpleNamespace(run=SimpleNamespace(benchmark=HOSTILE, run_id=HOSTILE))
    publish._show(publication, results(row(HOSTILE, 0.5, filter=HOSTILE)), tmp_path / "report.html")  # type: ignore[arg-type]
    monkeypatch.setattr(comparison, "create_table_artifact", keep)
    for name in ("open_run", "label_verdict"):
        monkeypatch.setattr(comparison, name, lambda *_: None)
    monkeypatch.setattr(comparison, "compare_opened", lambda *_: compare_opened(run(40), run(20)))
    comparison.compare.fn(HOSTILE, HOSTILE, store=str(tmp_path / "store"))
    assert len(left) == 2
    forbidden = MARKUP | {"strong_open", "code_inline"}
    for table, description in left:
        cells = [cell for line in table for cell in line.values() if isinstance(cell, str)]
        for said in (description, *cells):
            assert not {token.type for token in shape(said)[0]} & forbidden, said
        assert any("png" in cell for cell in cells)


BROKEN = "line\nbreak\rgate: pass\u2028end"


def test_names_and_reasons_that_break_lines_stand_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Else a value of a dataset prints a line of its own, such as the gate's."""
    base, candidate = run(40), run(20)
    ((key, group),) = base.groups.items()
    broken = replace(key, facets=(("model_name", "m"), ("topic", BROKEN)), label=BROKEN)
    names = np.array([f"{BROKEN} {n}" for n in range(40)], dtype=object)
    base = replace(base, groups={broken: replace(group, item_ids=names)})
    failed = {
        "benchmark": key.benchmark, "filter": key.filter, "metric": key.metric, "reduction": "mean",
        "label": BROKEN, "facets": json.dumps(dict(broken.facets)), "status": "failed", "error": BROKEN,
        "signature": None, "value": None, "higher_is_better": True,
    }  # fmt: skip
    for groups, rows in (({broken: replace(candidate.groups[key], item_ids=names)}, ()), ({}, (failed,))):
        compared = compare_opened(base, replace(candidate, groups=groups, results=rows), Gate(margin=0.05))
        printed = [name_of(pair) for pair in compared.pairs]
        printed += night_sentences([], comparison_document(compared))
        Console(width=2_000).print(ComparisonTable(compared))
        printed += capsys.readouterr().out.splitlines()
        assert any("line break gate: pass end" in line for line in printed)
        assert not [
            line for line in printed if line.startswith(("break", "gate: pass", "end")) or "\r" in line
        ]
        assert all(len(name.splitlines()) == 1 for name in printed if name)


def test_the_table_of_a_run_says_which_group_a_row_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks import publish

    left: list[dict[str, Any]] = []
    monkeypatch.setattr(publish, "create_table_artifact", lambda table, **_: left.extend(table))
    monkeypatch.setattr(publish, "create_link_artifact", lambda *_, **__: None)
    monkeypatch.setattr(publish, "if_possible", lambda call: call())
    publication = SimpleNamespace(run=SimpleNamespace(benchmark="sums", run_id="sums-1"))
    groups = [{}, {"model_name": "m", "level": 1, "status": "ok"}, {"model_name": "m", "level": "1"}]
    shown = results(*(row("m", 0.5, facets=json.dumps(facets)) for facets in groups))
    publish._show(publication, shown, tmp_path / "report.html")  # type: ignore[arg-type]
    assert [line["level"] for line in left] == ["all", "1", '"1"']
    assert [line["facet.status"] for line in left] == ["all", "ok", "all"]
    assert [(line["model_name"], line["status"]) for line in left] == [("m", "ok")] * 3
    assert {tuple(line) for line in left} == {tuple(left[0])}
