"""The flows that people start, and their command lines: the top layer, which nothing below imports.

A package of a flow has a lazy face (``lazy_names``), because Prefect reads its settings when it is imported.
"""

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

# Arrow reads it when it is imported. Its own pool keeps the memory of freed columns, a quarter of what an
# evaluation of 100,000 items holds at its highest; the system's gives it back.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
# Prefect reads it when it is imported, which a command may do for a name of one of its modules: on a terminal
# it would tell its makers that it is used here.
os.environ.setdefault("DO_NOT_TRACK", "1")


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's ``__getattr__``: takes a name from its module of ``modules`` when it is first used."""

    def getattr_of_package(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import_module("flows.server").quiet_in_notebook()  # before Prefect is imported
        return getattr(import_module(modules[name]), name)

    return getattr_of_package
