"""Positions of scores in pictures, and numbers as people read them."""

import math
from typing import Any

import pyarrow as pa
import pytest

from tasks.reporting import numbers
from tasks.reporting.context import score_matrix
from tasks.reporting.plots import Axis, curves, forests
from tasks.reporting.view import ResultRow, result_rows
from tasks.store.schemas import RESULTS
from tests.tasks.reporting.report_recordings import result


def rows(*given: dict[str, Any]) -> list[ResultRow]:
    return result_rows(pa.Table.from_pylist(list(given), RESULTS))


def test_an_axis_holds_its_values_and_has_round_marks() -> None:
    axis = Axis.around([0.2153, 0.5863])
    assert 0 <= axis.at(0.2153) < axis.at(0.5863) <= 100
    assert [tick.text for tick in axis.ticks] == ["0.2", "0.3", "0.4", "0.5", "0.6"]


@pytest.mark.parametrize(
    "values", [[0.0], [1.0, 1.0], [-1e-9, 1e9], [math.nan], [], [math.inf, 3.0], [1e-12]]
)
def test_an_axis_has_a_length_whatever_the_values(values: list[float]) -> None:
    axis = Axis.around(values)
    assert axis.low < axis.high
    assert 1 <= len(axis.ticks) <= 7
    assert all(-0.01 <= tick.at <= 100.01 for tick in axis.ticks)


def test_shares_do_not_leave_0_and_1() -> None:
    assert Axis.around([0.0, 1.0]).low == 0
    assert Axis.around([0.0, 1.0]).high == 1
    assert Axis.around([0.0, 0.2], shares=False).low < 0


def test_a_forest_for_each_pair_names_only_what_tells_groups_apart() -> None:
    plots = forests(
        rows(
            *(
                result("b", model, "p", pair, [0.0, 1.0, 1.0], 0)
                for pair in ("em,strict", "em,loose")
                for model in ("small", "large")
            )
        )
    )
    assert [(plot.title, plot.filter) for plot in plots] == [("em", "strict"), ("em", "loose")]
    assert [row.name for row in plots[0].rows] == ["small", "large"]
    assert plots[0].rows[0].low is not None
    assert plots[0].rows[0].low < plots[0].rows[0].at < (plots[0].rows[0].high or 0)
    assert plots[0].direction == "↑ higher is better"


def test_two_groups_whose_words_are_the_same_have_a_line_each() -> None:
    places = [("m", "p · q", 1.0), ("m · p", "q", 0.0)]
    given = rows(*(result("b", model, prompt, "em,n", [value], 0) for model, prompt, value in places))
    assert len({row.group for row in given}) == 1
    assert len(score_matrix(given).rows) == len(forests(given)[0].rows) == 2


def test_a_score_without_an_interval_is_a_point() -> None:
    (plot,) = forests(
        rows(result("b", "m", "p", "em,n", [1.0], 0) | {"stderr": None, "ci_low": None, "ci_high": None})
    )
    assert plot.rows[0].low is None
    assert plot.rows[0].text == "1.0000"


def test_reductions_over_k_become_one_curve_a_group() -> None:
    base = result("b", "m", "p", "em,n", [0.0, 1.0], 0)
    given = [base | {"reduction": name, "value": value} for name, value in
             [("pass@1", 0.2), ("pass@8", 0.6), ("pass@4", 0.5), ("maj@8", 0.4), ("mean", 0.2)]]  # fmt: skip
    (plot,) = curves(rows(*given))
    assert plot.title == "pass@k(em)"
    (line,) = plot.lines
    assert [text for _, _, text in line.marks] == [
        "m, k = 1: 0.2000 ± 0.3536",
        "m, k = 4: 0.5000 ± 0.3536",
        "m, k = 8: 0.6000 ± 0.3536",
    ]
    xs = [x for x, _, _ in line.marks]
    ys = [y for _, y, _ in line.marks]
    assert xs == sorted(xs)
    assert ys == sorted(ys, reverse=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (numbers.number(0.55312), "0.5531"),
        (numbers.number(46.1249), "46.12"),
        (numbers.number(123456.7), "123,457"),
        (numbers.number(None), "–"),
        (numbers.number(math.nan), "–"),
        (numbers.number(math.inf), "∞"),
        (numbers.number(-math.inf), "-∞"),
        (numbers.number(0.5, like=46.1), "0.50"),
        (numbers.number(2.04e-5), "0.000020"),
        (numbers.number(1e-17), "0.0000"),
        (numbers.number(-0.00001, like=0.5), "0.0000"),
        (numbers.signed(-0.00001, like=0.5), "0.0000"),
        (numbers.signed(0.0), "0.0000"),
        (numbers.value_with_error(2e-5, 3e-6), "0.000020 ± 0.000003"),
        (numbers.interval(1e-5, 3e-5, 2e-5), "[0.000010, 0.000030]"),
        (numbers.signed(0.25), "+0.2500"),
        (numbers.signed(-0.25), "-0.2500"),
        (numbers.signed(None), "–"),
        (numbers.value_with_error(46.12, 0.7), "46.12 ± 0.70"),
        (numbers.value_with_error(46.12, None), "46.12"),
        (numbers.interval(0.1, 0.2), "[0.1000, 0.2000]"),
        (numbers.interval(None, 0.2), "–"),
        (numbers.share(1, 10_000), "< 0.1 %"),
        (numbers.share(9_999, 10_000), "> 99.9 %"),
        (numbers.share(312, 1319), "24 %"),
        (numbers.share(249, 250), "99.6 %"),
        (numbers.share(1995, 2000), "99.8 %"),
        (numbers.share(250, 250), "100 %"),
        (numbers.share(0, 10), "0 %"),
        (numbers.share(0, 0), "–"),
        (numbers.plural(1, "item"), "1 item"),
        (numbers.plural(1319, "item"), "1,319 items"),
        (numbers.p_value(0.0004), "< 0.001"),
        (numbers.p_value(0.031), "0.031"),
        (numbers.p_value(0.9996), "> 0.999"),
        (numbers.p_value(1.0), "1.000"),
        (numbers.p_said(0.0004), "p < 0.001"),
        (numbers.p_said(0.031), "p = 0.031"),
        (numbers.duration(4.25), "4.2 s"),
        (numbers.duration(200), "3 min 20 s"),
        (numbers.duration(7500), "2 h 05 min"),
        (numbers.money(0.0), "–"),
        (numbers.money(1.25), "1.25"),
    ],
)
def test_numbers_read_well(text: str, expected: str) -> None:
    assert text == expected
