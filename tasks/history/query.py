"""Which tables a history query sees, and how SQL is kept from doing more than read them.

runs     one row a run: when, what, at what cost, and its whole manifest as JSON
results  one row a metric × filter × reduction × facet group of each run (the columns of results.parquet)
items    one row a pair × reduction × item × facet group of each run (the columns of items.parquet)
scores   one row a sample and pair: the statistics artifacts that the kept runs refer to
samples  one row a sample: the responses that the kept runs refer to
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from metrics.errors import ConfigError
from tasks.history.compaction import (
    OF,
    PARTS,
    RUNS_VIEW,
    check_rows,
    compact,
    open_history,
    part_file,
)
from tasks.history.layout import HistoryError, Skipped, names_in, read_records
from tasks.store.schemas import RESPONSES, STATISTICS
from tasks.store.storage import Store, StoreError

if TYPE_CHECKING:
    import duckdb


READ_STATEMENTS = ("SELECT", "EXPLAIN")
LOOSE_RUNS: Final = 50
"""A query that finds more runs than these in files of their own compacts the history first."""
CURRENCY: Final = "manifest->>'$.currency' AS currency"
"""What the costs of a run are in; the manifests of all versions say it, if anything does."""
OF_SAMPLES: Final = ("model_name", "prompt_template", "step")


@dataclass(frozen=True)
class QueryResult:
    """What a query returned: column names and rows, and the records that it had to do without."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    skipped: tuple[Skipped, ...] = ()


def query(store: Store, sql: str) -> QueryResult:
    """Answers one SQL query over the views that the module's docstring names.

    Nothing can be changed: only reading statements are taken, and no file outside the store's own folders is
    read. A record that nobody can read is left out and named in the result. Raises ConfigError for a
    statement that writes, HistoryError for one that DuckDB can't answer.
    """
    import duckdb

    with duckdb.connect(":memory:") as connection:
        _check_reads(connection, sql)
        skipped = create_views(connection, store, sql)
        try:
            cursor = connection.execute(sql)
            columns = tuple(entry[0] for entry in cursor.description or ())
            return QueryResult(columns, cursor.fetchall(), skipped)
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


def create_views(
    connection: "duckdb.DuckDBPyConnection", store: Store, sql: str = "samples scores"
) -> tuple[Skipped, ...]:
    """Creates the views that ``sql`` may mean, closes every other way to a file, and returns what is left
    out of them."""
    history = open_history(store)
    if len(history.loose) > LOOSE_RUNS:
        with suppress(StoreError, OSError):  # a store that only others may write answers all the same
            compact(store)
            history = open_history(store)
    if not store.local:
        connection.register_filesystem(store.fs)
    skipped = list(history.skipped)
    places = [
        {"run_id": run_id, "segment": segment}
        for segment, runs in history.compacted.items()
        for run_id in runs
    ]
    schema = pa.schema([("run_id", pa.string()), ("segment", pa.string())])
    _table(connection, "compacted", pa.Table.from_pylist(places, schema=schema))
    for part, table in (("runs", "row"), ("artifacts", "artifacts")):
        loose = pa.concat_tables(
            [PARTS[part].empty_table(), *(getattr(run, table) for run in history.loose.values())]
        )
        _table(connection, f"loose_{part}", loose)
        _part_view(connection, store, part, history.segments, f"FROM loose_{part}")
    columns = ", ".join(f"{name}, {CURRENCY}" if name == "cost" else name for name in RUNS_VIEW.names)
    connection.execute(f"CREATE VIEW runs AS SELECT {columns} FROM all_runs")
    for part in ("results", "items"):
        # A run that is being recorded has rows already; it is part of the history when its manifest is there.
        runs = ((run_id, run_id) for run_id in history.loose)
        files = read_records(runs, partial(check_rows, store, part))
        skipped += files.skipped
        addresses = [_address(store, name) for name in files.found.values()]
        _part_view(connection, store, part, history.segments, f"FROM {_read(addresses)}" if addresses else "")
        connection.execute(f"CREATE VIEW {part} AS FROM all_{part}")
    for view, stage, schema, of in (
        ("samples", "infer", RESPONSES, OF_SAMPLES),
        ("scores", "score", STATISTICS, OF),
    ):
        _artifact_view(connection, store, (view, stage, schema, of), meant=view in sql.lower())
    connection.execute(f"SET allowed_directories = [{_quoted(_address(store, ''))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return tuple(skipped)


def _part_view(
    connection: "duckdb.DuckDBPyConnection", store: Store, part: str, segments: Sequence[str], loose: str
) -> None:
    """The view ``all_<part>`` of the segments' rows and the loose runs', with the columns of today whatever
    the files hold."""
    _table(connection, f"no_{part}", PARTS[part].empty_table())
    pieces = [f"FROM no_{part}"]
    if segments:
        files = [_address(store, part_file(segment, part)) for segment in segments]
        pieces.append(
            f"SELECT rows.* EXCLUDE (filename) FROM {_read(files, filename=True)} AS rows "
            "SEMI JOIN compacted "
            "ON compacted.run_id = rows.run_id AND contains(rows.filename, compacted.segment)"
        )
    pieces += [loose] if loose else []
    connection.execute(f"CREATE VIEW all_{part} AS " + " UNION ALL BY NAME ".join(pieces))


def _artifact_view(
    connection: "duckdb.DuckDBPyConnection",
    store: Store,
    view: tuple[str, str, pa.Schema, Sequence[str]],
    meant: bool,
) -> None:
    """The rows of the artifacts of a stage that kept runs refer to, as far as they are there; a view that no
    query can mean stays empty, since a file a run would have to be opened for it."""
    name, stage, schema, of = view
    columns = ("run_id", *of)
    full = pa.schema([pa.field(column, pa.string()) for column in columns] + list(schema))
    listed: list[tuple[str, ...]] = []
    if meant:
        listed = connection.execute(
            f"SELECT file, {', '.join(f'artifacts.{column}' for column in columns)} "
            "FROM all_artifacts AS artifacts JOIN runs USING (run_id) "
            f"WHERE kept AND stage = '{stage}' ORDER BY ALL"
        ).fetchall()
    there = {f"{stage}/{entry}.parquet" for entry in names_in(store, stage, ".parquet")} if listed else set()
    rows = [(_address(store, file), *about) for file, *about in listed if file in there]
    files = list(dict.fromkeys(row[0] for row in rows))
    names = ("file", *columns)
    of_files = [dict(zip(names, row, strict=True)) for row in rows]
    table = pa.Table.from_pylist(of_files, schema=pa.schema([(column, pa.string()) for column in names]))
    _table(connection, f"{name}_files", table)
    reading = (
        f"SELECT {', '.join(f'files.{column}' for column in columns)}, rows.* EXCLUDE (filename) "
        f"FROM {_read(files, filename=True)} AS rows "
        f"JOIN {name}_files AS files ON files.file = rows.filename"
    )
    _view(connection, name, full, reading if files else None)


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
