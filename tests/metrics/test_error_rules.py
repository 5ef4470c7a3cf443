"""Error rules know what they need, and an error bar that no sample can have is not printed."""

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from metrics.aggregation import Aggregation, ErrorRule, as_column, build_aggregation
from metrics.config import StatisticsConfig
from metrics.errors import ConfigError
from metrics.registry import AGGREGATIONS
from metrics.statistics import rules
from metrics.statistics.estimate import estimate, possible
from metrics.statistics.formulas import Sampled, Spread
from metrics.statistics.rules import (
    METHODS,
    BootstrapRule,
    ConfusionRule,
    DeltaRule,
    ExpOfMeanRule,
    JackknifeRule,
    MeanRule,
    QuantileRule,
    Rule,
    SumRule,
    rule_of,
)
from metrics.types import Estimate, Floats

RULES = [
    one for _, one in inspect.getmembers(rules, inspect.isclass) if issubclass(one, Rule) and one is not Rule
]
OPTIONS = StatisticsConfig(bootstrap_iters=1_000)


def ratio(**about: Any) -> Aggregation:
    return Aggregation("ratio", k=2, compute=lambda t, n: t[..., 0] / t[..., 1], bounds=(0.0, 1.0), **about)


def of_one(compute: Callable[..., Floats], rule: ErrorRule) -> Aggregation:
    return Aggregation("own", compute=compute, encode=as_column, rule=rule)


def of_values(rule: ErrorRule) -> Aggregation:
    return Aggregation("largest", kind="values", combine=lambda values: float(np.max(values)), rule=rule)


@pytest.mark.parametrize("rule", [MeanRule(), SumRule(), ExpOfMeanRule()], ids=repr)
def test_a_rule_of_one_formula_refuses_a_ratio(rule: Rule) -> None:
    with pytest.raises(
        ConfigError, match=f"'ratio': its error rule {type(rule).__name__} is not for a value"
    ):
        ratio(rule=rule)


def test_a_rule_of_one_formula_refuses_another_formula() -> None:
    mean, total = (lambda t, n: t[..., 0] / n), (lambda t, n: t[..., 0])
    exp = lambda t, n: np.exp(-t[..., 0] / n)  # noqa: E731
    fitting = {MeanRule: mean, SumRule: total, ExpOfMeanRule: exp}
    for kind, own in fitting.items():
        assert of_one(own, kind()).name == "own"
        for other in {*fitting.values()} - {own}:
            with pytest.raises(ConfigError, match="is not for a value other than"):
                of_one(other, kind())


@pytest.mark.parametrize(
    "rule", [MeanRule(), SumRule(), ExpOfMeanRule(), JackknifeRule(), DeltaRule(), ConfusionRule()], ids=repr
)
def test_a_rule_of_sums_refuses_a_function_of_values(rule: Rule) -> None:
    with pytest.raises(ConfigError, match=r"name another of metrics\.statistics\.rules, or none"):
        of_values(rule)


@pytest.mark.parametrize("q", [0.0, 0.25, 0.5, 0.9])
def test_a_quantile_has_its_own_level(q: float) -> None:
    with pytest.raises(ConfigError, match=f"other than the {q:g}-quantile"):
        of_values(QuantileRule(q))  # the largest value is no such quantile
    with pytest.raises(ConfigError, match="QuantileRule"):
        ratio(rule=QuantileRule(q))
    assert replace(build_aggregation("median"), rule=QuantileRule(0.5)).has_error_bar


def test_every_rule_says_what_it_does_and_is_met_or_chosen() -> None:
    met = {type(rule_of(build_aggregation(name))) for name in AGGREGATIONS} | set(map(type, METHODS.values()))
    assert met == set(RULES)
    assert all(rule.stderr and rule.interval and rule.check.__doc__ for rule in RULES)


def test_without_a_rule_sums_have_the_jackknife_and_values_the_bootstrap() -> None:
    assert isinstance(rule_of(ratio()), JackknifeRule)
    largest = Aggregation("largest", kind="values", combine=lambda values: float(np.max(values)))
    assert isinstance(rule_of(largest), BootstrapRule)


def test_bounds_have_an_order() -> None:
    with pytest.raises(ConfigError, match="bounds must be"):
        Aggregation("own", compute=lambda t, n: t[..., 0] / n, bounds=(1.0, 0.0))


class GivenRule(Rule):
    """Gives what it is given."""

    stderr = interval = "given"

    def __init__(
        self, stderr: float, low: float = 0.2, high: float = 0.6, warning: str | None = None
    ) -> None:
        self.spread = Spread(stderr, "given", low, high, warning)

    def check(self, aggregation: Aggregation) -> None:
        """Needs nothing."""

    def of_sums(self, sampled: Sampled) -> Spread:
        return self.spread


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (GivenRule(2.81), "a standard error of 2.81; between 0 and 1 it is 0.5 at most"),
        (GivenRule(0.5001), "a standard error of 0.5; between 0 and 1 it is 0.5 at most"),
        (GivenRule(-0.1), "a negative standard error, -0.1"),
        (GivenRule(math.nan), "no number"),
        (GivenRule(0.1, 0.6, 0.2), "an interval from 0.6 down to 0.2"),
    ],
)
def test_an_impossible_error_bar_is_refused_and_not_printed(rule: Rule, said: str) -> None:
    table = np.array([[1.0, 3.0], [2.0, 4.0], [1.0, 2.0]])
    made = estimate(ratio(rule=rule), table, None, None, OPTIONS)
    assert made.value == pytest.approx(4 / 9)
    assert math.isnan(made.stderr)
    assert math.isnan(made.ci_low)
    assert made.stderr_method == "none"
    assert said in str(made.warning)


@pytest.mark.parametrize("rule", [GivenRule(0.5), GivenRule(0.0), GivenRule(0.1)])
def test_a_possible_one_stays(rule: GivenRule) -> None:
    made = estimate(ratio(rule=rule), np.array([[1.0, 3.0], [2.0, 4.0]]), None, None, OPTIONS)
    assert (made.stderr, made.stderr_method, made.warning) == (rule.spread.stderr, "given", None)


def test_a_scorers_own_error_bar_is_held_against_the_range_too() -> None:
    given = Estimate(0.4, 2.81, "corrected", 0.0, 1.0, 30, "a doubt")
    refused = possible(given, (0.0, 1.0))
    assert math.isnan(refused.stderr)
    assert str(refused.warning).endswith("0.5 at most; a doubt")
    assert possible(given, (-math.inf, math.inf)) == given
    assert possible(replace(given, value=4.0), (0.0, 1.0)).stderr == 2.81  # on another scale
