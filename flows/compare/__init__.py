"""Two runs held against each other: ``python -m flows.compare`` and the flow ``compare``.

``runs.py`` compares runs that are open already and needs no Prefect; suites enter there. The public names are
loaded when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.compare.flow import compare
    from flows.compare.runs import compare_opened

_HOMES = {
    "compare": "flows.compare.flow",
    "compare_opened": "flows.compare.runs",
}

__all__ = ["compare", "compare_opened"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'flows.compare' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
