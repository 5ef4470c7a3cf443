"""What a config may hold, how it is read, and every refusal with its line.

``schema`` composes the schemas of all layers, ``load`` reads what command lines and suites name into it, and
``checks`` refuses what a schema can't know. Everybody may enter; nothing here imports Prefect. The public
names are loaded when first used.
"""

from typing import TYPE_CHECKING

from flows import lazy_names

if TYPE_CHECKING:
    from flows.config.load import load_config, load_configs
    from flows.config.schema import EvalConfig, Phase, RunOptions


__all__ = ["EvalConfig", "Phase", "RunOptions", "load_config", "load_configs"]

__getattr__ = lazy_names(
    __name__,
    {
        "EvalConfig": "flows.config.schema",
        "Phase": "flows.config.schema",
        "RunOptions": "flows.config.schema",
        "load_config": "flows.config.load",
        "load_configs": "flows.config.load",
    },
)
