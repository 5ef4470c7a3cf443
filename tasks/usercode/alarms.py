"""Which functions of users set alarms, and so need the main thread of a process."""

import inspect
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tasks.store.definitions import reached_definitions

SETTING: Final = frozenset({"signal", "math_verify"})
"""Modules by which alarms are set: the standard library's, and one that sets them itself."""
COLLECTION: Final = "lm_eval.tasks."
"""What benchmarks import by its full name and not as a neighbour."""


def sets_alarms(function: Callable[..., Any]) -> bool:
    """Whether the function, or what it reaches in its files and in the harness's collection, imports a module
    that sets alarms."""
    while isinstance(function, partial):
        function = function.func
    try:
        path = inspect.getsourcefile(function)
    except TypeError:
        return False  # a builtin
    return path is not None and _reaches(Path(path), getattr(function, "__name__", None), set())


def _reaches(path: Path, name: str | None, seen: set[str]) -> bool:
    modules = [module for module, source in reached_definitions(path, name).items() if source is None]
    if any(module.partition(".")[0] in SETTING for module in modules):
        return True
    for module in modules:
        if module.startswith(COLLECTION) and module not in seen:
            seen.add(module)
            spec = find_spec(module)
            if spec is not None and spec.origin is not None and _reaches(Path(spec.origin), None, seen):
                return True
    return False
