"""Functions of a definition as names that travel: relative to its folder, and kept apart from texts in
JSON."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tasks.benchmarks.lm_eval.reading import FunctionName

FUNCTION_KEY: Final = "!function"


def reference(name: FunctionName, base_dir: Path) -> str:
    """The name as native configs write it: ``utils.py:process_docs`` relative to ``base_dir``, or
    ``package:fn``."""
    source, _, function = name.rpartition(":")
    if source.endswith(".py"):
        source = Path(os.path.relpath(source, base_dir)).as_posix()
    return f"{source}:{function}"


def functions_in(value: Any) -> Iterator[FunctionName]:
    """Every function named anywhere in a definition, as often as it is."""
    if isinstance(value, FunctionName):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from functions_in(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from functions_in(entry)


def encoded(value: Any, base_dir: Path) -> Any:
    """``value`` for JSON: a function becomes ``{"!function": "utils.py:process_docs"}``, so that no text is
    taken for one."""
    if isinstance(value, FunctionName):
        return {FUNCTION_KEY: reference(value, base_dir)}
    if isinstance(value, Mapping):
        return {key: encoded(entry, base_dir) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(entry, base_dir) for entry in value]
    return value


def decoded(value: Any) -> Any:
    """The reverse of ``encoded``; functions are names relative to the base folder."""
    if isinstance(value, Mapping):
        if set(value) == {FUNCTION_KEY}:
            return FunctionName(value[FUNCTION_KEY])
        return {key: decoded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [decoded(entry) for entry in value]
    return value
