"""Which evaluations a command line names: configs, lm-evaluation-harness benchmarks, or its sample logs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.config import EvalConfig
from flows.loading import DEFAULT_CONFIG, load_config, load_configs, load_selected, validate_configs
from metrics.errors import ConfigError


@dataclass(frozen=True)
class Wanted:
    """What a command line names."""

    configs: tuple[Path, ...] = ()
    overrides: tuple[str, ...] = ()
    tasks: str | None = None
    include_path: tuple[Path, ...] = ()
    from_samples: Path | None = None


def select(wanted: Wanted) -> tuple[EvalConfig, ...]:
    """The evaluations, user code imported and everything checked; raises NightjarError."""
    if wanted.tasks is not None:
        return _selected(wanted, strict=True)
    if not wanted.configs:
        return (load_config(None, wanted.overrides),)
    return tuple(config for path in wanted.configs for config in load_configs(path, wanted.overrides))


def validate(wanted: Wanted) -> tuple[dict[str, Any], int]:
    """Resolves and validates without opening a dataset or importing user code: a document, and the exit code.

    Every config has an entry of its own: one that is refused leaves the others their answer.
    """
    if wanted.tasks is not None:
        entries = [
            {"path": config.name, "status": "ok", "reason": None}
            for config in _selected(wanted, strict=False)
        ]
    else:
        entries = validate_configs(wanted.configs or (DEFAULT_CONFIG,), wanted.overrides)
    refused = sum(entry["status"] == "refused" for entry in entries)
    return {"configs": entries}, 2 if refused else 0


def _selected(wanted: Wanted, strict: bool) -> tuple[EvalConfig, ...]:
    if wanted.configs:
        raise ConfigError("--tasks and CONFIG name benchmarks both; give one of them (models go into --set)")
    if not wanted.include_path:
        raise ConfigError(
            "--tasks needs --include-path DIR: the folder with the YAML files of the benchmarks"
        )
    names = [name.strip() for name in (wanted.tasks or "").split(",") if name.strip()]
    configs, _ = load_selected(names, wanted.include_path, wanted.overrides, strict=strict)
    return configs
