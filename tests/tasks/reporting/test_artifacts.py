import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.reporting.view import CellArtifacts, LabelView, sample_views
from tasks.rows.parts import Origin
from tasks.store.schemas import PREDICTIONS, REQUESTS, RESPONSES, STATISTICS
from tasks.store.storage import Store

ITEMS = 600  # more than are read at once


def cell(store: Store, model: str, first: int, repeats: int) -> CellArtifacts:
    """A partition of the items from ``first``, some of which have no statistics."""
    numbers = range(first, first + ITEMS)
    asked = [
        {
            "item_id": f"i{n}", "doc_id": n, "item_digest": str(n), "prompt_template": "default",
            "kind": "generate", "chat": False, "prompts": [f"{n}?"], "continuations": [""],
            "unconditional": [], "references_json": "[]", "gold": [], "choices": [],
            "doc_json": f'{{"subject": {n % 3}}}', "first_sample": 0,
        }
        for n in numbers
    ]  # fmt: skip
    said = [
        {
            "item_id": f"i{n}", "doc_id": n, "sample_index": repeat, "sample_id": f"{n}-{repeat}",
            "request_key": f"{n}-{repeat}", "prompt": f"{n}?", "response": f"{n} {repeat}", "status": "ok",
            "attempts": 1, "scored": True, "prediction": f"{n} {repeat}", "is_json": False, "code": -1,
            "score": float(n % 2),
        }
        for n in numbers
        for repeat in range(repeats)
    ]  # fmt: skip

    def written(kind: str, schema: pa.Schema, rows: list[dict[str, Any]]) -> Any:
        known = [{name: row[name] for name in schema.names if name in row} for row in rows]
        batch = pa.RecordBatch.from_pylist(known, schema=schema)
        return store.write(kind, f"{model}-{first}-{kind}", schema, [batch])

    return CellArtifacts(
        Origin(model, "default"),
        written("requests", REQUESTS, asked),
        written("responses", RESPONSES, said),
        {"none": written("predictions", PREDICTIONS, said)},
        {"exact_match,none": written("statistics", STATISTICS, [row for row in said if row["doc_id"] % 7])},
    )


def test_what_could_not_be_judged_stands_under_the_labels_of_its_method(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    said = [("polite", True, None), (None, None, "no reply"), ("short", False, None)]
    rows = [
        {
            "item_id": f"i{n}", "doc_id": n, "sample_index": 0, "label": label, "passed": passed,
            "scored": passed is not None, "error": error, "code": -1,
            "details_json": '{"returned": "?"}' if error else None,
        }
        for n, (label, passed, error) in enumerate(said)
    ]  # fmt: skip
    batch = pa.RecordBatch.from_pylist(rows, schema=STATISTICS)
    judged = store.write("statistics", "judged", STATISTICS, [batch])
    known = replace(cell(store, "a", 0, 1), verdicts={"tone": judged}, labels={"tone": ["polite", "short"]})
    labels = [view.labels for view in sample_views(store, [known], ())][:3]
    lost = {"status": "unscored", "details": {"returned": "?", "error": "no reply"}, "method": "tone"}
    assert labels == [
        [LabelView("polite", 0, True, method="tone")],
        [LabelView("polite", 0, **lost), LabelView("short", 0, **lost)],
        [LabelView("short", 0, False, method="tone")],
    ]
    unlabelled = replace(known, labels={})
    assert [label.label for label in list(sample_views(store, [unlabelled], ()))[1].labels] == ["tone"]


@pytest.mark.parametrize("wanted", ["none", "first", "last", "some", "all"])
def test_samples_at_some_places_are_those_of_a_whole_pass(tmp_path: Path, wanted: str) -> None:
    store = Store(str(tmp_path))
    cells = [cell(store, "a", 0, 1), cell(store, "a", ITEMS, 1), cell(store, "b", 0, 3)]
    whole = list(sample_views(store, cells, ("item.subject",)))
    places: Any = {
        "none": [],
        "first": [0],
        "last": [len(whole) - 1],
        "some": random.Random(0).sample(range(len(whole)), 200),
        "all": range(len(whole)),
    }[wanted]
    picked = list(sample_views(store, cells, ("item.subject",), frozenset(places)))
    assert picked == [whole[place] for place in sorted(places)]
