"""Benchmarks of lm-evaluation-harness: its YAML read, translated and rendered."""

from typing import TYPE_CHECKING, Any

from tasks.benchmarks.lm_eval.definitions import Definition, Index, build_index
from tasks.benchmarks.lm_eval.selection import Selection, select, select_file
from tasks.benchmarks.lm_eval.translation import (
    Translation,
    is_harness,
    select_translated,
    translate,
    translate_definition,
)
from tasks.benchmarks.lm_eval.validation import resolve_many

if TYPE_CHECKING:
    from tasks.benchmarks.config import BenchmarkFields
    from tasks.benchmarks.lm_eval.benchmark import HarnessBenchmark

__all__ = [
    "Definition",
    "Index",
    "Selection",
    "Translation",
    "build_index",
    "is_harness",
    "open_harness_benchmark",
    "resolve_many",
    "select",
    "select_file",
    "select_translated",
    "translate",
    "translate_definition",
]


def open_harness_benchmark(fields: "BenchmarkFields") -> "HarnessBenchmark":
    """The benchmark behind a translated config, opened lazily; raises ConfigError for what may not run."""
    from tasks.benchmarks.lm_eval.benchmark import HarnessBenchmark

    harness: dict[str, Any] = fields.harness or {}
    return HarnessBenchmark(harness, fields.base_dir, fields.name, fields.cluster)
