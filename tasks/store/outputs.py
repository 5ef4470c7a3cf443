"""The files that a run writes into its output folder, and which of them a file that is read is.

A file is the same under every name: through a symbolic link, or as a second hard link.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

RESPONSES: Final = "responses.jsonl"
EVALUATION_RESULTS: Final = "evaluation_results.jsonl"
METRICS: Final = "metrics.jsonl"
RESULTS_JSON: Final = "results.json"
RESULTS_TABLE: Final = "results.parquet"
ITEMS_TABLE: Final = "items.parquet"
MANIFEST: Final = "manifest.json"
REPORT: Final = "report.html"
INSPECT_LOGS: Final = "inspect"
"""The folder of the logs in Inspect's format."""
SERVER_LOGS: Final = "servers"
"""The folder of the logs of models' servers."""


def samples_file(benchmark: str) -> str:
    """The name of the log of samples."""
    return f"samples_{benchmark}.jsonl"


def published_files(folder: Path, benchmark: str) -> Iterator[Path]:
    """Every file that is published of a run of the benchmark; first the manifest, by which the others are
    that run's."""
    names = (
        MANIFEST,
        REPORT,
        RESPONSES,
        EVALUATION_RESULTS,
        METRICS,
        RESULTS_JSON,
        RESULTS_TABLE,
        ITEMS_TABLE,
    )
    for name in (*names, samples_file(benchmark)):
        yield folder / name


def output_files(folder: Path, benchmark: str) -> Iterator[Path]:
    """Every file that a run of the benchmark may write or remove there."""
    yield from published_files(folder, benchmark)
    yield from sorted((folder / INSPECT_LOGS).glob("*.eval"))
    yield from sorted((folder / SERVER_LOGS).glob("*.log"))


def written_over(read: Path, folder: Path, benchmark: str) -> Path | None:
    """The output file that a file that is read is; None where it is none of them."""
    return next((file for file in output_files(folder, benchmark) if _is_same(file, read)), None)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):  # one of them is not there, or no name that a file can have
        return False
