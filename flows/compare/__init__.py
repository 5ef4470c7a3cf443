"""One run compared with another: ``python -m flows.compare`` and the flow ``compare``.

``runs.py`` compares runs that are open already, shows the outcome and needs no Prefect; suites enter there.
The public names are loaded when first used.
"""

from typing import TYPE_CHECKING

from flows import lazy_names

if TYPE_CHECKING:
    from flows.compare.flow import compare
    from flows.compare.runs import compare_opened


__all__ = ["compare", "compare_opened"]

__getattr__ = lazy_names(
    __name__,
    {
        "compare": "flows.compare.flow",
        "compare_opened": "flows.compare.runs",
    },
)
