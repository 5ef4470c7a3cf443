"""What benchmarks' functions find around them where they run under lm-evaluation-harness: libraries,
seeded generators, a main thread that takes alarms.

``stand_ins``: while a definition's Python file loads, and while a function of it runs, ``import
datasets`` and ``import evaluate`` find a module that stands in. For ``datasets`` it does where the
library is not installed, with the tables of ``documents.py``; for ``evaluate`` always, since the library
itself would fetch every metric from a hub, with those of ``evaluate.py``. Afterwards they are gone, so
that nothing else takes them for the libraries.

``Generators``: the harness seeds the global generators of Python and numpy when it starts. Here each step
of each benchmark starts from that state, whatever drew before it in the process, and goes on from where
it was; for everyone else nothing has changed.

``sets_alarms``: which functions set alarms, and so need the main thread of a process.
"""

import importlib
import inspect
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from metrics.errors import ConfigError
from tasks.store.definitions import reached_definitions

if TYPE_CHECKING:
    from tasks.usercode.documents import Documents


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


# What the harness seeds the global generators with; a process_docs that shuffles draws from them.
PYTHON_SEED: Final = 0
NUMPY_SEED: Final = 1234
_drawing = threading.RLock()


class Generators:
    """The global generators of one step of one benchmark."""

    def __init__(self) -> None:
        self._own: tuple[Any, Any] | None = None

    @contextmanager
    def drawn_from(self) -> Iterator[None]:
        """Inside the block they are in this step's state, afterwards in the one that they were in. One step
        at a time draws from them."""
        with _drawing:
            others = _state()
            if self._own is None:
                random.seed(PYTHON_SEED)
                np.random.seed(NUMPY_SEED)
            else:
                _set(self._own)
            try:
                yield
            finally:
                self._own = _state()
                _set(others)


def _state() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _set(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])


LIBRARY: Final = "datasets"
METRICS: Final = "evaluate"
_counting = threading.Lock()
_users = 0  # loading files at this moment, in all threads: the last one takes the stand-ins away
_alone: ContextVar[bool] = ContextVar("without_library", default=False)
_hidden: dict[str, ModuleType] = {}
"""What the stand-ins hide while they are there."""


@cache
def library_installed() -> bool:
    """Whether ``datasets`` itself is there, stand-in or not."""
    return PathFinder.find_spec(LIBRARY) is not None


@contextmanager
def stand_ins() -> Iterator[None]:
    """Makes ``import datasets`` and ``import evaluate`` work inside the block."""
    _count(+1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    global _users
    with _counting:
        first = _users == 0
        _users += change
        if first:
            for name, module in _modules().items():
                if name in sys.modules:
                    _hidden[name] = sys.modules[name]
                sys.modules[name] = module
        elif _users == 0:
            for name in _modules():
                sys.modules.pop(name, None)
            sys.modules.update(_hidden)
            _hidden.clear()


@cache
def _modules() -> dict[str, ModuleType]:
    found = {METRICS: _evaluate_module()}
    return found if library_installed() else {**found, LIBRARY: _datasets_module()}


def _evaluate_module() -> ModuleType:
    from tasks.usercode.evaluate import combine, load

    return _module(
        METRICS,
        {"load": partial(load, library=_library), "combine": partial(combine, library=_library)},
    )


@contextmanager
def without_library() -> Iterator[None]:
    """Inside the block a metric that is not here is nowhere: ``evaluate`` itself would ask a hub for it."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def _library() -> ModuleType | None:
    """``evaluate`` itself, None where it is not installed."""
    if _alone.get() or PathFinder.find_spec(METRICS) is None:
        return None
    with _counting:
        standing = sys.modules.pop(METRICS, None)
        if METRICS in _hidden:
            sys.modules[METRICS] = _hidden[METRICS]
        try:
            return importlib.import_module(METRICS)
        finally:
            if standing is not None:
                if METRICS in sys.modules:
                    _hidden[METRICS] = sys.modules[METRICS]
                sys.modules[METRICS] = standing


def _datasets_module() -> ModuleType:
    from tasks.usercode.documents import Documents  # loads pyarrow: only while a file is loaded

    contents: dict[str, Any] = {
        "Dataset": Documents,
        "DatasetDict": dict,
        "concatenate_datasets": concatenate_datasets,
        "load_dataset": _refused("load_dataset"),
        "__getattr__": _refuse_name,
    }
    return _module(LIBRARY, contents)


def _module(name: str, contents: dict[str, Any]) -> ModuleType:
    module = ModuleType(name)
    # Without a spec, find_spec of the name raises ValueError while the stand-in is there.
    module.__spec__ = ModuleSpec(name, loader=None)
    vars(module).update(contents)
    return module


def concatenate_datasets(dsets: "Sequence[Documents]", **_: Any) -> "Documents":
    """The rows of all tables, one after the other."""
    from tasks.usercode.documents import Documents

    return Documents.from_list([row for docs in dsets for row in docs])


def _refused(name: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise ConfigError(
            f"datasets.{name} needs the library itself, the extra 'hub': pip install -e '.[hub]'"
        )

    return call


def _refuse_name(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _refused(name)
