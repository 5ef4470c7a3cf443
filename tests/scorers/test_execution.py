"""What is run of an answer, and the score that its outcome makes."""

from typing import Any

import numpy as np
import pytest

from metrics.errors import ConfigError
from scorers.base import ScorerError
from scorers.config import Program, ProgramLimits, ProgramOutcome, ScoringConfig, read_cases, same_output
from scorers.execution import ExecutionScorer
from scorers.factory import build_scorer


def built(metrics: list[Any] | None = None, **scorer: Any) -> ExecutionScorer:
    config = {
        "filter_list": [{"name": "code"}],
        "scorer": {"type": "execution", **scorer},
        **({"metric_list": metrics} if metrics is not None else {}),
    }
    whole = ScoringConfig.model_validate(config)
    made = build_scorer(whole, lambda name: None)  # type: ignore[arg-type,return-value]
    assert isinstance(made, ExecutionScorer)
    return made


def test_programs_are_the_template_over_the_sample(make_batch: Any) -> None:
    scorer = built(program="{{ prediction }}\n{{ test }}")
    batch = make_batch(["x = 1", None, ""], docs=[{"test": "assert x"}] * 3)
    made = scorer.programs(batch)
    assert [program.text if program else None for program in made] == ["x = 1\nassert x", None, "\nassert x"]
    assert made[0] == Program("x = 1\nassert x", ProgramLimits())


def test_a_template_that_lacks_a_field_names_it(make_batch: Any) -> None:
    scorer = built(program="{{ prediction }}\n{{ tests }}")
    with pytest.raises(ScorerError, match=r"scorer.program: 'tests' is undefined.*did you mean 'test'"):
        scorer.programs(make_batch(["x"], docs=[{"test": "assert x"}]))


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        ("no json", "is a text that is no JSON"),
        ([{"input": "1"}], "has no case, or one without input or output"),
        ([], "has no case"),
        ({"inputs": ["1"], "outputs": []}, "of one length"),
        ({"inputs": ["1"], "outputs": ["1"], "fn_name": "f"}, "calls a function"),
        ([{"input": "1", "output": "1", "testtype": "functional"}], "testtype functional"),
        (7, "is neither a list of"),
    ],
)
def test_cases_that_cannot_be_read_are_refused_by_item(make_batch: Any, cases: Any, said: str) -> None:
    scorer = built(cases="tests")
    with pytest.raises(ScorerError, match=said):
        scorer.programs(make_batch(["x"], docs=[{"tests": cases}]))
    with pytest.raises(ScorerError, match="no field 'tests'; the item has other"):
        scorer.programs(make_batch(["x"], docs=[{"other": cases}]))


def test_cases_of_several_shapes() -> None:
    assert read_cases({"inputs": [["1", "2"]], "outputs": [["3"]]}) == (("1\n2",), ("3",))
    assert read_cases([{"input": 1, "output": 2.5}]) == (("1",), ("2.5",))


@pytest.mark.parametrize("other", ["\u2028", "\u2029", "\x0c", "\x0b", "\x1e", "\x85", "\r"])
def test_only_a_newline_ends_a_line_that_was_printed(other: str) -> None:
    assert not same_output(f"a{other}b\n", "a\nb", "lines")
    assert same_output(f"a{other}b\n", f"a{other}b", "lines")
    assert same_output("a \r\nb\r\n\r\n", "a\nb", "lines")


def test_a_time_out_is_wrong_and_a_broken_sandbox_is_unscored(make_batch: Any) -> None:
    scorer = built(metrics=["tests_passed", {"metric": "tests_passed", "count": "share", "alias": "share"}])
    every, share = scorer.get_metrics("code")
    outcomes = [
        ProgramOutcome("passed", ("passed", "passed")),
        ProgramOutcome("timeout", ("passed", "timeout", "timeout", "timeout")),
        ProgramOutcome("memory"),
        ProgramOutcome("output"),
        ProgramOutcome("failed", ("failed", "passed"), exit_code=1, stderr="Traceback"),
        ProgramOutcome("sandbox_error", error="sandbox bubblewrap: no room"),
        None,
    ]
    batch = make_batch(["p"] * 6 + [None])
    scored = scorer.score_outcomes(batch, every, outcomes)
    np.testing.assert_equal(scored.scores.score, [1, 0, 0, 0, 0, np.nan, 0])
    assert scored.errors[5] == "sandbox bubblewrap: no room"
    assert scored.scored.tolist() == [True] * 5 + [False, True]
    shares = scorer.score_outcomes(batch, share, outcomes).scores.score
    np.testing.assert_equal(shares, [1, 0.25, 0, 0, 0.5, np.nan, 0])
    details = scored.scores.details
    assert (details or [])[4] == {
        "verdict": "failed",
        "sandbox": "",
        "cases": ["failed", "passed"],
        "exit_code": 1,
        "stderr": "Traceback",
    }
    assert every.aggregation.bounds == (0.0, 1.0)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"metric_list": [{"metric": "tests_passed", "count": "some"}]},
            "or share, got 'some'",
        ),
        ({"metric_list": [{"metric": "tests_passed", "k_": 1}]}, "takes no argument 'k_'"),
        ({"scorer": {"type": "execution", "program": "{{ prediction"}}, "line 1"),
        ({"output_type": "multiple_choice"}, "looks at text"),
        ({"scorer": None, "metric_list": ["tests_passed"]}, "add scorer: {type: execution"),
    ],
)
def test_configs_that_cannot_work_are_refused(config: dict[str, Any], said: str) -> None:
    whole = ScoringConfig.model_validate({"scorer": "execution", **config})
    with pytest.raises(ConfigError, match=said):
        build_scorer(whole, lambda name: None)  # type: ignore[arg-type,return-value]
