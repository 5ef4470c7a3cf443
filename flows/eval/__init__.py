"""One evaluation: the command line ``python -m flows.eval`` and the flow ``evaluate``.

``flow.py`` is the DAG on one screen; the other modules say how its steps are submitted, started and
published. The public names are loaded when first used, because Prefect reads its settings when it is imported
and the command line has to make them first.
"""

from typing import TYPE_CHECKING

from flows import lazy_names

if TYPE_CHECKING:
    from flows.eval.flow import evaluate
    from flows.eval.publishing import Evaluation


__all__ = ["Evaluation", "evaluate"]

__getattr__ = lazy_names(
    __name__,
    {
        "Evaluation": "flows.eval.publishing",
        "evaluate": "flows.eval.flow",
    },
)
