"""Reasons are for people: whatever is wrong with them, a step that was computed stays computed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.rows.parts import Origin
from tasks.store.reasons import (
    FIRST_TIME,
    Reason,
    Subject,
    differences,
    flat,
    keep_reason,
    place_of,
    read_reason,
)
from tasks.store.storage import Store

STEP = Subject("sums", "score", "score none × bleu")


def reason(key: str, **ingredients: Any) -> Reason:
    return Reason(STEP, key, "run", "2026-11-22T00:00:00+00:00", ingredients, {})


def test_a_record_is_compared_with_the_last_of_the_same_step(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert keep_reason(store, reason("a", **{"step.seed": 1})).because == FIRST_TIME
    kept = keep_reason(store, reason("b", **{"step.seed": 2}))
    assert (kept.because, kept.previous) == ("seed changed from 1 to 2", "a")
    assert read_reason(store, "score", "b") == kept


def test_a_record_in_the_place_of_another_names_every_file_that_changed(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    keep_reason(store, reason("a", **{"seen.words.txt": "0" * 16, "seen.more.txt": "0" * 16}))
    kept = keep_reason(store, reason("a", **{"seen.words.txt": "1" * 16, "seen.more.txt": "no file"}))
    assert kept.because == "words.txt changed; more.txt changed"


@pytest.mark.parametrize(
    ("name", "file", "said"),
    [
        ("input.answered.responses.artifact", "infer/a.parquet", "responses changed"),
        ("input.statistics.0.artifact", "score/a.parquet", "scores changed"),
        ("input.item_rows.artifact", "reduce/a.parquet", "item rows changed"),
    ],
)
def test_an_input_that_changed_is_named_by_what_its_rows_are(
    name: str, file: str, said: str, tmp_path: Path
) -> None:
    inputs = {name.split(".")[1]: file}
    before, after = (replace(reason(key, **{name: f"#{key}"}), inputs=inputs) for key in "ab")
    assert differences(Store(str(tmp_path)), before, after) == [said]


def test_a_value_that_changed_is_said_with_both_values(tmp_path: Path) -> None:
    def given(tokens: int, *more: Origin, stop: int = 5) -> dict[str, Any]:
        origin = Origin("m", "p", {"sampling": {"max_tokens": tokens}})
        return flat({"input": {"origins": [origin, *more], "stop": stop}})

    def said(after: dict[str, Any]) -> list[str]:
        return differences(Store(str(tmp_path)), reason("a", **given(256)), reason("b", **after))

    assert said(given(100)) == ["metadata.sampling.max_tokens changed from 256 to 100"]
    assert said(given(256, stop=42)) == ["stop changed from 5 to 42"]
    assert said(given(256, Origin("another", "p"))) == ["models and prompts changed"]


@pytest.mark.parametrize("content", [b"", b"[1]", b"null", b'{"key": 1}', b"\xff"])
def test_a_damaged_record_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    store = Store(str(tmp_path))
    keep_reason(store, reason("a"))
    store.put_bytes(place_of("score", "a"), content)
    store.put_bytes(STEP.pointer, content)
    assert read_reason(store, "score", "a") is None
    assert keep_reason(store, reason("b")).because == FIRST_TIME


def test_a_store_that_can_not_be_asked_costs_the_reason_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError("not yours")

    store = Store(str(tmp_path))
    monkeypatch.setattr("tasks.store.reasons.files_by_digest", lambda digest: {"name": digest})
    for name in ("exists", "cat_file"):
        monkeypatch.setattr(store.fs, name, refuse)
    assert keep_reason(store, reason("a", **{"code.x.py": "0" * 16})).because == FIRST_TIME


@pytest.mark.parametrize(
    "file", ["code.txt", "barcode.csv", "libraries.json", "my.code.txt", "seen.txt", "a/depends_on.txt"]
)
@pytest.mark.parametrize("before", ["seen.", "step.depends_on.", "step.scorer.code."])
def test_a_file_is_named_in_full(before: str, file: str, tmp_path: Path) -> None:
    first, second = (reason("a", **{f"{before}{file}": digit * 16}) for digit in "01")
    assert differences(Store(str(tmp_path)), first, second) == [f"{file} changed"]
