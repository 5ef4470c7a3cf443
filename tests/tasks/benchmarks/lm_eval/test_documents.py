"""Documents behave as datasets.Dataset does where the library is not installed."""

import pickle

import numpy as np
import pytest

from tasks.usercode.surroundings import Documents, concatenate_datasets

ROWS = [{"q": "one", "n": 1}, {"q": "two", "n": 2}, {"q": "three", "n": 3}]


@pytest.fixture
def docs() -> Documents:
    return Documents.from_list(ROWS)


def test_rows_columns_and_slices(docs):
    assert (docs[1], docs[-1]) == (ROWS[1], ROWS[2])
    assert docs["q"] == ["one", "two", "three"]
    assert docs[0:2] == {"q": ["one", "two"], "n": [1, 2]}
    assert docs[[2, 0]] == {"q": ["three", "one"], "n": [3, 1]}
    assert (len(docs), docs.num_rows, docs.shape, docs.column_names) == (3, 3, (3, 2), ["q", "n"])
    assert list(docs.features) == ["q", "n"]
    with pytest.raises(KeyError, match="'x' is not there; columns are q, n"):
        docs["x"]


def test_a_row_that_is_changed_leaves_the_table_as_it_is(docs):
    docs[0]["q"] = "changed"
    next(iter(docs))["q"] = "changed"
    assert docs[0]["q"] == "one"


def test_map_updates_rows_and_removes_columns(docs):
    mapped = docs.map(
        lambda row: {"n": row["n"] * 10, "long": len(row["q"])}, remove_columns=["q"], num_proc=4
    )
    assert mapped.to_list() == [{"n": 10, "long": 3}, {"n": 20, "long": 3}, {"n": 30, "long": 5}]
    assert docs.map(lambda row: None).to_list() == ROWS


def test_map_takes_indices_columns_arguments_and_batches(docs):
    assert docs.map(lambda row, index: {"i": index}, with_indices=True)["i"] == [0, 1, 2]
    assert docs.map(lambda n, by: {"m": n + by}, input_columns="n", fn_kwargs={"by": 5})["m"] == [6, 7, 8]
    doubled = docs.map(
        lambda part: {"q": [q for q in part["q"] for _ in "ab"]},
        batched=True,
        batch_size=2,
        remove_columns=["n"],
    )
    assert doubled["q"] == ["one", "one", "two", "two", "three", "three"]
    with pytest.raises(ValueError, match="remove_columns drops the old ones"):
        docs.map(lambda part: {"q": []}, batched=True)


def test_map_gives_what_arrow_would_hold():
    docs = Documents.from_list([{"a": 1}, {"a": 2}])
    mapped = docs.map(
        lambda row: {"t": (1, "x")[: row["a"] - 1] or (0,), "f": row["a"] if row["a"] == 1 else 0.5}
    )
    assert mapped["f"] == [1.0, 0.5]
    assert mapped["t"] == [[0], [1]]
    nested = docs.map(lambda row: {"d": {"x": 1} if row["a"] == 1 else {"y": 2}})
    assert nested["d"] == [{"x": 1, "y": None}, {"x": None, "y": 2}]


def test_filter_select_sort_and_friends(docs):
    assert docs.filter(lambda row: row["n"] != 2)["n"] == [1, 3]
    assert docs.filter(lambda row, index: index == 1, with_indices=True)["n"] == [2]
    assert docs.filter(lambda part: [n > 1 for n in part["n"]], batched=True)["n"] == [2, 3]
    assert docs.select(range(2)).select([1])["q"] == ["two"]
    assert docs.sort("q")["q"] == ["one", "three", "two"]
    assert docs.sort("n", reverse=True)["n"] == [3, 2, 1]
    assert (docs.take(1)["n"], docs.skip(2)["n"]) == ([1], [3])
    assert docs.rename_column("q", "question").column_names == ["question", "n"]
    assert docs.remove_columns("n").column_names == ["q"]
    assert docs.add_column("z", [7, 8, 9])["z"] == [7, 8, 9]
    assert Documents.from_dict({"a": [1, 1, 2]}).unique("a") == [1, 2]
    with pytest.raises(ValueError, match="'x' is not there"):
        docs.remove_columns("x")


def test_an_empty_result_keeps_its_columns(docs):
    none = docs.filter(lambda row: False)
    assert (len(none), none.column_names) == (0, ["q", "n"])
    assert none.map(lambda row: {"x": 1}).column_names == ["q", "n"]


def test_shuffle_is_numpys_permutation_for_a_seed(docs):
    order = np.random.default_rng(42).permutation(3)
    assert docs.shuffle(seed=42)["n"] == [int(index) + 1 for index in order]


def test_an_option_that_is_not_known_is_an_error(docs):
    with pytest.raises(TypeError, match="option 'streaming' needs the library itself"):
        docs.map(lambda row: row, streaming=True)


@pytest.mark.parametrize(
    ("before", "given", "expected"),
    [
        ([1, 2], ["1", "02"], [1, 2]),
        ([1, 2], ["A", "B"], ["A", "B"]),
        ([1, 2], [1.0, 2.0], [1, 2]),
        ([1, 2], [1.5, 2.0], [1.5, 2.0]),
        ([1, 0], [True, False], [1, 0]),
        ([1.5, 2.5], [1, 2], [1.0, 2.0]),
        ([1.5, 2.0], ["1.50", "2.0"], [1.5, 2.0]),
        ([True, False], [1, 0], [True, False]),
        ([True, False], ["true", "false"], [True, False]),
        ([True, False], ["yes", "no"], ["yes", "no"]),
        (["1", "2"], [1, 2], [1, 2]),
        (["a", "b"], [True, False], [True, False]),
        (["a", "b"], [None, "b"], [None, "b"]),
        ([1, 2], [None, None], [None, None]),
        ([None, None], [1, 2], [1, 2]),
        ([[1], None], [None, ["1", "2"]], [None, [1, 2]]),
        ([["a"], ["b"]], ["a", "b"], ["a", "b"]),
        ([{"a": 1}, {"a": 2}], [{"a": "1"}, None], [{"a": 1}, None]),
        ([{"a": 1, "b": 2}], [{"a": 1}], [{"a": 1, "b": None}]),
        ([{"a": 1}, {"a": 2}], [{"c": 1}, {"c": 2}], [{"c": 1}, {"c": 2}]),
    ],
)  # fmt: skip
def test_a_column_keeps_its_type_in_a_map_where_its_values_can_be_cast(before, given, expected):
    docs = Documents.from_dict({"c": before})
    for mapped in (
        docs.map(lambda row, index: {"c": given[index]}, with_indices=True),
        docs.map(lambda part: {"c": given}, batched=True),
    ):
        assert [(type(value), value) for value in mapped["c"]] == [(type(one), one) for one in expected]


def test_a_batched_map_gives_columns_new_types_where_it_is_told_to():
    docs = Documents.from_dict({"c": [1, 2]})
    assert docs.map(lambda part: {"c": ["1", "2"]}, batched=True, try_original_type=False)["c"] == ["1", "2"]
    with pytest.raises(TypeError, match="option 'features' needs the library itself"):
        docs.map(lambda row: row, features={"c": "string"})
    assert docs.map(lambda row: row, features=None).to_list() == docs.to_list()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.0, 1.0, 2.0, "nan", None]),
        ({"reverse": True}, [2.0, 1.0, 0.0, "nan", None]),
        ({"null_placement": "at_start"}, [None, "nan", 0.0, 1.0, 2.0]),
        ({"reverse": True, "null_placement": "first"}, [None, "nan", 2.0, 1.0, 0.0]),
        ({"reverse": [True], "null_placement": "last"}, [2.0, 1.0, 0.0, "nan", None]),
    ],
)
def test_rows_without_a_value_or_number_are_sorted_to_the_end_or_where_the_option_puts_them(
    options, expected
):
    nan = float("nan")
    docs = Documents.from_dict({"c": [1.0, None, 0.0, nan, 2.0]}).sort("c", **options)
    assert str(docs["c"]) == str([nan if value == "nan" else value for value in expected])


def test_rows_are_sorted_by_several_columns_and_equal_ones_stay_in_order():
    docs = Documents.from_dict({"c": ["b", "a", "b", "a"], "d": [1.0, None, 2.0, 3.0], "n": [0, 1, 2, 3]})
    assert docs.sort(["c", "d"], reverse=[False, True])["n"] == [3, 1, 2, 0]
    assert docs.sort("c", reverse=True)["n"] == [0, 2, 1, 3]
    assert docs.map(lambda row: {"d": row["d"] is None}).sort("d")["n"] == [0, 2, 3, 1]
    assert docs.map(lambda row: {"e": None}).sort("e")["n"] == [0, 1, 2, 3]
    assert docs.filter(lambda row: False).sort("c").column_names == ["c", "d", "n"]
    with pytest.raises(ValueError, match="null_placement"):
        docs.sort("c", null_placement="middle")


def test_a_map_keeps_what_its_function_did_to_the_row_it_was_given():
    docs = Documents.from_list([{"q": "one", "n": 1, "c": ["x"]}])
    assert docs.map(lambda row: (row.pop("n"), row)[1]).to_list() == [{"q": "one", "c": ["x"]}]
    assert docs.map(lambda row: (row.pop("n"), {"z": 2})[1]).to_list() == [{"q": "one", "c": ["x"], "z": 2}]
    assert docs.map(lambda row: (row.update(n=5), {"z": 2})[1])["n"] == [5]
    assert docs.map(lambda row: {"z": row["c"].append("y")})["c"] == [["x", "y"]]
    assert docs.map(lambda part: (part.pop("n"), part)[1], batched=True).column_names == ["q", "c"]
    assert docs.map(lambda row: row.update(n=5)).to_list() == docs.to_list()  # it returns None
    assert docs.to_list() == [{"q": "one", "n": 1, "c": ["x"]}]


def test_a_map_whose_function_returns_its_row_removes_columns_too():
    docs = Documents.from_list([{"q": "one", "n": 1}])
    assert docs.map(lambda row: row, remove_columns=["q"]).to_list() == [{"n": 1}]
    assert docs.map(lambda part: part, remove_columns="q", batched=True).to_list() == [{"n": 1}]
    for copied in (lambda row: row | {"n": 2}, lambda row: row.copy()):
        assert docs.map(copied, remove_columns=["q"]).column_names == ["n"]
    assert docs.map(lambda row: {**row}, remove_columns=["q"]).to_list() == docs.to_list()
    again = docs.map(lambda row: {"z": 2, "q": "new"}, remove_columns=["q"])
    assert list(again[0].items()) == [("q", "new"), ("n", 1), ("z", 2)]


def test_a_batched_map_drops_a_last_batch_that_is_not_full(docs):
    options = {"batched": True, "batch_size": 2, "drop_last_batch": True}
    assert docs.map(lambda part: part, **options)["n"] == [1, 2]


def test_a_method_of_the_library_that_is_not_here_is_named_with_what_to_install(docs):
    for owner, name in ((docs, "train_test_split"), (docs, "flatten_indices"), (Documents, "from_pandas")):
        with pytest.raises(
            AttributeError,
            match=rf"^datasets\.Dataset\.{name} needs the library itself, the extra 'hub': pip",
        ):
            getattr(owner, name)
        assert not hasattr(owner, name)
    assert not hasattr(docs, "_fingerprint")
    again = pickle.loads(pickle.dumps(docs))
    assert again.to_list() == ROWS


def test_rows_of_a_list_have_the_columns_of_the_first_one():
    assert Documents.from_list([{"a": 1}, {"a": 2, "b": 3}]).to_list() == [{"a": 1}, {"a": 2}]
    assert Documents.from_list([{"a": 1, "b": 2}, {"a": 2}]).to_list() == [
        {"a": 1, "b": 2},
        {"a": 2, "b": None},
    ]
    assert Documents.from_list([]).to_list() == []
    both = concatenate_datasets([Documents.from_list([{"a": 1}]), Documents.from_list([{"b": 2}])])
    assert both.to_list() == [{"a": 1, "b": None}, {"a": None, "b": 2}]


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda docs: docs.select([0, -1]), IndexError, "no row -1"),
        (lambda docs: docs.select([3]), IndexError, "no row 3; there are 3"),
        (lambda docs: docs.add_column("q", [1, 2, 3]), ValueError, "column 'q' is there already"),
        (lambda docs: docs.rename_column("n", "q"), ValueError, "column 'q' is there already"),
        (lambda docs: docs.rename_columns({"x": "y"}), ValueError, "column 'x' is not there"),
        (lambda docs: docs.select_columns(["q", "x"]), ValueError, "column 'x' is not there"),
        (lambda docs: docs.map(dict, remove_columns=["x"]), ValueError, "column 'x' is not there"),
        (lambda docs: docs.map(dict, with_rank=True), TypeError, "option 'with_rank' needs the library"),
    ],
)
def test_what_the_library_refuses_is_refused(docs, change, error, said):
    with pytest.raises(error, match=said):
        change(docs)


def test_an_added_column_has_one_type_and_a_map_that_returns_nothing_leaves_the_table_as_it_is(docs):
    assert str(docs.add_column("x", [1, 2.5, (3)])["x"]) == "[1.0, 2.5, 3.0]"
    assert docs.map(lambda row: None, remove_columns=["q"]).to_list() == ROWS
    assert docs.map(dict, with_rank=False).rename_columns({"q": "n", "n": "q"}).column_names == ["n", "q"]


def test_features_tell_the_types_of_columns():
    docs = Documents.from_dict(
        {"n": [1, 2], "s": ["a", None], "f": [0.5, 1], "b": [True, False], "l": [["x"], []]}
    )
    assert [docs.features[name].dtype for name in "nsfb"] == ["int64", "string", "float64", "bool"]
    none = docs.filter(lambda row: row["s"] is None).rename_column("s", "t").select_columns(["t", "n"])
    assert none.features["t"].dtype == "string"
    empty = Documents.from_dict({"n": [1, None]}).filter(lambda row: row["n"] is None)
    assert empty.map(lambda row: {"n": "2"})["n"] == [2]
    with pytest.raises(AttributeError, match=r"the type of a column of lists or mappings needs the library"):
        str(docs.features["l"].dtype)
