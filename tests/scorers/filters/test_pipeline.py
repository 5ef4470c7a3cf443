"""Pipelines: what is refused at load, what a user's step may return, and that nothing is written into."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.errors import ConfigError
from scorers.base import FilterError
from scorers.config import FilterConfig
from scorers.filters import FILTERS, FilterPipeline, filter_step

PROPERTY = settings(deadline=None, derandomize=True, max_examples=60)


def build(*steps, resolve=None, output_type="generate_until"):
    return FilterPipeline.build(FilterConfig(name="f", filter=list(steps)), resolve, output_type)


def user(function):
    return build("user.py:fn", resolve=lambda reference: function)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("regexx", "'regexx' is not known; did you mean 'regex'"),
        (
            {"function": "regex", "regex_patern": "x"},
            "no argument 'regex_patern'; did you mean 'regex_pattern'",
        ),
        ({"function": "regex", "regex_pattern": "("}, r"unterminated subpattern"),
        ({"function": "regex", "regex_pattern": 5}, "'regex_pattern': Input should be a valid string, not 5"),
        ({"function": "regex", "group_select": "1"}, "'group_select'"),
        ("take_first_k", "needs the argument 'k'"),
        ({"function": "take_first_k", "k": 0}, "k must be at least 1"),
        ({"function": "take_first", "k": 2}, "no argument 'k'"),
        ({"function": "multi_choice_regex", "regexes_to_ignore": ["("]}, "unterminated"),
        ({"function": "map", "mapping_dict": ["A"]}, "'mapping_dict'"),
        ("custom", "needs filter_fn"),
        ("decontaminate", "remove the step"),
    ],
)
def test_step_that_cannot_work_is_refused_at_load(step, message):
    with pytest.raises(
        ConfigError, match=message.replace("(", r"\(") if "unterminated" not in message else message
    ):
        build(step)


def test_text_step_is_refused_where_there_are_only_log_likelihoods():
    with pytest.raises(ConfigError, match="'lowercase' works on text, but output_type multiple_choice"):
        build("lowercase", output_type="multiple_choice")


def test_selection_works_on_log_likelihoods():
    pipeline = build({"function": "take_first_k", "k": 2}, "majority_vote", output_type="multiple_choice")
    responses = [[(-1.0, True), (-2.0, False), (-2.0, False)], [(-3.0, False), (-3.0, False)]]
    assert pipeline.apply(responses, [{}, {}]) == [[(-1.0, True)], [(-3.0, False)]]


def test_steps_run_in_order():
    pipeline = build(
        {"function": "regex", "regex_pattern": "A: (.*)"}, "normalize_number", "majority_vote", "take_first"
    )
    assert pipeline.apply([["A: $7.", "A: 7", "B: 9"]], [{}]) == [["7"]]


def test_pipeline_without_steps_leaves_responses_whole():
    assert build().apply([["a", None]], [{}]) == [["a", None]]


@pytest.mark.parametrize(
    ("steps", "n", "left"),
    [
        ((), 4, 4),
        (("lowercase", "take_first"), 4, 1),
        (({"function": "take_first_k", "k": 3}, "lowercase"), 4, 3),
        (("majority_vote",), 4, 1),
        (("collect",), 4, 1),
    ],
)
def test_pipeline_knows_how_many_repeats_it_keeps(steps, n, left):
    assert build(*steps).keeps(n) == left


def test_pipeline_that_needs_more_repeats_than_there_are_is_refused():
    with pytest.raises(ConfigError, match="take_first_k needs 8 repeats and there are 4"):
        build({"function": "take_first_k", "k": 8}).keeps(4)


def test_users_step_may_keep_any_number_of_repeats():
    assert user(lambda resps, docs: resps).keeps(4) is None


def test_users_step_sees_documents_and_arguments():
    def fn(resps, docs, *, sign):
        return [[doc["x"] + sign for _ in item] for item, doc in zip(resps, docs, strict=True)]

    pipeline = build({"function": "user.py:fn", "sign": "!"}, resolve=lambda _: fn)
    assert pipeline.apply([["a"], ["b"]], [{"x": "1"}, {"x": "2"}]) == [["1!"], ["2!"]]


def test_argument_that_a_users_step_does_not_take_is_refused():
    def fn(resps, docs, *, sign):
        return resps

    with pytest.raises(ConfigError, match="no argument 'sing'; did you mean 'sign'"):
        build({"function": "user.py:fn", "sing": "!"}, resolve=lambda _: fn)
    with pytest.raises(ConfigError, match="needs the argument 'sign'"):
        build("user.py:fn", resolve=lambda _: fn)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda resps, docs: resps[:1], "returned 1 items for 2"),
        (
            lambda resps, docs: [[*item, "more"] for item in resps],
            "returned 2 predictions for the 1 responses of item 0",
        ),
        (lambda resps, docs: [[] for _ in resps], "returned 0 predictions"),
        (lambda resps, docs: [item[5] for item in resps], "raised IndexError"),
        (lambda resps, docs: None, "raised TypeError"),
    ],
)
def test_users_step_with_another_shape_is_named(function, message):
    with pytest.raises(FilterError, match=message):
        user(function).apply([["a"], ["b"]], [{}, {}])


def test_users_step_may_return_lazy_rows_and_bare_predictions():
    assert user(lambda resps, docs: (item[0] for item in resps)).apply([["a", "b"]], [{}]) == [["a"]]
    assert user(lambda resps, docs: (iter(item) for item in resps)).apply([["a", "b"]], [{}]) == [["a", "b"]]


def test_users_step_cannot_write_into_the_responses():
    def fn(resps, docs):
        for item in resps:
            item[:] = ["changed"] * len(item)
        resps.reverse()
        return resps

    responses = [["a"], ["b"]]
    user(fn).apply(responses, [{}, {}])
    assert responses == [["a"], ["b"]]


def test_filter_class_of_the_harness_form_is_constructed_once_with_its_arguments():
    made = []

    class Prefix:
        def __init__(self, prefix):
            made.append(prefix)
            self.prefix = prefix

        def apply(self, resps, docs):
            return [[self.prefix + text for text in item] for item in resps]

    pipeline = build({"function": "user.py:Prefix", "prefix": ">"}, resolve=lambda _: Prefix)
    assert pipeline.apply([["a"]], [{}]) == pipeline.apply([["a"]], [{}]) == [[">a"]]
    assert made == [">"]
    with pytest.raises(ConfigError, match="no argument 'prefx'; did you mean 'prefix'"):
        build({"function": "user.py:Prefix", "prefx": ">"}, resolve=lambda _: Prefix)


def test_class_without_apply_is_refused():
    with pytest.raises(ConfigError, match=r"has no method apply\(resps, docs\)"):
        build("user.py:C", resolve=lambda _: type("C", (), {}))


def test_code_of_a_pipeline_is_the_users_function():
    def fn(resps, docs):
        return resps

    assert user(fn).code() == (fn,)
    assert build("take_first").code() == (FILTERS["take_first"].function,)


@pytest.mark.usefixtures("own_names")
def test_registered_function_of_a_user_brings_what_it_keeps():
    @filter_step("test_pipeline_first", keeps="one", text=False)
    def first_of_all(resps, docs):
        return [item[:1] for item in resps]

    assert user(first_of_all).keeps(9) == 1
    assert build("test_pipeline_first").apply([["a", "b"]], [{}]) == [["a"]]


@pytest.mark.usefixtures("own_names")
def test_registered_function_of_a_user_is_checked_like_any_other_of_theirs():
    @filter_step("test_pipeline_short")
    def drops_items(resps, docs):
        return resps[1:] if resps[0] else resps

    with pytest.raises(FilterError, match="'test_pipeline_short' returned 1 items for 2"):
        build("test_pipeline_short").apply([["a"], ["b"]], [{}, {}])


def test_text_step_after_one_that_gives_numbers_says_what_to_do():
    pipeline = build({"function": "map", "mapping_dict": {"A": 1}}, "lowercase")
    with pytest.raises(
        FilterError, match="'lowercase' works on text, but an earlier step gave it int 1; move it"
    ):
        pipeline.apply([["A"]], [{}])


def test_take_first_k_of_too_few_names_the_item():
    with pytest.raises(FilterError, match="needs 2 responses per item, but item 1 of the batch has 1"):
        build({"function": "take_first_k", "k": 2}).apply([["a", "b"], ["c"]], [{}, {}])


def test_filter_name_that_results_could_not_bear_is_refused():
    with pytest.raises(ValueError, match="metric,filter"):
        FilterConfig(name="with,comma")


TEXT_STEPS = [
    name
    for name in FILTERS
    if name not in ("custom", "multi_choice_regex", "take_first_k", "test_pipeline_first")
]
responses = st.lists(st.lists(st.none() | st.text(max_size=20), min_size=1, max_size=4), max_size=4)


@pytest.mark.parametrize("name", TEXT_STEPS)
@PROPERTY
@given(resps=responses)
def test_every_step_takes_any_text_and_no_prediction_and_changes_nothing(name, resps):
    before = copy.deepcopy(resps)
    docs = [{} for _ in resps]
    after = build(name).apply(resps, docs)
    assert resps == before
    assert [len(item) for item in after] == [build(name).keeps(len(item)) for item in resps]
    assert build(name).apply(resps, docs) == after


@pytest.mark.parametrize("name", TEXT_STEPS)
@PROPERTY
@given(resps=responses)
def test_an_item_is_filtered_the_same_beside_any_others(name, resps):
    pipeline = build(name)
    alone = [pipeline.apply([item], [{}])[0] for item in resps]
    assert pipeline.apply(resps, [{} for _ in resps]) == alone
