"""Benchmarks of lm-evaluation-harness.

``yaml`` and ``select`` make definitions of its files: includes, groups, tags, ``!function``, without opening
data. ``translation`` makes native configs of them. ``splits`` reads the documents as ``datasets`` would give
them, without that library where it is not needed; ``benchmark`` makes requests of them: templates, few-shot
examples, chat turns and targets as the harness makes them. ``rescoring`` reads the harness's own logs and
``results`` writes them.

Without its dataset a definition is tried on rows made for it: ``columns`` and ``functions`` read which
columns templates and functions use and what these hold, ``shapes`` keeps that and draws rows of it from a
seed, ``trial`` runs every template and function on them.

The config's reader enters here; stages enter by ``benchmarks.open``.
"""

from tasks.benchmarks.lm_eval.rescoring import known_definitions, rescoring_configs
from tasks.benchmarks.lm_eval.select import (
    Definition,
    DefinitionIndex,
    SelectedBenchmarks,
    build_index,
    select,
    select_file,
    select_from,
)
from tasks.benchmarks.lm_eval.splits import files_of_benchmark
from tasks.benchmarks.lm_eval.translation import (
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
    "files_of_benchmark",
    "is_harness",
    "known_definitions",
    "rescoring_configs",
    "resolve_many",
    "select",
    "select_file",
    "select_from",
    "translate",
    "translate_definition",
]
