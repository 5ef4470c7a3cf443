"""Runs recorded in a store, as the history has them."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from tasks.history.layout import record_run
from tasks.store.schemas import ITEM_ROWS, RESULTS
from tasks.store.storage import Store

START = datetime(2026, 11, 1, 2, 0, tzinfo=UTC)
PLAIN: dict[Any, Any] = {pa.string(): "", pa.int64(): 0, pa.int32(): 0, pa.bool_(): True}


def results(*given: dict[str, Any]) -> pa.Table:
    def value(field: pa.Field, row: dict[str, Any]) -> Any:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        return row.get(field.name, None if field.nullable else PLAIN[kind])

    columns = [pa.array([value(field, row) for row in given]).cast(field.type) for field in RESULTS]
    return pa.table(columns, schema=RESULTS)


def row(model: str, value: float, stderr: float | None = 0.02, **fields: Any) -> dict[str, Any]:
    known = {
        "benchmark": "sums", "model_name": model, "prompt_template": "default", "filter": "none",
        "metric": "exact_match", "reduction": "mean", "status": "ok", "n_items": 100,
        "higher_is_better": True,
        "facets": json.dumps({"model_name": model}), "value": value, "stderr": stderr,
        "ci_low": None if stderr is None else value - 2 * stderr,
        "ci_high": None if stderr is None else value + 2 * stderr,
    }  # fmt: skip
    return {**known, **fields}


def record(store: Store, name: str, night: int, *rows: dict[str, Any], **manifest: Any) -> None:
    models = {entry["model_name"]: {"identity": {"base_url": "http://a"}} for entry in rows}
    about = {
        "run_id": name, "run_name": name, "benchmark": rows[0]["benchmark"] if rows else "sums",
        "started": (START + timedelta(days=night)).timestamp(), "requests": {"sent": 7, "cached": 3},
        "dataset_digest": "d", "config": {"facets": ["model_name"]}, "models": models, "cost": 0.5,
        "currency": "EUR", "limit": None,
    }  # fmt: skip
    record_run(store, {**about, **manifest}, [results(*rows)], [ITEM_ROWS.empty_table()])
