"""Whatever a method returns or a file of responses holds is found in a written row or in a message."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from metrics.errors import DataError
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.providers.provider import provider_of
from tasks.models.records import InferenceOptions
from tasks.rows.parts import Origin, Part
from tasks.verdicts.methods import RESPONSE_COLUMNS, response_rows
from tasks.verdicts.rows import JudgedPart, evaluation_rows, method_labels

OWN = {"name": "mine", "function": "f.py:judge"}
WHOLE = settings(
    max_examples=150,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

scalars = (
    st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=8)
)
values = st.recursive(
    st.none() | scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abcxyz", max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def maybe(fields: Mapping[str, Any]) -> Any:
    """A mapping with some of the fields, each of its own kind or of any other, and unknown ones beside."""
    known = st.fixed_dictionaries({}, optional={name: kind | values for name, kind in fields.items()})
    return st.tuples(known, st.dictionaries(st.text("pqr", min_size=1, max_size=2), values, max_size=2)).map(
        lambda both: {**both[1], **both[0]}
    )


results = maybe(
    {"passed": st.booleans(), "score": st.floats(-1, 1), "custom_fields": values, "details": values}
)
names = st.text("lmn", min_size=1, max_size=3)
labels = maybe({"label": names | maybe({"name": names, "description": names}), "result": results})
returns = values | results | labels | maybe({"labels": st.lists(labels, max_size=3), "custom_fields": values})


def leaves(value: Any) -> Iterator[Any]:
    """Everything in a JSON value that says something: no nulls, no empty texts, lists and mappings."""
    if isinstance(value, Mapping):
        for entry in value.values():
            yield from leaves(entry)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for entry in value:
            yield from leaves(entry)
    elif value is not None and value != "":
        yield value


def lost(value: Any, rows: Sequence[Any], messages: str = "") -> list[Any]:
    """The leaves that stand neither in the rows nor in the messages."""
    there = list(leaves(list(rows)))
    numbers = {float(leaf) for leaf in there if isinstance(leaf, int | float)}
    texts = [leaf for leaf in there if isinstance(leaf, str)]
    said = "\n".join([*texts, messages])

    def found(leaf: Any) -> bool:
        if isinstance(leaf, str):
            return leaf in texts or leaf in said or orjson.dumps(leaf).decode() in said
        return float(leaf) in numbers or orjson.dumps(leaf).decode() in said or repr(leaf) in said

    return [leaf for leaf in leaves(value) if not found(leaf)]


def test_a_leaf_that_is_not_there_is_lost() -> None:
    assert lost({"a": [1, "x"], "b": {"c": "y"}}, [{"k": "x"}], "3 and y") == [1]


@seed(20261121)
@WHOLE
@given(returned=returns)
def test_every_value_that_a_method_returns_is_found(
    asking: Any, judged: Callable[..., Part], returned: Any
) -> None:
    part = judged(OWN, asking({"a": "1"}), {"a": ["x"]}, function=lambda response: returned)
    rows = list(evaluation_rows(JudgedPart(part, method_labels([part])["mine"])))
    assert rows
    assert lost(returned, rows) == [], rows


documented = maybe(
    {
        "response": st.text(max_size=8),
        "sample_id": names,
        "total_samples": st.integers(0, 99),
        "prompt": st.text(max_size=8),
        "inference_time": st.floats(0, 9),
        "timestamp": st.floats(0, 2e9),
        "timestamp_unix": st.floats(0, 2e9),
        "metadata": maybe({"finish_reason": names, "response_id": names, "attempts": st.integers(1, 3)}),
        "error": st.none() | names,
        "status": st.sampled_from(["ok", "refused", "infra_error"]),
        "tokens_per_second": st.floats(0, 9),
        "total_tokens": st.integers(0, 99),
        "finish_reason": names,
        "served_model": names,
        "reasoning": names,
        "cached_tokens": st.integers(0, 99),
        "attempts": st.integers(1, 3),
        "lls": st.lists(st.floats(-9, 0), max_size=2),
        "is_greedy": st.lists(st.booleans(), max_size=2),
    }
)


@seed(20261121)
@WHOLE
@given(row=documented)
def test_every_value_of_a_recorded_row_is_found(
    asking: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, row: dict[str, Any]
) -> None:
    (tmp_path / "r.jsonl").write_bytes(orjson.dumps({"item_id": "a", **row}) + b"\n")
    model = ModelConfig.model_validate({"name": "m", "type": "replay", "config": {"path": "r.jsonl"}})
    options = InferenceOptions(sampling=SampleParams(), journal_dir=tmp_path, base_dir=tmp_path)
    caplog.clear()
    messages, rows = "", []
    try:
        for batch in (
            provider_of(model, options.base_dir).responses([asking({"a": "1"}).requests], options).batches
        ):
            rows += response_rows(batch.select(RESPONSE_COLUMNS), Origin("m", "plain"))
    except DataError as error:
        messages = str(error)
    assert rows or messages
    assert lost(row, rows, f"{messages}\n{caplog.text}") == [], rows
