"""Reads which columns a definition's templates and functions use, and what each of them holds.

Templates and functions are followed as syntax trees, from the parameter that a document comes in through
assignments, loops and calls; functions are imported for that, so that constants are what they are. What can't
be followed is left out; ``trial`` finds out about it when it runs the functions.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from metrics.types import Resolve
from tasks.benchmarks.lm_eval.made.functions import DATASET, ROW, FunctionReader
from tasks.benchmarks.lm_eval.made.shapes import Shape
from tasks.benchmarks.lm_eval.made.templates import read_template
from tasks.benchmarks.lm_eval.read.yaml import FunctionName

COLUMN: Final = re.compile(r"[^\W\d]\w*")


def columns_of(config: Mapping[str, Any], resolve: Resolve) -> Shape:
    """The row of a definition: what ``process_docs`` reads, and of all else what it leaves alone.

    ``resolve`` gives the functions by name.
    """
    raw, late = Shape(), Shape()
    process_docs = config.get("process_docs")
    if isinstance(process_docs, FunctionName):
        FunctionReader(resolve(process_docs)).read(DATASET, raw)
    for owner in (config, config.get("fewshot_config") or {}):
        if isinstance(owner, Mapping):
            _read_fields(owner, config, resolve, late)
    for name, shape in late.fields.items():
        raw.fields.setdefault(name, shape)
    if not raw.fields:
        raw.key("id")  # a row without columns is none
    return raw


def _read_fields(owner: Mapping[str, Any], config: Mapping[str, Any], resolve: Resolve, row: Shape) -> None:
    choices = owner.get("doc_to_choice", config.get("doc_to_choice"))
    for key in (
        "doc_to_text",
        "doc_to_target",
        "doc_to_choice",
        "process_results",
        "description",
        "gen_prefix",
    ):
        value = owner.get(key)
        if isinstance(value, FunctionName):
            FunctionReader(resolve(value)).read(ROW, row)
        elif isinstance(value, str) and COLUMN.fullmatch(value) and key in FIELDS:
            _note_column(row.key(value), key, choices, config)
        elif isinstance(value, str):
            read_template(value, row)
        elif isinstance(value, list):
            for entry in value:
                if isinstance(entry, str) and "{{" in entry:
                    read_template(entry, row)
    for pipeline in owner.get("filter_list") or ():
        steps = pipeline.get("filter") if isinstance(pipeline, Mapping) else None
        if any(
            isinstance(step, Mapping) and step.get("function") == "multi_choice_regex" for step in steps or ()
        ):
            row.key("choices").item().note("text")


FIELDS: Final = ("doc_to_text", "doc_to_target", "doc_to_choice")


def _note_column(column: Shape, key: str, choices: Any, config: Mapping[str, Any]) -> None:
    """What a column that is named alone holds."""
    if key == "doc_to_choice":
        column.item()
    elif key == "doc_to_target" and choices is not None:
        column.note("index")
        column.places = len(choices) if isinstance(choices, list | dict) else None
    elif key == "doc_to_text" and config.get("output_type") == "multiple_choice" and choices is not None:
        column.note("text")
    else:
        column.note("text")
