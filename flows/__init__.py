"""The flows that people start, and their command lines: the top layer, which nothing below imports.

A package of a flow has a lazy face (``lazy_names``), because Prefect reads its settings when it is imported.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's ``__getattr__``: takes a name from its module of ``modules`` when it is first used."""

    def getattr_of_package(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    return getattr_of_package
