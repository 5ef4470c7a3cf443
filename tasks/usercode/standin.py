"""``import datasets`` and ``import evaluate`` in a definition's Python file, installed or not.

While such a file loads, and while a function of it runs, a module of that name stands in: for ``datasets``,
where the library is not installed, with the tables of ``documents.py``; for ``evaluate`` always, since the
library itself would fetch every metric from a hub, with those of ``evaluate.py``. Afterwards they are gone,
so that nothing else takes them for the libraries.
"""

import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from metrics.errors import ConfigError

if TYPE_CHECKING:
    from tasks.usercode.documents import Documents

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
