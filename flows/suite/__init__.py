"""A night: many benchmarks on many models, then the comparison with the baseline.

``run_suite`` is the flow that the deployment ``nightly`` runs; ``python -m flows.suite`` is its command line.
The public names are loaded when first used, because Prefect reads its settings when it is imported.
"""

from typing import TYPE_CHECKING

from flows import lazy_names

if TYPE_CHECKING:
    from flows.suite.flow import run_suite


__all__ = ["run_suite"]

__getattr__ = lazy_names(
    __name__,
    {
        "run_suite": "flows.suite.flow",
    },
)
