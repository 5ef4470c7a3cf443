"""Benchmarks of lm-evaluation-harness. ``read`` makes definitions of its YAML, ``translate`` makes native
configs of them, ``data`` reads the documents and ``render`` makes requests of them; ``logs`` reads and
writes the harness's own logs. The config's reader enters here; stages enter by ``benchmarks.open``.
"""

from tasks.benchmarks.lm_eval.logs.rescoring import known_definitions, rescoring_configs
from tasks.benchmarks.lm_eval.read.index import Definition, DefinitionIndex, build_index
from tasks.benchmarks.lm_eval.read.select import SelectedBenchmarks, select, select_file
from tasks.benchmarks.lm_eval.translate.config import (
    Translation,
    is_harness,
    resolve_many,
    translate,
    translate_definition,
)

__all__ = [
    "Definition",
    "DefinitionIndex",
    "SelectedBenchmarks",
    "Translation",
    "build_index",
    "is_harness",
    "known_definitions",
    "rescoring_configs",
    "resolve_many",
    "select",
    "select_file",
    "translate",
    "translate_definition",
]
