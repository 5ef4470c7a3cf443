"""What a finished evaluation is to programs and notebooks: its folder, read when it is asked for."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from metrics.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Evaluation:
    """A run's folder: numbers as Arrow or pandas, provenance, and where its files are."""

    output: str

    @property
    def folder(self) -> Path:
        """Where the run's files are."""
        return Path(self.output)

    @property
    def report(self) -> Path:
        """The page that people look through."""
        return self.folder / "report.html"

    @cached_property
    def results(self) -> pa.Table:
        """One row a metric × filter × reduction × facet group; raises DataError where the run was not
        published."""
        try:
            return _read(self.folder / "results.parquet")
        except FileNotFoundError as error:
            raise DataError(
                f"{self.folder} holds no results.parquet: the run did not get that far"
            ) from error

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What was run, on what, and what it took."""
        try:
            document: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise DataError(f"{self.folder} holds no manifest.json: the run did not get that far") from error
        return document

    def items(self) -> pa.Table:
        """One row a pair × reduction × item × facet group."""
        return _read(self.folder / "items.parquet")

    def to_pandas(self) -> "pd.DataFrame":
        """The results as a data frame (needs pandas)."""
        return self.results.to_pandas()

    def document(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        manifest = self.manifest
        names = (
            "run_id",
            "flow_run_id",
            "benchmark",
            "steps",
            "requests",
            "tokens",
            "cost",
            "currency",
            "wall_seconds",
            "diagnostics",
        )
        rows = self.results.to_pylist()
        for row in rows:
            row["facets"] = json.loads(row["facets"])
        return {
            **{name: manifest.get(name) for name in names},
            "output": self.output,
            "report": str(self.report),
            "results": rows,
        }


def _read(path: Path) -> pa.Table:
    with pq.ParquetFile(path) as file:  # read_table imports pyarrow's datasets first, for many files
        return file.read()
