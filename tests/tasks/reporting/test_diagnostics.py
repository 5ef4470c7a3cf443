"""What the diagnostics find, and what they leave alone."""

import pickle
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tasks.reporting.diagnostics import Diagnosis, diagnose
from tasks.reporting.diagnostics.answers import Frequent
from tasks.reporting.diagnostics.findings import Diagnostic, DiagnosticOptions
from tasks.reporting.diagnostics.responses import uncounted_replies
from tasks.reporting.view import LabelView, ResponseView, RunView, SampleView
from tasks.verdicts.labels import NO_TRUTH
from tests.tasks.reporting.report_recordings import CONFIG, gsm8k, run_of


def sample(number: int, **fields: Any) -> SampleView:
    answer = str(number)
    given: dict[str, Any] = {
        "item_id": str(number),
        "model_name": "m",
        "prompt_template": "p",
        "prompt": "q",
        "references": [answer],
        "responses": [ResponseView(f"It is A: {answer}", finish_reason="stop")],
        "filters": {"strict-match": [answer]},
        "scores": {"exact_match,strict-match": [float(number % 2)]},
    }
    return SampleView(**(given | fields))


def findings(samples: Iterable[SampleView], config: Any = None, **options: Any) -> dict[str, Diagnostic]:
    kept = list(samples)
    view = run_of(lambda: iter(kept), {"benchmark": "b", "config": config or {}})
    found = diagnose(view, DiagnosticOptions(**options))
    # Whatever a test is about, passes over parts of the samples, made in other processes, find the same.
    for cuts in ([1], [len(kept) // 3, len(kept) // 2]):
        assert merged(view, kept, cuts, DiagnosticOptions(**options)) == found
    return {finding.kind: finding for finding in found}


def merged(
    view: RunView, samples: list[SampleView], cuts: list[int], options: DiagnosticOptions
) -> tuple[Diagnostic, ...]:
    """What is found by passes over the samples between the cuts, each taken to another process and back."""
    passes = []
    for start, stop in pairwise([0, *cuts, len(samples)]):
        passes.append(Diagnosis(view, options))
        for one in samples[start:stop]:
            passes[-1].add(one)
    whole, *others = (pickle.loads(pickle.dumps(one)) for one in passes)
    for other in others:
        whole.merge(other)
    found: tuple[Diagnostic, ...] = whole.finish(view)
    return found


def test_an_unremarkable_run_has_no_finding() -> None:
    assert findings(sample(n) for n in range(50)) == {}


def test_the_recordings_have_no_finding_that_is_not_there() -> None:
    assert [finding.kind for finding in diagnose(gsm8k(limit=300))] == []


def test_a_right_answer_that_is_none_of_the_choices() -> None:
    def asked(number: int, gold: list[int]) -> SampleView:
        response = ResponseView(None, lls=(-1.0, -2.0), is_greedy=(True, False))
        filters = {"none": [[-1.0, -float(number)]]}
        return sample(number, choices=["a", "b"], gold=gold, responses=[response], filters=filters)

    found = findings(asked(n, [-100] if n % 5 == 0 else [n % 2]) for n in range(20))["target_outside"]
    assert (found.severity, found.count) == ("warning", 4)
    assert found.message.startswith("The right answer of 4 of 20 items (20 %) of m is none of the choices")
    assert found.examples[1].text == "'5' is none of ['a', 'b']"
    assert "target_outside" not in findings(asked(n, [-1]) for n in range(20))


def test_a_filter_that_finds_nothing() -> None:
    empty = {"filters": {"strict-match": [None]}, "scores": {"exact_match,strict-match": [0.0]}}
    found = findings(sample(n, **(empty if n % 5 == 0 else {})) for n in range(50))
    finding = found["filter_empty"]
    assert (finding.severity, finding.count) == ("warning", 10)
    assert finding.message.startswith("strict-match found nothing in 10 of 50 responses (20 %) of m.")
    assert [example.item_id for example in finding.examples] == ["0", "5", "10", "15", "20"]
    assert finding.examples[0].text == "It is A: 0"
    assert "filter_empty" not in findings(sample(n, **(empty if n == 0 else {})) for n in range(50))


def test_an_answer_that_was_not_read_for_its_coverage_is_no_filter_that_found_nothing() -> None:
    def asked(number: int, **reading: Any) -> SampleView:
        details = {"acc_letter,none": [{"rule": "first_token", "order": [0, 1], "right": [0], **reading}]}
        scores = {"acc_letter,none": [None if "error" in reading else 0.0]}
        return sample(number, filters={"none": [None]}, details=details, scores=scores)

    unread = [asked(n, coverage=0.1, error="the letters have a probability of 0.100") for n in range(20)]
    assert "filter_empty" not in findings(unread)
    found = findings([*unread, *(asked(n) for n in range(20, 40))])["filter_empty"]
    assert found.message == (
        "none found no choice in 20 of 20 responses (100 %) of m. Ask for the letter alone: "
        "choices_by.template."
    )


def test_the_harness_way_of_finding_nothing_counts_too() -> None:
    assert "filter_empty" in findings(sample(n, filters={"s": ["[invalid]"]}) for n in range(50))


def test_a_filter_is_not_blamed_for_failed_requests() -> None:
    lost = {
        "responses": [ResponseView(None, "infra_error", "HTTP 503")],
        "filters": {"strict-match": [None]},
        "scores": {"exact_match,strict-match": [None]},
    }
    found = findings(sample(n, **(lost if n % 2 else {})) for n in range(50))
    assert set(found) == {"requests_failed", "zero_variance"}
    assert "25 of 50 requests (50 %) failed" in found["requests_failed"].message
    assert "Most frequent reason (25): HTTP 503" in found["requests_failed"].message


def test_what_a_recording_lacks_was_no_request_that_failed() -> None:
    absent = {
        "responses": [ResponseView(None, "infra_error", "no recorded response", absent=True)],
        "filters": {"strict-match": [None]},
        "scores": {"exact_match,strict-match": [None]},
    }
    assert "requests_failed" not in findings(sample(n, **(absent if n % 2 else {})) for n in range(50))
    broken = absent | {"responses": [ResponseView(None, "infra_error", "HTTP 503")]}
    found = findings(sample(n, **(absent if n < 10 else broken if n < 15 else {})) for n in range(50))
    assert "5 of 40 requests (12 %) failed" in found["requests_failed"].message


def test_answers_without_a_score() -> None:
    fields = {"scores": {"judge,none": [None]}, "reasons": {"judge,none": ["no number in the reply"]}}
    found = findings(
        sample(n, **(fields if n < 3 else {"scores": {"judge,none": [n / 50]}})) for n in range(50)
    )
    assert found["unscored"].message.startswith("judge,none: 3 of 50 answers (6.0 %) could not be scored")
    assert found["unscored"].examples[0].text == "no number in the reply"


def test_answers_without_a_score_are_told_beside_failed_requests_of_their_items() -> None:
    responses = [ResponseView(None, "infra_error", "HTTP 503"), ResponseView("??"), ResponseView("1")]
    fields = {"responses": responses, "filters": {"none": [None, "??", "1"]}}
    found = findings(sample(n, **fields, scores={"judge,none": [None, None, 1.0]}) for n in range(50))
    assert found["unscored"].message.startswith("judge,none: 50 of 100 answers (50 %) could not be scored")
    unread = findings(sample(n, **fields, scores={"judge,none": [None, None, None]}) for n in range(50))
    assert unread["unscored"].severity == "error"


def test_answers_that_an_evaluation_method_could_not_judge_are_told_once_a_method() -> None:
    lost = {"status": "unscored", "details": {"error": "no reply"}, "method": "tone"}
    labels = [LabelView(name, 0, **lost) for name in ("polite", "short")]  # type: ignore[arg-type]
    judged = [LabelView("polite", 0, True, method="tone"), LabelView("right", 0, True, method="sums")]
    found = findings(sample(n, labels=labels if n < 3 else judged) for n in range(50))
    assert found["unscored"].message.startswith(
        "evaluation method tone: 3 of 50 answers (6.0 %) could not be scored"
    )
    assert found["unscored"].examples[0].text == "no reply"
    failed = {"responses": [ResponseView(None, "infra_error", "HTTP 503")], "labels": labels}
    assert "unscored" not in findings(sample(n, **failed) for n in range(50))  # type: ignore[arg-type]


def test_an_item_without_a_ground_truth_is_no_failure_of_a_method_but_a_warning() -> None:
    nothing = LabelView("sums", 0, status="unscored", details={"error": NO_TRUTH}, method="sums")
    unread = replace(nothing, details={"error": "no reply"})
    right = LabelView("sums", 0, True, method="sums")
    (found,) = all_findings([*[nothing] * 30, *[right] * 20])
    assert (found.kind, found.severity) == ("unscored", "warning")
    assert found.message.startswith(
        "evaluation method sums: 30 of 50 answers (60 %) are to items without a ground truth"
    )
    gave_up, without = all_findings([*[nothing] * 30, *[unread] * 11, *[right] * 9])
    assert gave_up.severity == "error", "more than half of what it could judge"
    assert gave_up.message.startswith("evaluation method sums: 11 of 20 answers (55 %) could not be scored")
    assert without.severity == "warning"


def test_answers_without_a_verdict_of_a_label_that_others_have_are_a_warning() -> None:
    says_nothing = LabelView("right", 0, details={"custom_fields": {"applies": False}}, method="topical")
    (found,) = all_findings([*[says_nothing] * 30, *[replace(says_nothing, passed=True)] * 20])
    assert (found.kind, found.severity) == ("unscored", "warning")
    assert found.message.startswith(
        "evaluation method topical, label right: 30 of 50 answers (60 %) have neither passed nor a score"
    )
    assert not all_findings([says_nothing] * 50), "a label that only ever tells is no verdict"


def all_findings(labels: list[LabelView]) -> tuple[Diagnostic, ...]:
    kept = [sample(number, labels=[label]) for number, label in enumerate(labels)]
    return diagnose(run_of(lambda: iter(kept), {"benchmark": "b", "config": {}}))


def test_answers_at_the_limit_of_a_model_that_thinks_may_be_its_thoughts() -> None:
    ended = {"responses": [ResponseView("Let me see", finish_reason="length")]}
    thinks = {"responses": [ResponseView("4", finish_reason="stop", reasoning="2 and 2")]}
    plain = findings(sample(n, **(ended if n < 5 else {})) for n in range(50))
    assert "thought_unended" not in plain
    found = findings(sample(n, **(ended if n < 5 else thinks)) for n in range(50))
    assert "5 of 50 answers (10 %)" in found["thought_unended"].message


@pytest.mark.parametrize("finish", ["length", "max_tokens"])
def test_responses_cut_off_at_the_limit(finish: str) -> None:
    cut = {"responses": [ResponseView("and then", finish_reason=finish)]}
    found = findings(sample(n, **(cut if n < 5 else {})) for n in range(50))
    assert found["truncated"].severity == "warning"
    assert "5 of 50 responses (10 %)" in found["truncated"].message
    assert findings(sample(n, **(cut if n == 0 else {})) for n in range(200))["truncated"].severity == "note"


def test_replies_without_token_counts_are_told_once_a_model() -> None:
    def told(config: dict[str, Any]) -> list[Diagnostic]:
        models = {"m": {"uncounted": 20}, "counted": {"uncounted": 0}, "older": {}}
        manifest = {"config": config, "models": models, "judges": {"j": {"uncounted": 1}}}
        return list(uncounted_replies(manifest))

    limited, judge = told({"limits": {"max_tokens": 60, "max_cost": None}})
    assert (limited.kind, limited.severity, limited.count, judge.count) == ("uncounted", "warning", 20, 1)
    assert limited.message.startswith("m: 20 answers came without token counts")
    assert "limits.max_tokens was held by an estimate" in limited.message
    free, _ = told({})
    assert (free.severity, "limits" in free.message) == ("note", False)


def test_a_finish_reason_that_nobody_knows_is_named() -> None:
    odd = [{"responses": [ResponseView("4", finish_reason=name)]} for name in ("melted", "EVICTED", "EOS")]
    found = findings(sample(n, **(odd[n] if n < 3 else {})) for n in range(50))["unknown_finish"]
    assert (found.severity, found.count) == ("warning", 2)
    assert "2 of 50 responses (4.0 %) ended with a finish reason that is not known" in found.message
    assert "(melted, EVICTED)" in found.message


def test_empty_responses_say_what_came_instead() -> None:
    empty = {"responses": [ResponseView("  ", finish_reason="length", reasoning="let me think")]}
    found = findings(sample(n, **(empty if n < 5 else {})) for n in range(50))
    assert found["empty_response"].examples[0].text == "reasoning only: let me think"
    likelihoods = {"responses": [ResponseView(None, lls=[-1.0, -2.0])]}
    assert "empty_response" not in findings(sample(n, **likelihoods) for n in range(50))


def test_the_same_answer_whatever_is_asked() -> None:
    same = {"filters": {"strict-match": ["42"]}}
    found = findings(sample(n, **(same if n >= 5 else {})) for n in range(50))
    assert "“42” in at least 90 % of 50 predictions" in found["same_answer"].message
    every = findings(sample(n, **same) for n in range(50))
    assert "“42” in 100 % of 50 predictions" in every["same_answer"].message
    assert "same_answer" not in findings(sample(n, **same, references=["42"]) for n in range(50))
    assert "same_answer" not in findings(sample(n, **same) for n in range(5))


def test_answers_that_call_tools_are_the_same_where_their_calls_are() -> None:
    def calling(number: int, city: str) -> SampleView:
        call = {"name": "weather", "arguments": {"city": city}}
        return sample(number, filters={"none": [""]}, responses=[ResponseView("", tool_calls=[call])])

    assert "same_answer" not in findings(calling(n, f"city {n}") for n in range(50))
    every = findings(calling(n, "Rome") for n in range(50))
    assert 'm answers “weather({"city": "Rome"})” in 100 % of' in every["same_answer"].message


def test_scores_that_never_vary() -> None:
    found = findings(sample(n, scores={"exact_match,strict-match": [0.0]}) for n in range(50))
    assert found["zero_variance"].message.startswith(
        "exact_match,strict-match: all 50 items of m with prompt p score 0."
    )
    assert "zero_variance" not in findings(
        sample(n, scores={"exact_match,strict-match": [0.0]}) for n in range(9)
    )
    no_number = {"scores": {"bleu,none": [float("nan")]}}
    assert findings(sample(n, **no_number) for n in range(50)) == {}


def test_repeats_that_disagree() -> None:
    def repeated(n: int) -> SampleView:
        return sample(
            n, responses=[ResponseView("a")] * 2, filters={}, scores={"em,none": [0.0, float(n % 2)]}
        )

    finding = findings(repeated(n) for n in range(50))["repeats_disagree"]
    assert (finding.severity, finding.count) == ("note", 25)
    assert "25 of 50 items (50 %)" in finding.message
    assert finding.examples[0].text == "scores 0, 1"


def test_labels_alone_are_no_reason_for_a_finding() -> None:
    labels = [LabelView("quality", 0, True, 1.0)]
    assert findings(sample(n, labels=labels) for n in range(50)) == {}


def test_empty_references() -> None:
    found = findings(sample(n, **({"references": [" "]} if n < 5 else {})) for n in range(50))
    assert "5 of 50 samples (10 %) have an empty reference" in found["reference_missing"].message
    choices = {"references": [], "choices": ["a", "b"]}
    assert "reference_missing" not in findings(sample(n, **choices) for n in range(50))


WITHOUT_COMMA = {"name": "strict-match", "filter": [{"function": "regex", "regex_pattern": r"A: (\d+)"}]}


def wrong(number: int, reference: str) -> SampleView:
    return sample(number, references=[reference], scores={"exact_match,strict-match": [0.0]})


@pytest.mark.parametrize(
    ("metric", "unreachable"),
    [("exact_match", 4), ({"metric": "exact_match", "ignore_punctuation": True}, 4), ("bleu", 0)],
)
def test_references_that_the_filter_cannot_produce(metric: Any, unreachable: int) -> None:
    config = {"filter_list": [WITHOUT_COMMA | {"metric_list": [metric]}]}
    samples = [
        wrong(n, f"1,00{n}") if n < 4 else sample(n, scores={"exact_match,strict-match": [n % 2]})
        for n in range(20)
    ]
    found = findings(samples, config)
    if not unreachable:
        assert "reference_unreachable" not in found
        return
    assert found["reference_unreachable"].count == unreachable
    assert found["reference_unreachable"].examples[0].text == "“1,000” comes out as “1”"
    assert "4 of 20 items (20 %) tested" in found["reference_unreachable"].message


def test_references_that_the_metric_makes_equal_are_reachable() -> None:
    exact = {"metric": "exact_match", "regexes_to_ignore": [",", "(?s).*#### "]}
    config = {"filter_list": [CONFIG["filter_list"][0] | {"metric_list": [exact]}]}
    samples = [wrong(n, f"Some 5 steps\n#### {n},000") for n in range(20)]
    assert "reference_unreachable" not in findings(samples, config)


def test_a_right_answer_of_another_model_shows_that_a_reference_is_reachable() -> None:
    config = {"filter_list": [WITHOUT_COMMA]}
    samples = [wrong(n, f"1,00{n}") for n in range(9)]
    right = [sample(n, model_name="other", scores={"exact_match,strict-match": [1.0]}) for n in range(9)]
    assert "reference_unreachable" in findings(samples, config)
    assert "reference_unreachable" not in findings(samples + right, config)


def test_a_users_filter_that_needs_the_item_is_left_alone() -> None:
    config = {"filter_list": [{"name": "strict-match", "filter": [{"function": "mine.py:pick"}]}]}
    assert "reference_unreachable" not in findings([wrong(n, "x") for n in range(20)], config)


def test_two_filters_that_disagree_about_the_same_answers() -> None:
    def both(n: int) -> SampleView:
        scores = {"exact_match,strict": [0.0 if n else 1.0], "exact_match,loose": [float(n % 2)]}
        return sample(n, filters={}, scores=scores)

    finding = findings(both(n) for n in range(50))["format_gap"]
    assert finding.message.startswith("m · p: exact_match is 0.4800 higher with loose than with strict")


@pytest.mark.parametrize(
    ("strict", "loose", "told"),
    [
        ([], ["majority_vote"], False),
        (["take_first"], ["majority_vote"], False),
        ([{"function": "take_first_k", "k": 2}], [{"function": "take_first_k", "k": 3}], False),
        ([], ["mine.py:pick"], True),
        (["take_first"], ["strip", "take_first"], True),
    ],
)
def test_filters_that_keep_other_samples_are_no_other_format(
    strict: list[Any], loose: list[Any], told: bool
) -> None:
    scores = {"exact_match,strict": [0.0], "exact_match,loose": [1.0]}
    config = {"filter_list": [{"name": "strict", "filter": strict}, {"name": "loose", "filter": loose}]}
    found = findings([sample(n, filters={}, scores=scores) for n in range(50)], config)
    assert ("format_gap" in found) is told


def test_filters_that_leave_other_numbers_of_samples_are_no_other_format() -> None:
    scores = {"exact_match,strict": [0.0, 0.0], "exact_match,loose": [1.0]}
    assert "format_gap" not in findings([sample(n, filters={}, scores=scores) for n in range(50)])


def test_two_groups_that_are_named_alike_are_no_two_filters() -> None:
    right = [sample(n, prompt_template="p · q", scores={"exact_match,none": [1.0]}) for n in range(50)]
    wrong = [replace(one, model_name="m · p", prompt_template="q") for one in right]
    wrong = [replace(one, scores={"exact_match,none": [0.0]}) for one in wrong]
    assert "format_gap" not in findings(right + wrong)


def test_the_gravest_comes_first() -> None:
    samples = [
        sample(n, filters={"strict-match": [None]}, scores={"judged,strict-match": [None]}) for n in range(50)
    ]
    found = diagnose(run_of(lambda: iter(samples), {"benchmark": "b"}))
    assert [finding.severity for finding in found] == ["error", "warning"]


def test_only_what_leaves_nothing_to_score_is_an_error() -> None:
    """An error ends the run with exit code 1: a judge that can't be read, answers that were all cut off."""
    empty = ResponseView("", finish_reason="stop")
    failed = ResponseView(None, status="infra_error", error="time-out")
    cut = ResponseView(None, status="cut_off")
    mostly = {"scores": {"judged,strict-match": [None]}, "reasons": {"judged,strict-match": ["no label"]}}
    for fields, found in (
        ({"responses": [empty], "filters": {"strict-match": [None]}, "references": [""]}, set()),
        ({"responses": [failed], "scores": {"exact_match,strict-match": [None]}}, set()),
        (mostly, {"unscored"}),
        ({"responses": [cut], "filters": {"strict-match": [None]}}, {"all_cut_off"}),
    ):
        told = findings(sample(n, **fields) for n in range(50))  # type: ignore[arg-type]
        assert {kind for kind, finding in told.items() if finding.severity == "error"} == found
    read = {"scores": {"judged,strict-match": [1.0]}}
    few = findings(sample(n, **(mostly if n % 3 == 0 else read)) for n in range(50))  # type: ignore[arg-type]
    assert few["unscored"].severity == "warning"


def test_the_most_frequent_text_is_found_in_bounded_memory() -> None:
    frequent = Frequent(size=10)
    for n in range(10_000):
        frequent.add("same" if n % 2 else f"other {n}")
    text, times = frequent.top()
    assert text == "same"
    assert 4_000 <= times <= 5_000
    assert Frequent().top() == ("", 0)


def test_frequent_texts_are_found_in_merged_streams() -> None:
    whole = Frequent(size=10)
    for part in range(20):
        frequent = Frequent(size=10)
        for n in range(500):
            frequent.add("same" if n % 2 else f"other {part} {n}")
        whole.merge(frequent)
    text, times = whole.top()
    assert (text, whole.total) == ("same", 10_000)
    assert 4_000 <= times <= 5_000
