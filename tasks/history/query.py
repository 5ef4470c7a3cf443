"""SQL over all runs of a store, read-only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metrics.errors import ConfigError
from tasks.history.layout import HistoryError
from tasks.history.views import create_views
from tasks.store.storage import Store

if TYPE_CHECKING:
    import duckdb

READING = ("SELECT", "EXPLAIN")


@dataclass(frozen=True)
class Answer:
    """What a query returned: column names and rows."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]


def query(store: Store, sql: str) -> Answer:
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
            return Answer(tuple(entry[0] for entry in cursor.description or ()), cursor.fetchall())
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
    if kind not in READING:
        raise ConfigError(f"the history is read-only: expected a SELECT, got {kind}")
