"""What a config may hold, how it is read, and every refusal with its line.

``schema`` composes the schemas of all layers, ``load`` reads files into it, ``checks`` refuses what a schema
can't know, ``choose`` finds what a command line means. Everybody may enter; nothing here imports Prefect. The
public names are loaded when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.config.load import load_config, load_configs
    from flows.config.schema import EvalConfig, Phase, RunOptions

_HOMES = {
    "EvalConfig": "flows.config.schema",
    "Phase": "flows.config.schema",
    "RunOptions": "flows.config.schema",
    "load_config": "flows.config.load",
    "load_configs": "flows.config.load",
}

__all__ = ["EvalConfig", "Phase", "RunOptions", "load_config", "load_configs"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'flows.config' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
