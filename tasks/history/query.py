"""Which tables a history query sees, and how SQL is kept from doing more than read them.

runs     one row a run: when, what, at what cost, and its whole manifest as JSON
results  one row a metric × filter × reduction × facet group of each run (the columns of results.parquet)
items    one row a pair × reduction × item × facet group of each run (the columns of items.parquet)
scores   one row a sample and pair: the statistics artifacts that the kept runs refer to
samples  one row a sample: the responses that the kept runs refer to
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from metrics.errors import ConfigError
from tasks.history.layout import (
    HISTORY_ITEMS,
    HISTORY_RESULTS,
    ITEMS,
    RESULT_ROWS,
    HistoryError,
    forgotten_runs,
    kept_runs,
    names_in,
    references,
    started_at,
)
from tasks.store.schemas import RESPONSES, STATISTICS
from tasks.store.storage import Store

if TYPE_CHECKING:
    import duckdb


READ_STATEMENTS = ("SELECT", "EXPLAIN")
RUNS: Final = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("run_name", pa.string()),
        pa.field("benchmark", pa.string()),
        pa.field("status", pa.string()),  # ok | failed
        pa.field("kept", pa.bool_(), nullable=False),  # false: its rows are here, its artifacts need not be
        pa.field("started", pa.string()),  # ISO 8601, UTC: sorts as time does
        pa.field("wall_seconds", pa.float64()),
        pa.field("sent", pa.int64()),
        pa.field("cached", pa.int64()),
        pa.field("failed", pa.int64()),
        pa.field("cost", pa.float64()),
        pa.field("config_digest", pa.string()),
        pa.field("dataset_digest", pa.string()),
        pa.field("git_revision", pa.string()),
        pa.field("manifest", pa.string()),  # all of it: SELECT manifest->>'$.versions.prefect' …
    ]
)
OF_SAMPLES: Final = ("model_name", "prompt_template", "step")
OF: Final = (*OF_SAMPLES, "filter", "metric")
FILES: Final = pa.schema([pa.field(name, pa.string()) for name in ("file", "run_id", *OF)])


@dataclass(frozen=True)
class QueryResult:
    """What a query returned: column names and rows."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]


def query(store: Store, sql: str) -> QueryResult:
    """Answers one SQL query over the views of ``views.py``.

    Nothing can be changed: only reading statements are taken, and no file outside the store's own folders is
    read. Raises ConfigError for a statement that writes, HistoryError for one that DuckDB can't answer.
    """
    import duckdb

    with duckdb.connect(":memory:") as connection:
        _check_reads(connection, sql)
        create_views(connection, store)
        try:
            cursor = connection.execute(sql)
            return QueryResult(tuple(entry[0] for entry in cursor.description or ()), cursor.fetchall())
        except duckdb.Error as error:
            raise HistoryError(f"the query failed: {str(error).strip()}") from error


def _check_reads(connection: "duckdb.DuckDBPyConnection", sql: str) -> None:
    import duckdb

    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise ConfigError(f"the query is not SQL: {str(error).strip()}") from error
    if len(statements) != 1:
        raise ConfigError(f"expected one SQL query, got {len(statements)}")
    kind = statements[0].type.name
    if kind not in READ_STATEMENTS:
        raise ConfigError(f"the history is read-only: expected a SELECT, got {kind}")


def create_views(connection: "duckdb.DuckDBPyConnection", store: Store) -> None:
    """Creates the views and closes every other way to a file."""
    kept = kept_runs(store)
    runs = forgotten_runs(store) | kept
    if not store.local:
        connection.register_filesystem(store.fs)
    _table(
        connection,
        "runs",
        pa.Table.from_pylist(
            [_run(run_id, manifest, run_id in kept) for run_id, manifest in runs.items()], schema=RUNS
        ),
    )
    for view, folder, schema in (("results", RESULT_ROWS, HISTORY_RESULTS), ("items", ITEMS, HISTORY_ITEMS)):
        # A run that is being recorded has rows already; it is part of the history when its manifest is there.
        names = [name for name in names_in(store, folder, ".parquet") if name in runs]
        files = [_address(store, f"{folder}/{name}.parquet") for name in names]
        _view(connection, view, schema, f"SELECT * FROM {_read(files)}" if files else None)
    _artifact_view(connection, store, kept, ("samples", "infer", RESPONSES, OF_SAMPLES))
    _artifact_view(connection, store, kept, ("scores", "score", STATISTICS, OF))
    connection.execute(f"SET allowed_directories = [{_quoted(_address(store, ''))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _artifact_view(
    connection: "duckdb.DuckDBPyConnection",
    store: Store,
    manifests: Mapping[str, Mapping[str, Any]],
    view: tuple[str, str, pa.Schema, Sequence[str]],
) -> None:
    name, stage, schema, of = view
    there: dict[str, set[str]] = {}
    rows = []
    for run_id, manifest in manifests.items():
        for reference in references(manifest):
            if reference.stage != stage:
                continue
            folder, _, file = reference.name.rpartition("/")
            if file in there.setdefault(
                folder, {f"{entry}.parquet" for entry in names_in(store, folder, ".parquet")}
            ):
                rows.append({"file": _address(store, reference.name), "run_id": run_id, **reference.of})
    _table(connection, f"{name}_files", pa.Table.from_pylist(rows, schema=FILES))
    columns = ", ".join(f"files.{column}" for column in ("run_id", *of))
    files = list(dict.fromkeys(str(row["file"]) for row in rows))
    full = pa.schema([FILES.field(column) for column in ("run_id", *of)] + list(schema))
    reading = (
        f"SELECT {columns}, rows.* EXCLUDE (filename) FROM {_read(files, filename=True)} AS rows "
        f"JOIN {name}_files AS files ON files.file = rows.filename"
    )
    _view(connection, name, full, reading if files else None)


def _run(run_id: str, manifest: Mapping[str, Any], kept: bool) -> dict[str, Any]:
    requests = manifest.get("requests") or {}
    row = {name: manifest.get(name) for name in RUNS.names} | {
        name: requests.get(name) for name in ("sent", "cached", "failed")
    }
    row |= {"run_id": run_id, "kept": kept, "started": started_at(manifest), "status": _status(manifest)}
    return row | {"manifest": json.dumps(manifest, ensure_ascii=False)}


def _status(manifest: Mapping[str, Any]) -> str:
    """ "failed" where a step failed or more requests than allowed, else "ok"."""
    steps = (manifest.get("steps") or {}).values()
    return "failed" if manifest.get("over_budget") or any(step.get("failed") for step in steps) else "ok"


def _table(connection: "duckdb.DuckDBPyConnection", name: str, rows: pa.Table) -> None:
    """A table of the connection's own: rows are copied, and the Python object is not looked at again."""
    connection.register("arriving", rows)
    connection.execute(f"CREATE TABLE {name} AS SELECT * FROM arriving")
    connection.unregister("arriving")


def _view(connection: "duckdb.DuckDBPyConnection", name: str, schema: pa.Schema, reading: str | None) -> None:
    """A view of the rows, or an empty table of the same columns where there are none yet."""
    if reading is None:
        _table(connection, name, schema.empty_table())
    else:
        connection.execute(f"CREATE VIEW {name} AS {reading}")


def _read(files: Sequence[str], filename: bool = False) -> str:
    named = ", filename = true" if filename else ""
    return f"read_parquet([{', '.join(map(_quoted, files))}], union_by_name = true{named})"


def _address(store: Store, name: str) -> str:
    path = store.path(name)
    protocol = store.fs.protocol if isinstance(store.fs.protocol, str) else store.fs.protocol[0]
    return path if store.local else f"{protocol}://{path}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
