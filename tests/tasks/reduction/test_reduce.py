import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metrics.build import build_column
from metrics.config import MetricConfig
from metrics.errors import MetricError, NightjarError
from tasks.reduction.reduce import reduce_pair
from tasks.rows.parts import BatchSource, Origin, PairIdentity, Part, from_batches
from tasks.store.schemas import ITEM_ROWS, REQUESTS, RESPONSES, STATISTICS
from tasks.store.storage import Store


def pair(*reductions: str, resolve: Callable[[str], Any] = lambda _: None) -> PairIdentity:
    config = MetricConfig.model_validate(
        {"metric": "score", **({"reduction": list(reductions)} if reductions else {})}
    )
    return PairIdentity("demo", "none", build_column(config, resolve))


def rows(identity: PairIdentity, parts: Sequence[Part], facets: Sequence[str] = ()) -> list[dict[str, Any]]:
    batches = list(reduce_pair(identity, parts, facets))
    assert all(batch.schema == ITEM_ROWS for batch in batches)
    return [{**row, "facets": orjson.loads(row["facets"])} for batch in batches for row in batch.to_pylist()]


def values(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(*row["facets"].values(), row["item_id"], row["value"]) for row in found]


def test_repeats_become_one_row_an_item(part: Callable[..., Part]) -> None:
    [row, other] = rows(
        pair(), [part([{"doc_id": 0, "samples": [1, 0, 0, 1]}, {"doc_id": 1, "samples": [1, 1]}])]
    )

    assert (row["benchmark"], row["filter"], row["metric"], row["reduction"]) == (
        "demo",
        "none",
        "score",
        "mean",
    )
    assert (row["item_id"], row["item_digest"], row["value"], row["statistics"]) == (
        "item0",
        "digest0",
        0.5,
        [0.5],
    )
    assert (row["n_samples"], row["n_scored"], row["label"], row["cluster"]) == (4, 4, None, None)
    assert (other["value"], other["n_samples"]) == (1.0, 2)


def test_every_reduction_has_rows_of_its_own(part: Callable[..., Part]) -> None:
    found = rows(pair("mean", "pass@2", "take_first"), [part([{"doc_id": 0, "samples": [0, 1, 0]}])])
    assert [(row["reduction"], row["value"]) for row in found] == [
        ("mean", pytest.approx(1 / 3)), ("pass@2", pytest.approx(2 / 3)), ("take_first", 0.0),
    ]  # fmt: skip


def test_an_unscored_item_has_no_value_and_keeps_its_counts(part: Callable[..., Part]) -> None:
    [row] = rows(pair(), [part([{"doc_id": 0, "samples": [None, None]}])])
    assert (row["value"], row["statistics"], row["n_samples"], row["n_scored"]) == (None, None, 2, 0)


def test_items_of_several_partitions_come_in_dataset_order(part: Callable[..., Part]) -> None:
    halves = [part([{"doc_id": n, "samples": [n]} for n in half]) for half in ((2, 3), (0, 1))]
    assert [row["item_id"] for row in rows(pair(), halves)] == ["item0", "item1", "item2", "item3"]


def test_models_are_held_apart_by_a_facet_and_pooled_without(part: Callable[..., Part]) -> None:
    parts = [
        part([{"doc_id": 0, "samples": [score]}], Origin(name, "plain"))
        for name, score in (("x", 1), ("y", 0))
    ]

    assert values(rows(pair(), parts, ["model_name"])) == [("x", "item0", 1.0), ("y", "item0", 0.0)]
    [pooled] = rows(pair(), parts)
    assert (pooled["value"], pooled["n_samples"]) == (0.5, 2)


def test_facets_are_found_in_items_responses_metadata_and_verdicts(part: Callable[..., Part]) -> None:
    samples = [
        {
            "score": 1.0,
            "finish_reason": "stop",
            "passed": True,
            "details_json": '{"custom_fields":{"tone":"kind"}}',
        },
        {
            "score": 0.0,
            "finish_reason": "length",
            "passed": False,
            "metadata_json": '{"sampling":{"temperature":1}}',
        },
    ]
    origin = Origin("x", "plain", {"model_id": "org/x", "sampling": {"temperature": 0.5}})
    one = part(
        [{"doc_id": 0, "samples": samples, "doc": {"subject": {"name": "maths"}}, "cluster": "c"}], origin
    )

    for facet, expected in (
        ("model_name", ["x"]),
        ("metadata.model_id", ["org/x"]),
        ("metadata.sampling.temperature", [0.5, 1]),
        ("finish_reason", ["stop", "length"]),
        ("metadata.finish_reason", ["stop", "length"]),
        ("item.subject.name", ["maths"]),
        ("cluster", ["c"]),
        ("passed", [True, False]),
        ("custom_fields.tone", ["kind", "unknown"]),
        ("metadata.custom_fields.tone", ["kind", "unknown"]),
    ):
        assert [row["facets"][facet] for row in rows(pair(), [one], [facet])] == expected, facet


def test_a_plain_name_is_the_items_field_unless_the_response_brings_one_of_its_own(
    part: Callable[..., Part],
) -> None:
    answers = [{"score": 1.0}, {"score": 0.0, "metadata_json": '{"topic":"told"}'}]
    one = part(
        [
            {"doc_id": 0, "samples": answers, "doc": {"topic": "sums", "metadata": {"topic": "never"}}},
            {"doc_id": 1, "samples": [{"score": 1.0}], "doc": {"topic": {"name": "words"}}},
            {"doc_id": 2, "samples": [{"score": 1.0}], "doc": {}},
        ],
        Origin("x", "plain"),
    )

    def found(facet: str) -> list[Any]:
        return [row["facets"][facet] for row in rows(pair(), [one], [facet])]

    assert sorted(map(str, found("topic"))) == ["sums", "told", "unknown", "{'name': 'words'}"]
    assert sorted(found("topic.name")) == ["unknown", "unknown", "words"]
    assert sorted(found("metadata.topic")) == ["told", "unknown", "unknown", "unknown"]


def test_a_facet_that_some_samples_lack_is_a_group_of_its_own_with_one_warning(
    part: Callable[..., Part], caplog: pytest.LogCaptureFixture
) -> None:
    one = part([{"doc_id": n, "samples": [1], "doc": {"subject": "maths"} if n else {}} for n in range(3)])
    with caplog.at_level(logging.WARNING):
        found = rows(pair(), [one], ["item.subject"])

    assert [row["facets"]["item.subject"] for row in found] == ["unknown", "maths", "maths"]
    assert caplog.messages == [
        "facet item.subject is missing from 1 of 3 samples, or has that text; they form the group 'unknown'"
    ]


def test_facets_come_before_reduction(part: Callable[..., Part]) -> None:
    samples = [
        {"score": score, "finish_reason": reason}
        for score, reason in ((1, "a"), (0, "b"), (1, "a"), (1, "b"))
    ]
    found = rows(pair(), [part([{"doc_id": 0, "samples": samples}])], ["finish_reason"])
    assert [(*row["facets"].values(), row["value"], row["n_samples"]) for row in found] == [
        ("a", 1, 2),
        ("b", 0.5, 2),
    ]


def test_labels_are_always_held_apart(part: Callable[..., Part]) -> None:
    samples = [{"score": 1, "label": "kind"}, {"score": 0, "label": "short"}]
    found = rows(pair(), [part([{"doc_id": 0, "samples": samples}], method="quality")], ["label"])
    assert [(row["label"], row["value"], row["facets"]) for row in found] == [
        ("kind", 1.0, {}),
        ("short", 0.0, {}),
    ]


def test_repeats_of_several_models_come_in_the_order_of_the_parts(part: Callable[..., Part]) -> None:
    parts = [part([{"doc_id": 0, "samples": [score]}], Origin(f"m{score}", "plain")) for score in (3, 1, 2)]
    [row] = rows(pair("take_first"), parts)
    assert row["value"] == 3.0


def test_a_user_s_reduction_sees_references_and_may_return_several(part: Callable[..., Part]) -> None:
    def spread(references: list[Any], predictions: list[float]) -> dict[str, float]:
        assert references == ["1"]
        return {"low": min(predictions), "high": max(predictions)}

    found = rows(pair("f.py:spread", resolve=lambda _: spread), [part([{"doc_id": 0, "samples": [0, 1]}])])
    assert [(row["reduction"], row["value"]) for row in found] == [("low", 0.0), ("high", 1.0)]


def test_values_that_are_not_numbers_are_kept_as_json(part: Callable[..., Part]) -> None:
    config = MetricConfig.model_validate({"metric": "words", "aggregation": "f.py:count"})
    words = PairIdentity("demo", "none", build_column(config, lambda _: lambda values: len(values)))
    samples = [{"score": 0.0, "scored": True, "value_json": '["grün"]', "statistics": None}]
    [row] = rows(words, [part([{"doc_id": 0, "samples": samples}])])
    assert (row["value_json"], row["statistics"]) == ('["grün"]', None)


def test_no_samples_give_no_rows(part: Callable[..., Part]) -> None:
    assert rows(pair(), []) == []
    assert rows(pair(), [part([{"doc_id": 0, "samples": []}])], ["finish_reason", "item.x"]) == []


def test_samples_of_items_that_were_not_asked_are_refused(part: Callable[..., Part]) -> None:
    one, other = part([{"doc_id": 0, "samples": [1]}]), part([{"doc_id": 7, "samples": [1]}])
    mixed = Part(one.origin, other.statistics, one.requests, one.responses)
    with pytest.raises(NightjarError, match=r"1 scored items are not among the requests .* position 7"):
        rows(pair(), [mixed])


def test_statistics_of_different_widths_are_refused(part: Callable[..., Part]) -> None:
    samples = [{"score": 1, "statistics": [1.0]}, {"score": 1, "statistics": [1.0, 2.0]}]
    with pytest.raises(NightjarError, match="differ in width"):
        rows(pair(), [part([{"doc_id": 0, "samples": samples}])])


GRID = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from("xyz"), st.none() | st.sampled_from([0.0, 1.0, 0.5])),
    max_size=30,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(GRID)
def test_grouping_is_what_a_dictionary_would_do(
    part: Callable[..., Part], samples: list[tuple[int, str, float | None]]
) -> None:
    by_item: dict[int, list[Any]] = {}
    for doc_id, topic, score in samples:
        by_item.setdefault(doc_id, []).append({"score": score, "finish_reason": topic})
    one = part([{"doc_id": doc_id, "samples": by_item[doc_id]} for doc_id in sorted(by_item)])
    expected: dict[tuple[str, int], list[float | None]] = {}
    for doc_id, topic, score in samples:
        expected.setdefault((topic, doc_id), []).append(score)
    found = rows(pair(), [one], ["finish_reason"])

    assert {(row["facets"]["finish_reason"], int(row["item_id"][4:])) for row in found} == set(expected)
    for row in found:
        scores = expected[row["facets"]["finish_reason"], int(row["item_id"][4:])]
        known = [score for score in scores if score is not None]
        assert (row["n_samples"], row["n_scored"]) == (len(scores), len(known))
        assert row["value"] == (pytest.approx(np.mean(known)) if known else None)


def test_ten_thousand_facet_values_are_grouped_without_a_loop_over_them(part: Callable[..., Part]) -> None:
    items = [{"doc_id": n, "samples": [n % 2], "doc": {"topic": f"t{n}"}} for n in range(10_000)]
    found = list(reduce_pair(pair(), [part(items)], ["item.topic"]))

    assert len(found) == 1  # one batch, and not one a group
    assert (
        pa.Table.from_batches(found)["facets"].combine_chunks().dictionary[9_999].as_py()
        == '{"item.topic":"t9999"}'
    )


def test_artifacts_on_disk_give_what_batches_in_memory_give(
    part: Callable[..., Part], tmp_path: Path
) -> None:
    samples = [{"score": n % 2, "finish_reason": reason} for n, reason in enumerate(("stop", "length", None))]
    items = [{"doc_id": n, "samples": samples, "doc": {"x": n % 2}, "cluster": f"c{n}"} for n in range(5)]
    one = part(items)
    store, facets = Store(str(tmp_path)), ["finish_reason", "item.x", "model_name"]

    def stored(kind: str, source: BatchSource, schema: pa.Schema) -> BatchSource:
        return partial(store.batches, store.write(kind, "0" * 64, schema, source(schema.names)))

    kept = Part(
        one.origin,
        stored("score", one.statistics, STATISTICS),
        stored("render", one.requests, REQUESTS),
        stored("infer", one.responses, RESPONSES),
    )
    assert rows(pair(), [kept], facets) == rows(pair(), [one], facets)


def test_a_source_may_be_read_again() -> None:
    source = from_batches([pa.RecordBatch.from_pydict({"a": [1], "b": [2]})])
    assert [batch.to_pydict() for batch in source(["b"])] == [batch.to_pydict() for batch in source(["b"])]


def test_an_item_that_a_reduction_fails_on_is_named(part: Callable[..., Part]) -> None:
    def broken(references: list[Any], predictions: list[float]) -> float:
        return 1 / predictions[0]

    items = [{"doc_id": 7, "samples": [1.0]}, {"doc_id": 9, "samples": [0.0]}]
    with pytest.raises(MetricError, match=r"item 'item9': reduction 'broken' failed.*ZeroDivisionError"):
        rows(pair("u.py:broken", resolve=lambda _: broken), [part(items)])
    items[1]["samples"] = [0.5]
    with pytest.raises(MetricError, match=r"item 'item9': pass@1 counts right and wrong answers.*0\.5"):
        rows(pair("pass@1"), [part(items)])


def test_two_results_of_one_name_are_refused(part: Callable[..., Part]) -> None:
    def both(references: list[Any], predictions: list[float]) -> dict[str, float]:
        return {"max": 0.25}

    with pytest.raises(NightjarError, match="'score' has two reductions called 'max'"):
        rows(pair("max", "u.py:both", resolve=lambda _: both), [part([{"doc_id": 0, "samples": [1]}])])


def test_values_that_are_not_finite_stay_what_they_are(part: Callable[..., Part]) -> None:
    config = MetricConfig.model_validate({"metric": "score", "aggregation": "u.py:fn"})
    identity = PairIdentity("demo", "none", build_column(config, lambda _: lambda values: 0.0))
    samples = [{"score": 0.0, "scored": True, "value_json": "[NaN,-Infinity,null]", "statistics": None}]
    [row] = rows(identity, [part([{"doc_id": 0, "samples": samples}])])
    assert row["value_json"] == "[NaN,-Infinity,null]"
