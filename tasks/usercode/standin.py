"""``import datasets`` in a definition's Python file where the library is not installed.

Most files import it for an annotation, or for ``Dataset.from_list``. While such a file loads, a module of
that name stands in, with the tables of ``documents.py``; afterwards it is gone, so that nothing else takes it
for the library.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

from metrics.errors import ConfigError

if TYPE_CHECKING:
    from tasks.usercode.documents import Documents

LIBRARY = "datasets"
_counting = threading.Lock()
_users = 0  # loading files at this moment, in all threads: the last one takes the stand-in away


@cache
def library_installed() -> bool:
    """Whether the library itself is there, stand-in or not."""
    return PathFinder.find_spec(LIBRARY) is not None


@contextmanager
def datasets_stand_in() -> Iterator[None]:
    """Makes ``import datasets`` work inside the block; does nothing where the library is installed."""
    if library_installed():
        yield
        return
    _count(+1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    global _users
    with _counting:
        _users += change
        if _users == 0:
            sys.modules.pop(LIBRARY, None)
        else:
            sys.modules.setdefault(LIBRARY, _module())


def concatenate_datasets(dsets: "Sequence[Documents]", **_: Any) -> "Documents":
    """The rows of all tables, one after the other."""
    from tasks.usercode.documents import Documents

    return Documents.from_list([row for docs in dsets for row in docs])


def _module() -> ModuleType:
    from tasks.usercode.documents import Documents  # loads pyarrow: only while a file is loaded

    module = ModuleType(LIBRARY)
    # Without a spec, find_spec of the name raises ValueError while the stand-in is there.
    module.__spec__ = ModuleSpec(LIBRARY, loader=None)
    contents: dict[str, Any] = {
        "Dataset": Documents,
        "DatasetDict": dict,
        "concatenate_datasets": concatenate_datasets,
        "load_dataset": _refused("load_dataset"),
        "__getattr__": _refuse_name,
    }
    vars(module).update(contents)
    return module


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
