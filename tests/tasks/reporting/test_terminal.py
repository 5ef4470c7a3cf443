"""The result table and the progress of a run in the terminal."""

import io
import json
import re
from typing import Any

import pyarrow as pa
import pytest

from tasks.models.progress import Progress
from tasks.reporting.diagnostics.findings import Diagnostic, Example, grouped
from tasks.reporting.progress import ProgressBoard, combined, open_board, percent, progress_markdown, reporter
from tasks.reporting.terminal import console, diagnostics_text, next_command, results_table
from tasks.store.schemas import RESULTS
from tests.tasks.reporting.report_recordings import result

ESCAPE = "\x1b"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Ascii(io.TextIOWrapper):
    """A stream that can't write beyond ASCII."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="ascii")

    def text(self) -> str:
        self.flush()
        self.seek(0)
        return self.read()


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), RESULTS)


def row(**fields: Any) -> dict[str, Any]:
    return result("b", "m", "p", "exact_match,strict", [0.0, 1.0, 1.0, 1.0], 0) | fields


def printed(results: pa.Table, **arguments: Any) -> str:
    out = io.StringIO()
    console(out).print(results_table(results, **arguments))
    return out.getvalue()


def test_what_more_samples_or_items_would_give_is_said_below_the_table() -> None:
    errors = {"stderr": 0.0119, "stderr_items": 0.01148, "stderr_sampling": 0.00313}
    text = printed(table(row(n_items=1319, n_samples=16 * 1319, **errors)))
    said = "16 → 32 samples: ± 0.0119 → 0.0117; 1,319 → 2,638 items: → 0.0084"
    assert f"exact_match, strict: {said}" in text
    assert "→" not in printed(table(row()))  # nothing tells, without repeats
    assert ": 2.5 → 5 samples: " in printed(table(row(n_items=1000, n_samples=2500, **errors)))
    assert ": 2.67 → 5.33 samples: " in printed(table(row(n_items=3, n_samples=8, **errors)))


def test_a_line_holds_direction_error_interval_and_unscored() -> None:
    text = printed(table(row(n_unscored=7)))
    line = next(line for line in text.splitlines() if "exact_match" in line)
    assert line.split() == [
        "m",
        "strict",
        "exact_match",
        "↑",
        "0.7500",
        "±",
        "0.2165",
        "[0.3256,",
        "1.0000]",
        "4",
        "7",
    ]


def test_numbers_stand_under_each_other() -> None:
    text = printed(table(row(), row(model_name="a longer name", value=0.1, n_items=1319)))
    first, second = (line for line in text.splitlines() if "exact_match" in line)
    assert next(match.end() for match in re.finditer(r"\d\.\d{4}(?= )", first)) == (
        next(match.end() for match in re.finditer(r"\d\.\d{4}(?= )", second))
    )
    assert first.rstrip().endswith("0")
    assert len(first.rstrip()) == len(second.rstrip())


@pytest.mark.parametrize(
    ("fields", "column"),
    [
        ({"prompt_template": "q"}, "Prompt"),
        ({"label": "quality"}, "Label"),
        ({"n_samples": 99}, "Samples"),
        ({"error": "3 items only"}, "Note"),
        ({"facets": '{"item.subject": "algebra"}'}, "item.subject"),
    ],
)
def test_a_column_appears_when_it_tells_lines_apart(fields: dict[str, Any], column: str) -> None:
    assert column not in printed(table(row(), row())).splitlines()[0]
    assert column in printed(table(row(), row(**fields))).splitlines()[0]


def test_reductions_are_named_and_lower_is_better_points_down() -> None:
    text = printed(table(row(reduction="pass@8"), row(metric="ter", higher_is_better=False)))
    assert "pass@8(exact_match)" in text
    assert re.search(r"ter +↓", text)


@pytest.mark.parametrize(("value", "shown"), [("", "(empty)"), ("all", '"all"'), (" ", '" "')])
def test_a_group_whose_facet_reads_like_none_has_a_name(value: str, shown: str) -> None:
    """Else it looks like the row of all."""
    own = row(facets=json.dumps({"model_name": "demo", "topic": value}))
    failed = own | {"status": "failed", "value": None, "error": "nothing"}
    text = printed(table(row(), row(facets='{"topic": "x"}'), own, failed))
    assert text.count(shown) == 2
    assert f"topic={shown}: nothing" in text


def test_failed_pairs_come_last_with_reason_and_the_command_that_retries_them() -> None:
    failed = row(
        metric="bleu", filter="none", status="failed", value=None, error="MetricError: row 3\nis no text"
    )
    text = printed(table(failed, failed, row()))
    assert (
        text.index("0.7500")
        < text.index("1 pair failed:")
        < text.index("none × bleu: MetricError: row 3 is no text")
    )
    assert text.count("none × bleu") == 1


def test_a_failed_group_of_a_pair_that_has_numbers_is_named() -> None:
    def failed(topic: str) -> dict[str, Any]:
        facets = json.dumps({"model_name": "demo", "topic": topic})
        return row(facets=facets, status="failed", value=None, error=f"nothing in {topic}")

    vote = failed("b") | {"reduction": "maj@4"}
    text = printed(table(row(), failed("a"), vote, failed("b") | {"metric": "bleu"}))
    assert "1 pair and 2 groups failed:" in text
    assert [line.strip() for line in text.splitlines() if "nothing in" in line] == [
        "strict × bleu: nothing in b",
        "strict × exact_match of m · p · topic=a: nothing in a",
        "strict × maj@4(exact_match) of m · p · topic=b: nothing in b",
    ]


@pytest.mark.parametrize(
    ("failed", "settled", "over", "command"),
    [
        (0, 3, {"m": "3 of 9 requests failed"}, "python -m flows.eval 'my config.yaml' --refresh failed"),
        (2, 3, {"m": "5 of 9 requests failed"}, "python -m flows.eval 'my config.yaml'"),
        (2, 0, {"m": "2 of 9 requests failed"}, "python -m flows.eval 'my config.yaml'"),
        (0, 0, {}, "python -m flows.eval 'my config.yaml'"),
        (0, 3, {}, "python -m flows.eval 'my config.yaml'"),
    ],
)
def test_the_command_that_is_suggested_is_the_one_that_helps(
    failed: int, settled: int, over: dict[str, str], command: str
) -> None:
    manifest = {"models": {"m": {"failed": failed, "refused": settled}}, "over_budget": over}
    assert next_command(manifest, ["python", "-m", "flows.eval", "my config.yaml"]) == command


def test_nothing_is_folded_or_coloured_where_nobody_watches() -> None:
    names = {"model_name": "a" * 90, "prompt_template": "b" * 90}
    text = printed(table(row(**names), row(prompt_template="c", status="unscored", value=None)))
    assert ESCAPE not in text
    assert "a" * 90 in text
    assert len([line for line in text.splitlines() if "exact_match" in line]) == 2


def test_colours_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    console(out).print(results_table(table(row(status="failed", error="x"))))
    assert ESCAPE in out.getvalue()


def test_a_stream_of_ascii_gets_ascii() -> None:
    out = Ascii()
    console(out).print(results_table(table(row(), row(metric="ter", higher_is_better=False))))
    assert "0.7500" in out.text()


def test_empty_results_are_said() -> None:
    assert printed(table()) == "No results.\n"


def test_control_characters_of_a_model_do_not_reach_the_terminal() -> None:
    finding = Diagnostic(
        "truncated", "warning", "m: 1 of 2 cut off", 1, (Example("7", "m", "p", "a\x1b[2Jb\nc\u202e"),)
    )
    out = Terminal()
    console(out).print(diagnostics_text([finding]))
    assert f"{ESCAPE}[2J" not in out.getvalue()
    assert "e.g. 7, m: a\ufffd[2Jb c\ufffd" in out.getvalue()


def many() -> list[Diagnostic]:
    """What four models' answers have in common, among others."""
    cut = [Diagnostic("truncated", "warning", f"m{n}: {n} answers cut off", n) for n in range(1, 5)]
    return [cut[0], Diagnostic("repeats", "note", "repeats disagree", 9), cut[3],
            Diagnostic("empty", "warning", "3 answers are empty", 3), cut[1], cut[2]]  # fmt: skip


def test_a_finding_is_one_line_whatever_it_quotes() -> None:
    example = Example("i\ngate: pass", "m", "p", "said")
    out = io.StringIO()
    console(out).print(diagnostics_text([Diagnostic("k", "note", "topic=a\ngate: pass is", 1, (example,))]))
    assert [line[:9] for line in out.getvalue().splitlines() if line] == ["note: top", "    e.g. "]


def test_findings_of_a_kind_stand_together_the_gravest_first_and_few_of_many() -> None:
    assert [[one.count for one in group] for group in grouped(many())] == [[4, 3, 2, 1], [3], [9]]
    out = io.StringIO()
    console(out).print(diagnostics_text(many()))
    said = [line.strip() for line in out.getvalue().splitlines() if line.strip()]
    assert said == [
        "warning: m4: 4 answers cut off", "warning: m3: 3 answers cut off",
        "and 2 more of this kind, which the report lists", "warning: 3 answers are empty",
        "note: repeats disagree",
    ]  # fmt: skip


def progress(**fields: Any) -> Progress:
    counts = {"done": 100, "expected": 400, "cached": 3, "failed": 3, "retries": 5}
    load = {"in_flight": 32, "concurrency": 64, "rate": 55.3, "tokens_per_second": 1800.2}
    given: dict[str, Any] = {**counts, **load, "cost": 0.12, "seconds_left": 5.4}
    return Progress(**(given | fields))


def test_partitions_of_a_model_add_up_to_one_line() -> None:
    both = combined([progress(), progress(done=400, seconds_left=None, rate=99.0)])
    assert (both.done, both.expected, both.failed, both.retries) == (500, 800, 6, 10)
    assert both.rate == 55.3, "a finished partition has no rate any more"
    assert both.seconds_left == 5.4
    assert combined([progress(), progress(expected=None)]).expected is None
    assert combined([progress(), progress(seconds_left=None)]).seconds_left is None


def test_reports_without_a_board_go_nowhere() -> None:
    reporter("m")(progress())
    board = ProgressBoard(io.StringIO())
    with open_board(board):
        pass
    reporter("m")(progress())
    assert board.models() == {}


def test_progress_in_markdown_has_a_row_a_model() -> None:
    models = {"a|b": progress(), "c": progress(expected=None, seconds_left=None, cost=0.0)}
    lines = progress_markdown(models).splitlines()
    assert lines[2] == r"| a\|b | 100 of 400 | 55.3 | 3 | 5 | 1,800 | 0.12 | 5.4 s |  |"
    assert lines[3] == "| c | 100 | 55.3 | 3 | 5 | 1,800 | – | – |  |"
    assert percent({"a": progress()}) == 25
    assert percent(models) == 0
