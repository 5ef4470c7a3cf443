"""Two runs' corrected rates: against hand-worked numbers, and how often they differ by chance."""

import math
from typing import Any

import numpy as np
import pytest

from bench.judges import FIVE, grades, mean_grade, measure, settings, verdicts
from metrics.aggregation import build_aggregation
from metrics.config import StatisticsConfig
from metrics.errors import ConfigError, MetricError
from metrics.statistics.comparison import compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.gate import decide
from scorers.judge.calibration import Calibration, Labelled, corrected_rate
from scorers.judge.contrast import SHARED, Correction, compare_corrected

OPTIONS = StatisticsConfig(bootstrap_iters=400)


def column(values: Any) -> ItemColumn:
    numbers = np.asarray(values, dtype=np.float64)
    return ItemColumn(numbers, numbers.reshape(-1, 1))


def judged(
    rng: np.random.Generator, n: int, rate: float, differ: float, found: float, rejected: float
) -> Any:
    """The judge's verdicts of two runs, alike but for a share of the items, which are drawn anew."""
    first, second = (verdicts(rng, n, rate, found, rejected)[1] for _ in range(2))
    return first, np.where(rng.random(n) < differ, second, first)


def test_a_correction_is_read_from_the_signature_of_a_row() -> None:
    for by in (
        Calibration(40, 35, 30, 21),
        Labelled.of([1, 1, 0, 1, 0], [1, 0, 0, 1, 1]),
        Labelled.of([1, 5, 4, 3.5], [2, 5, 3, 3], FIVE),
    ):
        aggregation = corrected_rate(by, "abc")
        told = "|".join(f"{key}:{value}" for key, value in aggregation.parameters.items())
        read = Correction.read(f"llm_judge_corrected|agg:corrected_rate|{told}|version:1|filter:none")
        assert read == Correction(by, "abc")
    assert Correction.read("exact_match|agg:mean|version:1") is None
    assert Correction.read("llm_judge_corrected|agg:corrected_rate|version:1") is None


def test_one_calibration_leaves_the_judges_difference_over_its_informedness() -> None:
    base, candidate = column([1] * 70 + [0] * 30), column([1] * 50 + [0] * 50)
    known = Correction(Calibration(100, 90, 100, 80), "x")
    made = compare_corrected((base, candidate), (known, known), None, OPTIONS)
    plain = compare_items(build_aggregation("mean"), base, candidate, None, OPTIONS)
    assert made.p_value == plain.p_value  # no calibration makes a difference of none
    assert made.difference == pytest.approx(-0.2 / 0.7)
    assert made.base == pytest.approx((0.7 + 0.8 - 1) / 0.7)
    assert made.warning == SHARED
    # The interval is Fieller's: wider than that of a judge whose error rates were known.
    exact = Correction(Calibration(10**7, 9 * 10**6, 10**7, 8 * 10**6), "x")
    sure = compare_corrected((base, candidate), (exact, exact), None, OPTIONS)
    assert sure.ci_low == pytest.approx(plain.ci_low / 0.7, abs=1e-3)
    assert made.ci_low < sure.ci_low < sure.ci_high < 0
    assert made.chance_beyond(made.ci_low, above=False) == 1
    assert made.chance(made.ci_low) == pytest.approx(0.05, abs=1e-6)
    assert decide(made, 0.02, 0.05).verdict == "regression"


def test_a_calibration_each_adds_both_errors() -> None:
    rng = np.random.default_rng(1)
    first, second = judged(rng, 400, 0.7, 0.3, 0.9, 0.8)
    known = Correction(Labelled.of(*verdicts(rng, 100, 0.7, 0.9, 0.8)), "a")
    other = Correction(Labelled.of(*verdicts(rng, 100, 0.7, 0.9, 0.8)), "b")
    shared = compare_corrected((column(first), column(second)), (known, known), None, OPTIONS)
    apart = compare_corrected((column(first), column(second)), (known, other), None, OPTIONS)
    assert apart.stderr > 1.3 * shared.stderr
    assert apart.test == "paired, a calibration each"
    assert apart.difference == pytest.approx(apart.candidate - apart.base)
    assert (apart.p_value < 0.05) == (not apart.ci_low <= 0 <= apart.ci_high)


def test_corrected_rates_differ_by_no_more_than_rates_can() -> None:
    judge = Calibration(12, 9, 12, 9)
    known, other = Correction(judge, "a"), Correction(judge, "b")
    for wrong in (0, 3, 6):
        runs = column(np.ones(6)), column(np.repeat([0.0, 1.0], (wrong, 6 - wrong)))
        for corrections in ((known, known), (known, other)):
            made = compare_corrected(runs, corrections, None, OPTIONS)
            assert -1 <= made.ci_low <= made.ci_high <= 1
            assert math.isnan(made.mde) or made.mde <= 1
            assert not math.isnan(made.mde) or made.warning


@pytest.mark.parametrize("labels", ["a", "b"])
def test_a_calibration_that_does_not_fit_a_runs_answers_decides_nothing(labels: str) -> None:
    judge = Calibration(60, 48, 60, 54)
    runs = column(np.repeat([0.0, 1.0], (50, 50))), column(np.repeat([0.0, 1.0], (2, 98)))
    made = compare_corrected(runs, (Correction(judge, "a"), Correction(judge, labels)), None, OPTIONS)
    assert made.warning is not None
    assert "accepts 98 % of the answers" in made.warning
    assert np.isnan([made.ci_low, made.ci_high]).all()
    assert decide(made, 0.02, 0.05).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("found", "rejected", "n", "m", "loss", "margin"),
    [(0.7, 0.7, 2000, 200, 0.1, 0.05), (0.7, 0.7, 1000, 400, 0.1, 0.1), (0.9, 0.8, 1000, 200, 0.05, 0.05)],
)
def test_one_calibration_of_peoples_verdicts_passes_no_real_loss(
    found: float, rejected: float, n: int, m: int, loss: float, margin: float
) -> None:
    rng, verdict, covered, rounds, rate = np.random.default_rng(6), [], 0, 120, 0.7
    for _ in range(rounds):
        known = Correction(Labelled.of(*verdicts(rng, m, rate, found, rejected)), "a")
        runs = [column(verdicts(rng, n, own, found, rejected)[1]) for own in (rate, rate - loss)]
        made = compare_corrected((runs[0], runs[1]), (known, known), None, OPTIONS)
        verdict.append(decide(made, margin, 0.05).verdict)
        covered += math.isnan(made.ci_low) or made.ci_low <= -loss <= made.ci_high
    assert verdict.count("pass") + verdict.count("worse") <= rounds * 0.025 + 3 * math.sqrt(rounds * 0.025)
    assert covered / rounds >= 0.93 - 3 * math.sqrt(0.05 * 0.95 / rounds)


@pytest.mark.parametrize("kind", ["ppi", "rates"])
@pytest.mark.parametrize(("n", "m"), [(2_000, 100), (20_000, 400), (100_000, 400)])
def test_one_calibration_decides_however_many_items_there_are(kind: str, n: int, m: int) -> None:
    """Values far from the difference are impossible by the judge's own test; the calibration says so less."""
    rng = np.random.default_rng(10)
    known = calibrated(rng, kind, m, (0.7, 0.9, 0.8), "a")
    runs = [column(verdicts(rng, n, own, 0.9, 0.8)[1]) for own in (0.7, 0.6)]
    made = compare_corrected((runs[0], runs[1]), (known, known), None, OPTIONS)
    assert -0.3 < made.ci_low < made.difference < made.ci_high < -0.02
    assert made.chance(-0.4) < 0.05
    assert decide(made, 0.4, 0.05).verdict == "worse"


def test_one_calibration_of_grades_says_no_size_that_peoples_own_errors_explain() -> None:
    """Grades are coarse, so the judge's rise less with people's than with what both mean: many answers would
    make every loss of just the margin a regression."""
    rng = np.random.default_rng(9)
    known = Correction(Labelled.of(*grades(rng, 20_000, 3.5, 0.3, 0.5), FIVE), "a")
    runs = [column(grades(rng, 200_000, level, 0.3, 0.5)[1]) for level in (3.5, 3.0)]
    made = compare_corrected((runs[0], runs[1]), (known, known), None, OPTIONS)
    loss = mean_grade(3.5) - mean_grade(3.0)
    assert made.difference < -loss * 1.05  # by the regression alone
    assert made.ci_low < -loss < made.ci_high
    assert made.chance(-loss) == 1
    assert decide(made, loss, 0.05).verdict == "inconclusive"
    assert decide(made, loss / 2, 0.05).verdict == "regression"
    assert decide(made, loss * 1.5, 0.05).verdict == "worse"


def test_runs_of_one_calibration_print_their_own_rates_and_what_would_decide() -> None:
    rng = np.random.default_rng(7)
    known = Correction(Labelled.of(*verdicts(rng, 200, 0.7, 0.7, 0.7)), "a")
    runs = column(verdicts(rng, 2000, 0.7, 0.7, 0.7)[1]), column(verdicts(rng, 2000, 0.6, 0.7, 0.7)[1])
    made = compare_corrected(runs, (known, known), None, OPTIONS)
    own = [known.value(float(run.value.mean()), 2000) for run in runs]
    assert [made.base, made.candidate] == own
    judged = float(runs[1].value.mean() - runs[0].value.mean())
    assert made.difference == pytest.approx(judged / known.response[0])
    assert made.remedy is not None
    needed = known.labels_needed(runs, 0.05, 0.05)
    assert made.remedy(0.05, 0.05) == f"{needed:,} labelled answers of each run's own would decide it"
    # With so many of each, a gate over equal runs passes as often as it is planned to.
    rounds, passed = 60, 0
    for _ in range(rounds):
        both = [Correction(Labelled.of(*verdicts(rng, needed, 0.7, 0.7, 0.7)), name) for name in "ab"]
        alike = [column(verdicts(rng, 2000, 0.7, 0.7, 0.7)[1]) for _ in range(2)]
        found = compare_corrected((alike[0], alike[1]), (both[0], both[1]), None, OPTIONS)
        passed += decide(found, 0.05, 0.05).verdict == "pass"
    assert 0.6 <= passed / rounds <= 0.97


def test_a_calibration_that_can_not_tell_the_judge_from_chance_decides_nothing_of_two_runs() -> None:
    rng = np.random.default_rng(8)
    for labelled in (
        Labelled.of(*verdicts(rng, 30, 0.7, 0.5, 0.5)),
        Labelled.of([1.0, 2.0, 5.0, 3.0], [3.0, 3.0, 3.0, 4.0], FIVE),
        Labelled.of([1.0, 1.0, 1.0], [1.0, 0.0, 1.0]),
    ):
        known = Correction(labelled, "a")
        runs = column(verdicts(rng, 500, 0.7, 0.5, 0.5)[1]), column(verdicts(rng, 500, 0.7, 0.5, 0.5)[1])
        made = compare_corrected(runs, (known, known), None, OPTIONS)
        assert "label answers of each run" in str(made.warning)
        assert decide(made, 0.5, 0.05).verdict == "inconclusive"


def test_what_can_not_be_corrected_is_said() -> None:
    rng = np.random.default_rng(2)
    runs = column(rng.random(50) < 0.5), column(rng.random(50) < 0.5)
    guessing = Correction(Calibration(10, 5, 10, 5), "a")
    made = compare_corrected(runs, (guessing, guessing), None, OPTIONS)
    assert math.isnan(made.p_value)
    assert "no better than chance" in str(made.warning)
    assert decide(made, 0.1, 0.05).verdict == "inconclusive"
    people = Correction(Labelled.of([1, 1, 0], [1, 0, 0]), "b")
    with pytest.raises(MetricError, match="one run is corrected by error rates"):
        compare_corrected(runs, (guessing, people), None, OPTIONS)
    with pytest.raises(ConfigError, match="expected three or more"):
        Labelled.of([1, 0], [1, 0])


def test_a_good_judges_grades_narrow_what_people_say() -> None:
    from scorers.judge.calibration import ppi_estimate

    rng = np.random.default_rng(3)
    human, judge = grades(rng, 100, 3.0, 0.5, 0.2)
    labelled = Labelled.of(human, judge, FIVE)
    made = ppi_estimate(labelled, grades(rng, 5000, 3.0, 0.5, 0.2)[1], None, 0.95)
    assert made.stderr < 0.6 * human.std(ddof=1) / 10
    assert made.value == pytest.approx(3.0, abs=3 * made.stderr)  # the judge's own mean is half a grade above
    assert FIVE[0] <= made.ci_low < made.value < made.ci_high <= FIVE[1]


SETTINGS = settings()


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.family}, {setting.name}")
def test_intervals_of_judges_and_groups_cover(setting: Any) -> None:
    found = measure(setting)
    assert found.holds, found
    assert found.silent <= 0.1  # a judge that is hardly better than chance gives none, and the row says so


ROUNDS = 10_000
CASES = pytest.mark.parametrize(
    ("rate", "found", "rejected", "m", "n", "differ"),
    [(0.7, 0.9, 0.8, 100, 300, 0.3), (0.9, 0.95, 0.9, 50, 200, 0.1), (0.7, 0.9, 0.8, 100, 3_000, 0.3)],
)


def calibrated(rng: np.random.Generator, kind: str, m: int, known: Any, name: str) -> Correction:
    """People's verdicts, or grades, of m answers, and the judge's."""
    rate, found, rejected = known
    if kind == "grades":
        return Correction(Labelled.of(*grades(rng, m, rate, 0.3, 0.5), FIVE), name)
    human, said = verdicts(rng, m, rate, found, rejected)
    if kind == "ppi":
        return Correction(Labelled.of(human, said), name)
    right = min(max(int(human.sum()), 1), m - 1)
    agreed = int(rng.binomial(right, found)), int(rng.binomial(m - right, rejected))
    return Correction(Calibration(right, agreed[0], m - right, agreed[1]), name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ppi", "rates", "grades"])
@pytest.mark.parametrize("shared", [True, False], ids=["one calibration", "a calibration each"])
@CASES
def test_comparisons_of_corrected_rates_keep_their_level(
    kind: str, shared: bool, rate: float, found: float, rejected: float, m: int, n: int, differ: float
) -> None:
    rng, hits, tested = np.random.default_rng(4), 0, 0
    own = (5 * rate if kind == "grades" else rate, found, rejected)
    for _ in range(ROUNDS):
        if kind == "grades":
            first, second = (grades(rng, n, own[0], 0.3, 0.5)[1] for _ in range(2))
        else:
            first, second = judged(rng, n, rate, differ, found, rejected)
        known = calibrated(rng, kind, m, own, "a")
        other = known if shared else calibrated(rng, kind, m, own, "b")
        made = compare_corrected((column(first), column(second)), (known, other), None, OPTIONS)
        tested += not math.isnan(made.p_value)
        hits += made.p_value < 0.05
    assert tested > ROUNDS / 2
    assert hits / tested <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / tested)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shared"),
    [("rates", True), ("rates", False), ("ppi", True), ("ppi", False), ("grades", True), ("grades", False)],
    ids=lambda value: value if isinstance(value, str) else "one calibration" if value else "one each",
)
@CASES
def test_a_gate_over_corrected_rates_is_rarely_wrong_at_a_loss_of_exactly_the_margin(
    kind: str, shared: bool, rate: float, found: float, rejected: float, m: int, n: int, differ: float
) -> None:
    rng, made = np.random.default_rng(5), []
    levels = (3.5, 3.0) if kind == "grades" else (rate, rate - 0.1)
    margin = mean_grade(levels[0]) - mean_grade(levels[1]) if kind == "grades" else 0.1
    for _ in range(ROUNDS):
        if kind == "grades":
            columns = [column(grades(rng, n, level, 0.3, 0.5)[1]) for level in levels]
        else:
            columns = [column(verdicts(rng, n, level, found, rejected)[1]) for level in levels]
        known = [
            calibrated(rng, kind, m, (level, found, rejected), "ab"[at]) for at, level in enumerate(levels)
        ]
        pair = (known[0], known[0] if shared else known[1])
        compared = compare_corrected((columns[0], columns[1]), pair, None, OPTIONS)
        made.append(decide(compared, margin, 0.05).verdict)
    most = 0.05 + 3 * math.sqrt(0.05 * 0.95 / ROUNDS)
    assert made.count("regression") / ROUNDS <= most
    assert (made.count("pass") + made.count("worse")) / ROUNDS <= most
