"""One evaluation: the command line ``python -m flows.eval`` and the flow ``evaluate``.

``flow.py`` is the DAG on one screen; the other modules say how its steps are submitted, started and
published. The public names are loaded when first used, because Prefect reads its settings when it is imported
and the command line has to make them first.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.eval.flow import evaluate
    from flows.eval.result import Evaluation

_HOMES = {
    "Evaluation": "flows.eval.result",
    "evaluate": "flows.eval.flow",
}

__all__ = ["Evaluation", "evaluate"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'flows.eval' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
