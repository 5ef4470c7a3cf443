"""Benchmarks of lm-evaluation-harness: its YAML read, translated and rendered."""

from typing import TYPE_CHECKING, Any

from tasks.benchmarks.lm_eval.logs.rescoring import known_definitions, rescored
from tasks.benchmarks.lm_eval.read.index import Definition, DefinitionIndex, build_index
from tasks.benchmarks.lm_eval.read.select import SelectedBenchmarks, select, select_file
from tasks.benchmarks.lm_eval.translate.config import (
    Translation,
    is_harness,
    resolve_many,
    translate,
    translate_definition,
)

if TYPE_CHECKING:
    from tasks.benchmarks.config import BenchmarkFields
    from tasks.benchmarks.records import Benchmark


__all__ = [
    "Definition",
    "DefinitionIndex",
    "SelectedBenchmarks",
    "Translation",
    "build_index",
    "is_harness",
    "known_definitions",
    "open_harness_benchmark",
    "rescored",
    "resolve_many",
    "select",
    "select_file",
    "translate",
    "translate_definition",
]


def open_harness_benchmark(fields: "BenchmarkFields") -> "Benchmark":
    """The benchmark behind a translated config, opened lazily; raises ConfigError for what may not run."""
    harness: dict[str, Any] = fields.harness or {}
    if "samples" in harness:
        from tasks.benchmarks.lm_eval.logs.rescoring import LoggedBenchmark

        return LoggedBenchmark(harness, fields.base_dir, fields.name, fields.cluster)
    from tasks.benchmarks.lm_eval.render.benchmark import HarnessBenchmark

    return HarnessBenchmark(harness, fields.base_dir, fields.name, fields.cluster)
