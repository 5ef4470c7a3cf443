"""Which tables a history query sees, and how SQL is kept from doing more than read them.

runs     one row a run: when, what, at what cost, and its whole manifest as JSON
results  one row a metric × filter × reduction × facet group of each run (the columns of results.parquet)
items    one row a pair × reduction × item × facet group of each run (the columns of items.parquet)
scores   one row a sample and pair: the statistics artifacts that the kept runs refer to
samples  one row a sample: the responses that the kept runs refer to

The history is read in few files: made of the records, never instead of them, and built again from them at
any time. A *segment* holds some runs' manifests, rows and artifact lists in four Parquet files whose
names begin alike; the one of manifests comes last, so that a segment is there whole or not at all. Beside
each manifest stands the token that its record's file had: a run that is recorded again, or forgotten, has
another one and counts as loose, as does a run that is in no segment. Two processes that compact at once
make two segments of the same runs, and the later counts.
"""

import glob
import json
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from metrics.errors import ConfigError, NightjarError
from tasks.history.layout import (
    HISTORY_ITEMS,
    ITEMS,
    RESULT_ROWS,
    HistoryError,
    Records,
    RunRecord,
    Skipped,
    check_run,
    read_manifest,
    read_records,
    references,
    run_records,
    started_at,
)
from tasks.store.errors import STORE_LOG, FileDamaged, FileMissing, StoreError, StoreUnavailable
from tasks.store.rows import ROW_GROUP
from tasks.store.schemas import RESPONSES, RESULTS, STATISTICS
from tasks.store.storage import Store, Table

if TYPE_CHECKING:
    import duckdb


FOLDER: Final = "history/compacted"
MOST_SEGMENTS: Final = 8
"""Beyond so many, all runs are written into one."""
REMOVED_AFTER_SECONDS: Final = 3_600.0
"""A segment that nothing needs any more stays for who reads it now."""

RUNS_VIEW: Final = pa.schema(
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
TOKEN: Final = pa.schema([pa.field("record", pa.string()), pa.field("token", pa.string())])
OF: Final = ("model_name", "prompt_template", "step", "filter", "metric")
ARTIFACTS: Final = pa.schema([pa.field(name, pa.string()) for name in ("run_id", "stage", "file", *OF)])
PARTS: Final = {
    "results": RESULTS,
    "items": HISTORY_ITEMS,
    "artifacts": ARTIFACTS,
    "runs": pa.schema([*RUNS_VIEW, *TOKEN]),
}
PART_NAMES: Final = tuple(PARTS)
ROWS_IN: Final = {"results": RESULT_ROWS, "items": ITEMS}
"""Folders of the records' own rows."""


@dataclass(frozen=True)
class LooseRun:
    """A run that is in no segment, with what a segment would hold of it beside its rows."""

    record: RunRecord
    row: pa.Table
    artifacts: pa.Table


@dataclass(frozen=True)
class History:
    """All runs of a store that can be read: those in segments, by the segment's name, and the loose ones."""

    compacted: Mapping[str, frozenset[str]]
    loose: Mapping[str, LooseRun]
    skipped: tuple[Skipped, ...]

    @property
    def segments(self) -> tuple[str, ...]:
        """The segments that hold a run."""
        return tuple(self.compacted)


def open_history(store: Store, parts: Collection[str] = PART_NAMES) -> History:
    """Which runs there are and where; of those in segments no record is opened. Of segments ``parts`` are
    meant to be read, and are verified."""
    records = run_records(store)
    compacted = _compacted(store, records, parts)
    known = {run_id for runs in compacted.values() for run_id in runs}
    loose = _loose(store, [record for run_id, record in records.items() if run_id not in known])
    return History(compacted, loose.found, loose.skipped)


def compact(store: Store, anew: bool = False) -> tuple[int, tuple[Skipped, ...]]:
    """Writes the loose runs into a segment; all runs, if there are many segments or ``anew`` is set.

    Returns how many runs were written, and what was left out because nobody can read it. Raises StoreError
    where the store can't be written.
    """
    records = run_records(store)
    compacted = {} if anew else _compacted(store, records)
    if len(compacted) >= MOST_SEGMENTS:
        compacted = {}
    known = {run_id for runs in compacted.values() for run_id in runs}
    written, skipped, unread = 0, [], set()
    name = f"{time.time_ns() // 1_000_000:013d}-{uuid.uuid4().hex[:12]}"
    with ExitStack() as stack:
        parts = {part: _Part(stack, store, name, part) for part in PARTS}
        for run_id, record in records.items():
            if run_id in known:
                continue
            try:
                run = _loose_run(store, record)
                rows = {part: read_rows(store, part, run_id) for part in ROWS_IN}
            except StoreUnavailable:
                raise
            except NightjarError as error:
                skipped.append(Skipped(record.name, str(error)))
                unread.add(run_id)
                continue
            for part, table in {**rows, "artifacts": run.artifacts, "runs": run.row}.items():
                parts[part].add(table)
            written += 1
        for part in PARTS:  # the runs last
            parts[part].close()
    _remove_unneeded(store, run_records(store), unread)
    return written, tuple(skipped)


def read_rows(store: Store, part: str, run_id: str) -> pa.Table:
    """The rows that a run's record holds ("results" or "items"), with the columns of today; raises
    HistoryError naming the file."""
    with open_rows(store, part, run_id) as table:
        return table.complete(table.file.read(), PARTS[part])


@contextmanager
def open_rows(store: Store, part: str, run_id: str) -> Iterator[Table]:
    """The file with the rows of a run's record; raises HistoryError where they are not what was written, or
    another run's, then or while they are read in the block."""
    try:
        with open_checked(store, _rows_file(part, run_id), PARTS[part]) as table:
            yield table
    except (FileMissing, FileDamaged) as error:
        raise HistoryError(str(error)) from error


def check_rows(store: Store, part: str, run_id: str) -> str:
    """The name of the file with the run's rows; raises HistoryError as ``open_rows`` does."""
    with open_rows(store, part, run_id):
        return _rows_file(part, run_id)


def _rows_file(part: str, run_id: str) -> str:
    return f"{ROWS_IN[part]}/{run_id}.parquet"


@contextmanager
def open_checked(store: Store, name: str, schema: pa.Schema) -> Iterator[Table]:
    """A file of rows; raises FileDamaged for rows that are not what was written, or of another run than its
    own."""
    with store.open_table(name) as table:
        table.complete(table.file.schema_arrow.empty_table(), schema)
        check_run(store, name, pc.unique(table.file.read(["run_id"]).column("run_id")).to_pylist())
        yield table


def part_file(segment: str, part: str) -> str:
    """The name of a segment's file below the store's root."""
    return f"{FOLDER}/{segment}.{part}.parquet"


class _Part:
    """A file of a new segment, there once it is closed; small tables are gathered to row groups of some
    size."""

    def __init__(self, stack: ExitStack, store: Store, segment: str, part: str) -> None:
        self._stack = stack.enter_context(ExitStack())
        self._store, self._name, self._schema = store, part_file(segment, part), PARTS[part]
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []

    def add(self, table: pa.Table) -> None:
        if self._writer is None:
            self._writer = self._stack.enter_context(self._store.writing_table(self._name, self._schema))
        self._waiting.append(table)
        if sum(waiting.num_rows for waiting in self._waiting) >= ROW_GROUP:
            self._write()

    def close(self) -> None:
        self._write()
        self._stack.close()

    def _write(self) -> None:
        if self._writer is not None and self._waiting:
            table = pa.concat_tables(self._waiting).unify_dictionaries().combine_chunks()
            self._writer.write_table(table, row_group_size=ROW_GROUP)
        self._waiting = []


def _compacted(
    store: Store, records: Mapping[str, RunRecord], parts: Collection[str] = PART_NAMES
) -> dict[str, frozenset[str]]:
    """Segment → the runs that are read from it, as their records have not changed since; newest first."""
    found: dict[str, frozenset[str]] = {}
    seen: set[str] = set()
    for segment in reversed(store.names(FOLDER, ".runs.parquet")):
        current = {
            run_id
            for run_id, record, token in _listed(store, segment, parts)
            if (known := records.get(run_id)) is not None and (known.name, known.token) == (record, token)
        }
        if fresh := frozenset(current - seen):
            found[segment] = fresh
            seen |= fresh
    return found


def _listed(store: Store, segment: str, parts: Collection[str]) -> Iterable[tuple[str, str, str]]:
    """Run, record and token of a segment's runs; none where a part is not what was written, or is of a
    version before seals: its runs are loose again."""
    try:
        for part in parts:
            with store.open_table(part_file(segment, part)) as table:
                if table.version is None:
                    return ()
                table.complete(table.file.schema_arrow.empty_table(), PARTS[part])
        with store.open_table(part_file(segment, "runs")) as table:
            rows = table.file.read(["run_id", *TOKEN.names])
    except FileDamaged as error:
        STORE_LOG.warning("%s", error)
        return ()
    except FileMissing:
        return ()
    return zip(*(rows.column(name).to_pylist() for name in rows.schema.names), strict=True)


def _loose(store: Store, records: Iterable[RunRecord]) -> Records[LooseRun]:
    by_name = {record.name: record for record in records}
    names = ((record.run_id, name) for name, record in by_name.items())
    return read_records(names, lambda name: _loose_run(store, by_name[name]))


def _loose_run(store: Store, record: RunRecord) -> LooseRun:
    manifest = read_manifest(store, record.name)
    row = run_row(record, manifest) | {"record": record.name, "token": record.token}
    try:
        return LooseRun(
            record=record,
            row=pa.Table.from_pylist([row], schema=PARTS["runs"]),
            artifacts=pa.Table.from_pylist(list(_artifacts(record.run_id, manifest)), schema=ARTIFACTS),
        )
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise HistoryError(f"store {store.uri}: {record.name} is no manifest of a run: {error}") from error


def run_row(record: RunRecord, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the view ``runs``."""
    requests = manifest.get("requests") or {}
    row = {name: manifest.get(name) for name in RUNS_VIEW.names}
    row |= {name: requests.get(name) for name in ("sent", "cached", "failed")}
    row |= {"run_id": record.run_id, "kept": record.kept}
    row |= {"started": started_at(manifest), "status": _status(manifest)}
    return row | {"manifest": json.dumps(manifest, ensure_ascii=False)}


def _status(manifest: Mapping[str, Any]) -> str:
    """ "failed" or "ok", as the run ended; in manifests that do not say so, failed where a step was or more
    requests were than allowed."""
    if (status := manifest.get("status")) is not None:
        return "ok" if status == "ok" else "failed"  # Crashed, Cancelled, TimedOut: it left no numbers
    steps = (manifest.get("steps") or {}).values()
    return "failed" if manifest.get("over_budget") or any(step.get("failed") for step in steps) else "ok"


def _artifacts(run_id: str, manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for reference in references(manifest):
        of = {name: reference.of.get(name) for name in OF}
        yield {"run_id": run_id, "stage": reference.stage, "file": reference.name, **of}


def _remove_unneeded(store: Store, records: Mapping[str, RunRecord], unread: Collection[str]) -> None:
    """Removes the files of segments that hold no run any more, once nobody can be reading them. Runs that are
    ``unread`` because their own files are damaged may have their only copy there: repairing takes it."""
    needed = _compacted(store, records)
    for segment in {name.partition(".")[0] for name in store.names(FOLDER, ".parquet")} - needed.keys():
        old = segment[:13].isdigit() and time.time() - int(segment[:13]) / 1000 > REMOVED_AFTER_SECONDS
        if old and not any(run_id in unread for run_id, _, _ in _listed(store, segment, PART_NAMES)):
            for part in reversed(PARTS):
                store.remove(part_file(segment, part))


LOOSE_RUNS: Final = 50
"""A query that finds more runs than these in files of their own compacts the history first."""
CURRENCY: Final = "manifest->>'$.currency' AS currency"
"""What the costs of a run are in; the manifests of all versions say it, if anything does."""
PLACE: Final = "file_row_number"
"""A column of ``all_results`` and ``all_items`` alone: which row of its file a row is, from 0."""
OF_SAMPLES: Final = ("model_name", "prompt_template", "step")


@dataclass(frozen=True)
class QueryResult:
    """What a query returned: column names and rows, and the records that it had to do without."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    skipped: tuple[Skipped, ...] = ()


def query(store: Store, sql: str) -> QueryResult:
    """Answers one SQL query over the views that the module's docstring names.

    Nothing can be changed: only what can stand within another SELECT is taken, by itself or explained, and
    no file outside the store's own folders is read. A record that nobody can read is left out and named in
    the result. Raises ConfigError for a statement that writes, HistoryError for one that DuckDB can't answer.
    """
    import duckdb

    with duckdb.connect(":memory:") as connection:
        selected = _selected(connection, sql)
        skipped = create_views(connection, store, sql)
        try:
            _check_reads(connection, selected)
            cursor = connection.execute(sql)
            columns = tuple(entry[0] for entry in cursor.description or ())
            return QueryResult(columns, cursor.fetchall(), skipped)
        except duckdb.Error as error:
            raise HistoryError(f"the query failed: {str(error).strip()}") from error


def _selected(connection: "duckdb.DuckDBPyConnection", sql: str) -> str:
    """The text of the one SELECT that ``sql`` is, or explains, without what ends it."""
    import duckdb

    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise ConfigError(f"the query is not SQL: {str(error).strip()}") from error
    if len(statements) != 1:
        raise ConfigError(f"expected one SQL query, got {len(statements)}")
    statement = statements[0]
    if statement.type.name == "EXPLAIN":
        statement = _explained(connection, statement.query)
    if (kind := statement.type.name) == "MULTI":
        raise ConfigError(
            "the history is read-only: a PIVOT writes a type of its own unless it names its columns, "
            "such as ON metric IN ('acc', 'f1')"
        )
    if kind != "SELECT":
        raise ConfigError(f"the history is read-only: expected a SELECT, got {kind}")
    text: bytes = statement.query.encode()
    for start, token in reversed(duckdb.tokenize(statement.query)):
        if token != duckdb.token_type.comment and text[start:].strip() != b";":
            break
        text = text[:start]
    return text.decode()


def _explained(connection: "duckdb.DuckDBPyConnection", sql: str) -> "duckdb.Statement":
    """What an EXPLAIN is about: the longest rest of it that is a statement. ANALYZE carries that out."""
    import duckdb

    for start, _ in duckdb.tokenize(sql)[1:]:
        with suppress(duckdb.Error):
            rest = connection.extract_statements(sql.encode()[start:].decode())
            if len(rest) == 1:
                return rest[0]
    raise ConfigError("the query is not SQL: it explains no statement")


def _check_reads(connection: "duckdb.DuckDBPyConnection", selected: str) -> None:
    """Raises ConfigError for a SELECT that writes: DuckDB lets a WITH do so, but not within another query."""
    import duckdb

    try:
        connection.execute(f"EXPLAIN SELECT * FROM (\n{selected}\n)")
    except duckdb.Error as error:
        connection.execute(f"EXPLAIN\n{selected}")  # raises for what no SELECT can mean
        raise ConfigError(f"the history is read-only: {str(error).strip()}") from error


def create_views(
    connection: "duckdb.DuckDBPyConnection", store: Store, sql: str = "results items samples scores"
) -> tuple[Skipped, ...]:
    """Creates the views that ``sql`` may mean, closes every other way to a file, and returns what is left
    out of them."""
    # A view that no query can mean need not be verified, which reads all of its bytes.
    parts = ["runs", "artifacts", *(part for part in ROWS_IN if part in sql.lower())]
    history = open_history(store, parts)
    if len(history.loose) > LOOSE_RUNS:
        with suppress(StoreError):  # a store that only others may write answers all the same
            compact(store)
            history = open_history(store, parts)
    files = _Files(store)
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
        _part_view(connection, files, part, history.segments, f"FROM loose_{part}")
    columns = ", ".join(f"{name}, {CURRENCY}" if name == "cost" else name for name in RUNS_VIEW.names)
    connection.execute(f"CREATE VIEW runs AS SELECT {columns} FROM all_runs")
    for part in ROWS_IN:
        # A run that is being recorded has rows already; it is part of the history when its manifest is there.
        runs = ((run_id, run_id) for run_id in history.loose if part in parts)
        rows = read_records(runs, partial(check_rows, store, part))
        skipped += rows.skipped
        names = list(rows.found.values())
        segments = history.segments if part in parts else ()
        loose_rows = f"FROM {files.read(names, PLACE)}" if names else ""
        _part_view(connection, files, part, segments, loose_rows)
        connection.execute(f"CREATE VIEW {part} AS SELECT * EXCLUDE ({PLACE}) FROM all_{part}")
    for view, stage, schema, of in (
        ("samples", "infer", RESPONSES, OF_SAMPLES),
        ("scores", "score", STATISTICS, OF),
    ):
        meant = view in sql.lower()
        skipped += _artifact_view(connection, files, (view, stage, schema, of), meant)
    files.list()
    folders = ", ".join(map(_quoted, {files.address(""), files.pattern("")}))
    connection.execute(f"SET allowed_directories = [{folders}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return tuple(skipped)


@dataclass(frozen=True)
class _Files:
    """The files that a connection's views read."""

    store: Store
    folders: set[str] = field(default_factory=set)

    def address(self, name: str) -> str:
        """Where DuckDB finds a file."""
        path, protocol = self.store.path(name), self.store.fs.protocol
        scheme = protocol if isinstance(protocol, str) else protocol[0]
        return path if self.store.local else f"{scheme}://{path}"

    def pattern(self, name: str) -> str:
        """What DuckDB, which takes every address for a pattern, finds this one file by."""
        return glob.escape(self.address(name))

    def read(self, names: Sequence[str], *named: str) -> str:
        """The rows of files, as SQL; ``named`` are what else to say of each: its file, its place there."""
        self.folders.update(name.rpartition("/")[0] for name in names)
        self.list()
        addresses = ", ".join(_quoted(self.pattern(name)) for name in names)
        options = ", ".join(f"{option} = true" for option in ("union_by_name", *named))
        return f"read_parquet([{addresses}], {options})"

    def list(self) -> None:
        """Has the file system of an object store know all files by one request a folder: DuckDB looks a file
        up some sixteen times while it reads it."""
        if not self.store.local:
            self.store.know(self.folders)


def _part_view(
    connection: "duckdb.DuckDBPyConnection", files: _Files, part: str, segments: Sequence[str], loose: str
) -> None:
    """The view ``all_<part>`` of the segments' rows and the loose runs', with the columns of today whatever
    the files hold; a run's own rows have their order by ``PLACE``, since the groups of a file are read at
    once."""
    placed = [PLACE] if part in ROWS_IN else []
    columns = pa.schema([*PARTS[part], *(pa.field(name, pa.int64()) for name in placed)])
    _table(connection, f"no_{part}", columns.empty_table())
    pieces = [f"FROM no_{part}"]
    if segments:
        names = [part_file(segment, part) for segment in segments]
        pieces.append(
            f"SELECT rows.* EXCLUDE (filename) FROM {files.read(names, 'filename', *placed)} AS rows "
            "SEMI JOIN compacted "
            "ON compacted.run_id = rows.run_id AND contains(rows.filename, compacted.segment)"
        )
    pieces += [loose] if loose else []
    connection.execute(f"CREATE VIEW all_{part} AS " + " UNION ALL BY NAME ".join(pieces))


def _artifact_view(
    connection: "duckdb.DuckDBPyConnection",
    files: _Files,
    view: tuple[str, str, pa.Schema, Sequence[str]],
    meant: bool,
) -> list[Skipped]:
    """The rows of the artifacts of a stage that kept runs refer to, as far as they are there, and those that
    are damaged; a view that no query can mean stays empty, since a file a run would have to be opened for
    it."""
    store = files.store
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
    there = {f"{stage}/{entry}.parquet" for entry in store.names(stage, ".parquet")} if listed else set()
    present = sorted(there & {file for file, *_ in listed})
    whole = read_records(((file, file) for file in present), store.checked)
    found = [(file, about) for file, *about in listed if file in whole.found]
    read = list(dict.fromkeys(file for file, _ in found))
    names = ("file", *columns)
    of_files = [dict(zip(names, (files.address(file), *about), strict=True)) for file, about in found]
    table = pa.Table.from_pylist(of_files, schema=pa.schema([(column, pa.string()) for column in names]))
    _table(connection, f"{name}_files", table)
    reading = (
        f"SELECT {', '.join(f'files.{column}' for column in columns)}, rows.* EXCLUDE (filename) "
        f"FROM {files.read(read, 'filename')} AS rows "
        f"JOIN {name}_files AS files ON files.file = rows.filename"
    )
    _view(connection, name, full, reading if read else None)
    return list(whole.skipped)


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


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
