"""A judge's rate without its bias: the formula, its interval, and what the interval covers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.errors import ConfigError
from scorers.judge.calibration import Calibration, Labelled, corrected_estimate, corrected_rate, ppi_estimate

PROPERTY = settings(deadline=None, derandomize=True, max_examples=60)


def verdicts(positive, n):
    return np.repeat([1.0, 0.0], [positive, n - positive])


def test_sensitivity_and_specificity_are_shares_of_the_human_verdicts():
    calibration = Calibration.of(
        [True, True, True, True, False, False], [True, True, True, False, False, True]
    )
    assert calibration.sensitivity == 0.75
    assert calibration.specificity == 0.5


@pytest.mark.parametrize("human", [[True, True], [False, False], []])
def test_calibration_needs_right_and_wrong_answers(human):
    with pytest.raises(ConfigError, match="need some of both"):
        Calibration.of(human, human)


def test_corrected_rate_solves_the_confusion():
    calibration = Calibration(right=100, found=90, wrong=100, rejected=80)
    true_rate = 0.6
    judged = true_rate * 0.9 + (1 - true_rate) * 0.2
    assert calibration.corrected(judged) == pytest.approx(true_rate)


def test_corrected_rate_stays_between_zero_and_one():
    calibration = Calibration(right=10, found=9, wrong=10, rejected=8)
    assert calibration.corrected(0.0) == 0
    assert calibration.corrected(1.0) == 1


def test_interval_is_the_published_one():
    # p = 0.7, specificity 0.8 of 100, sensitivity 0.9 of 100, n = 200, worked by hand from Lee et al. 2025.
    z = 1.959963984540054
    p, n = (200 * 0.7 + z**2 / 2) / (200 + z**2), 200 + z**2
    q0, q1, m = 81 / 102, 91 / 102, 102
    theta = (p + q0 - 1) / (q0 + q1 - 1)
    shift = 2 * z**2 * (theta * q1 * (1 - q1) / m - (1 - theta) * q0 * (1 - q0) / m)
    spread = (p * (1 - p) / n + (1 - theta) ** 2 * q0 * (1 - q0) / m + theta**2 * q1 * (1 - q1) / m) ** 0.5
    stderr = spread / (q0 + q1 - 1)
    estimate = corrected_estimate(Calibration(100, 90, 100, 80), verdicts(140, 200), None, 0.95)
    assert estimate.value == pytest.approx((0.7 + 0.8 - 1) / 0.7)
    assert estimate.stderr == pytest.approx(stderr)
    assert (estimate.ci_low, estimate.ci_high) == pytest.approx(
        (theta + shift - z * stderr, theta + shift + z * stderr)
    )
    assert (estimate.stderr_method, estimate.n_items) == ("calibration", 200)


def test_interval_is_wider_with_a_smaller_calibration():
    wide = corrected_estimate(Calibration(10, 9, 10, 8), verdicts(140, 200), None, 0.95)
    narrow = corrected_estimate(Calibration(1000, 900, 1000, 800), verdicts(140, 200), None, 0.95)
    assert wide.value == narrow.value
    assert wide.ci_high - wide.ci_low > narrow.ci_high - narrow.ci_low


def test_clusters_widen_the_interval():
    calibration = Calibration(500, 450, 500, 400)
    positives = np.repeat([1.0, 0.0, 1.0, 1.0, 0.0], 40)
    alone = corrected_estimate(calibration, positives, None, 0.95)
    clustered = corrected_estimate(calibration, positives, np.repeat(np.arange(5), 40), 0.95)
    assert clustered.value == alone.value
    assert clustered.stderr > 2 * alone.stderr


def test_judge_no_better_than_chance_corrects_nothing_and_says_so():
    estimate = corrected_estimate(Calibration(10, 5, 10, 5), verdicts(7, 10), None, 0.95)
    assert np.isnan([estimate.value, estimate.stderr, estimate.ci_low, estimate.ci_high]).all()
    assert "no better than chance" in estimate.warning
    assert np.isnan(corrected_rate(Calibration(10, 5, 10, 5)).value(verdicts(7, 10).reshape(-1, 1), None))


def test_no_items_have_no_rate():
    estimate = corrected_estimate(Calibration(10, 9, 10, 8), verdicts(0, 0), None, 0.95)
    assert np.isnan(estimate.value)
    assert estimate.n_items == 0


@PROPERTY
@given(positive=st.integers(0, 50), found=st.integers(6, 10), rejected=st.integers(6, 10))
def test_interval_lies_within_zero_and_one_and_in_order(positive, found, rejected):
    calibration = Calibration(10, found, 10, rejected)
    estimate = corrected_estimate(calibration, verdicts(positive, 50), None, 0.95)
    if calibration.doubt:
        assert "no better than chance" in str(estimate.warning)
        assert np.isnan([estimate.value, estimate.ci_low, estimate.ci_high]).all()
        return
    if np.isnan(estimate.ci_low):
        assert "does not fit" in str(estimate.warning)
    else:
        assert 0 <= estimate.ci_low <= estimate.value <= estimate.ci_high <= 1
        assert estimate.ci_low < estimate.ci_high
    table = verdicts(positive, 50).reshape(-1, 1)
    assert corrected_rate(calibration).value(table, None) == pytest.approx(estimate.value)


def test_a_judge_that_only_smoothing_condemns_has_no_negative_error_bar():
    made = corrected_estimate(
        Calibration(right=5, found=5, wrong=40, rejected=3), verdicts(120, 200), None, 0.95
    )
    assert np.isnan([made.value, made.stderr, made.ci_low, made.ci_high]).all()  # was -18.6 and [1, 0]
    assert "specificity 0.07 of 40" in made.warning


def test_a_lenient_judge_never_turns_an_interval_over():
    rng = np.random.default_rng(4)
    for _ in range(2000):
        calibration = Calibration(40, int(rng.binomial(40, 0.95)), 40, int(rng.binomial(40, 0.2)))
        made = corrected_estimate(calibration, verdicts(int(rng.binomial(200, 0.88)), 200), None, 0.95)
        assert made.warning or (made.stderr > 0 and made.ci_low <= made.value <= made.ci_high)


def test_four_clusters_of_right_answers_have_a_width_and_one_cluster_no_interval():
    calibration = Calibration(500, 450, 500, 450)
    four = corrected_estimate(calibration, np.ones(40), np.repeat(np.arange(4), 10), 0.95)
    assert four.ci_low < 0.8
    assert four.ci_high == 1.0
    assert four.warning == "only 4 clusters: the error bar is a rough guide"
    one = corrected_estimate(calibration, verdicts(30, 40), np.zeros(40, dtype=np.int64), 0.95)
    assert (one.value, one.warning) == (pytest.approx(0.8125), "one cluster has no spread")
    assert np.isnan([one.stderr, one.ci_low, one.ci_high]).all()


@pytest.mark.parametrize(("accepted", "value"), [(98, 1.0), (0, 0.0)])
def test_a_judge_that_accepts_what_its_calibration_rules_out_has_no_interval(accepted, value):
    calibration = Calibration(right=60, found=48, wrong=60, rejected=54 if accepted else 36)
    made = corrected_estimate(calibration, verdicts(accepted, 100), None, 0.95)
    assert (made.value, made.stderr_method) == (value, "none")
    assert np.isnan([made.stderr, made.ci_low, made.ci_high]).all()
    allowed = "10 % to 80 %" if accepted else "40 % to 80 %"
    assert made.warning == (
        f"the judge accepts {accepted} % of the answers, where its sensitivity and specificity allow "
        f"{allowed}: the calibration does not fit these answers"
    )


def test_an_interval_at_the_edge_is_as_wide_as_its_standard_error():
    # A judge that finds 27 of 30 right answers accepts 475 of 500: chance explains that, just about.
    made = corrected_estimate(Calibration(30, 27, 30, 27), verdicts(475, 500), None, 0.95)
    assert (made.value, made.ci_high, made.warning) == (1.0, 1.0, None)
    assert made.ci_low < 1 - made.stderr


@pytest.mark.parametrize("true_rate", [0.2, 0.5, 0.85])
def test_interval_covers_the_true_rate(true_rate):
    rng = np.random.default_rng(20250911)
    q1, q0, n, m = 0.9, 0.8, 200, 100
    covered = 0
    for _ in range(4000):
        judged = rng.binomial(n, true_rate * q1 + (1 - true_rate) * (1 - q0))
        calibration = Calibration(m, int(rng.binomial(m, q1)), m, int(rng.binomial(m, q0)))
        estimate = corrected_estimate(calibration, verdicts(judged, n), None, 0.95)
        covered += estimate.ci_low <= true_rate <= estimate.ci_high
    assert 0.935 <= covered / 4000 <= 0.975


def ppi_data(rng, n, m, true_rate, q1, q0):
    human = rng.random(m) < true_rate
    judge = np.where(human, rng.random(m) < q1, rng.random(m) >= q0)
    judged = rng.binomial(n, true_rate * q1 + (1 - true_rate) * (1 - q0))
    return Labelled.of(human, judge), judged


@pytest.mark.parametrize(
    ("true_rate", "q1", "q0", "m"),
    [(0.5, 0.9, 0.8, 100), (0.85, 0.9, 0.8, 100), (0.7, 0.95, 0.2, 200), (0.6, 0.5, 0.5, 100)],
)
def test_ppi_covers_the_true_rate_whatever_the_judge_is_worth(true_rate, q1, q0, m):
    rng = np.random.default_rng(7)
    covered, values = 0, []
    for _ in range(2000):
        calibration, judged = ppi_data(rng, 500, m, true_rate, q1, q0)
        made = ppi_estimate(calibration, verdicts(judged, 500), None, 0.95)
        covered += made.ci_low <= true_rate <= made.ci_high
        values.append(made.value)
    assert 0.93 - 0.01 <= covered / 2000 <= 0.985 + 0.01
    assert np.mean(values) == pytest.approx(true_rate, abs=0.005)


def test_ppi_is_narrower_than_people_alone_with_a_good_judge_and_never_much_wider():
    rng = np.random.default_rng(8)
    good, judged = ppi_data(rng, 2000, 100, 0.6, 0.95, 0.95)
    alone = (0.6 * 0.4 / 99) ** 0.5
    assert ppi_estimate(good, verdicts(judged, 2000), None, 0.95).stderr < 0.6 * alone
    useless, judged = ppi_data(rng, 2000, 100, 0.6, 0.5, 0.5)
    assert ppi_estimate(useless, verdicts(judged, 2000), None, 0.95).stderr < 1.1 * alone


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-math.inf, math.inf)])
def test_ppi_says_when_clusters_are_few_or_a_few_hold_most_of_the_items(bounds):
    people, judged = np.tile([1.0, 0.0], 60), np.tile([1.0, 0.0, 1.0, 1.0], 50)
    labelled = Labelled.of(people, people, bounds)
    said = [
        ppi_estimate(labelled, judged, clusters, 0.95).warning
        for clusters in (None, np.arange(200) % 4, np.minimum(np.arange(200) // 5, 20), np.arange(200) // 5)
    ]
    assert (said[0], said[3]) == (None, None)
    assert "only 4 clusters" in said[1]
    assert "count as 3.8 equal ones" in said[2]


def test_ppi_says_when_people_said_little():
    labelled = Labelled.of([1] * 8 + [0] * 4, [1] * 7 + [0, 1] + [0] * 3)
    made = ppi_estimate(labelled, verdicts(30, 50), None, 0.95)
    assert made.warning == "only 12 verdicts of people: the error bar is a rough guide"
    assert made.stderr_method == "prediction-powered inference"
    value = corrected_rate(labelled).value(verdicts(30, 50).reshape(-1, 1), None)
    assert value == pytest.approx(made.value)


def test_a_judge_that_is_hardly_better_than_chance_is_warned_about() -> None:
    positives = np.array([1.0] * 50 + [0.0] * 50)
    weak = corrected_estimate(Calibration(42, 28, 42, 28), positives, None, 0.95)
    assert "hardly better than chance" in str(weak.warning)
    assert corrected_estimate(Calibration(100, 90, 100, 80), positives, None, 0.95).warning is None
