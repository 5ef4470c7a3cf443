"""A night: many benchmarks on many models, then the comparison with the baseline.

``run_suite`` is the flow that the deployment ``nightly`` runs; ``python -m flows.suite`` is its command line.
The public names are loaded when first used, because Prefect reads its settings when it is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.suite.flow import run_suite

_HOMES = {
    "run_suite": "flows.suite.flow",
}

__all__ = ["run_suite"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'flows.suite' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
