"""Which evaluations a command line names: configs, lm-evaluation-harness benchmarks, or its sample logs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.config.load import (
    DEFAULT_CONFIG,
    groups_in,
    is_harness_file,
    load_config,
    load_configs,
    load_selected,
    read_native,
    validate_configs,
)
from flows.config.schema import EvalConfig
from flows.config.two_phase import TwoPhaseSettings, notes_of
from metrics.errors import ConfigError, NightjarError
from tasks.store.home import home

if TYPE_CHECKING:
    from tasks.benchmarks.lm_eval.read.select import Group


@dataclass(frozen=True)
class CommandInputs:
    """What a command line names."""

    configs: tuple[Path, ...] = ()
    overrides: tuple[str, ...] = ()
    tasks: str | None = None
    include_path: tuple[Path, ...] = ()
    from_samples: Path | None = None

    @property
    def names(self) -> list[str]:
        """The benchmarks of ``--tasks``, patterns among them."""
        return [name.strip() for name in (self.tasks or "").split(",") if name.strip()]


@dataclass(frozen=True)
class ChosenConfigs:
    """The evaluations to run, and the groups that lm-evaluation-harness scores some of them in."""

    configs: tuple[EvalConfig, ...]
    groups: Mapping[str, "Group"] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    settings: tuple[TwoPhaseSettings | None, ...] = ()
    """What each config says about its run, where it is one of the two-phase framework."""


def select(wanted: CommandInputs) -> ChosenConfigs:
    """The evaluations, user code imported and everything checked; raises NightjarError."""
    if wanted.from_samples is not None:
        return ChosenConfigs(_rescored(wanted.from_samples, wanted.include_path))
    if wanted.tasks is not None:
        return _selected(wanted, wanted.names, strict=True)
    if not wanted.configs:
        return ChosenConfigs((load_config(None, wanted.overrides),))
    configs: list[EvalConfig] = []
    settings: list[TwoPhaseSettings | None] = []
    for path in wanted.configs:
        loaded = load_configs(path, wanted.overrides)
        configs += loaded
        about = None if is_harness_file(path) else read_native(path, wanted.overrides)[1]
        settings += [about] * len(loaded)
    return ChosenConfigs(
        tuple(configs),
        {name: group for path in wanted.configs for name, group in groups_in(path).items()},
        notes_of([entry for entry in settings if entry is not None]),
        tuple(settings),
    )


def validate(wanted: CommandInputs) -> tuple[dict[str, Any], int]:
    """Resolves and validates without opening a dataset or importing user code: a document, and the exit code.

    Every config has an entry of its own: one that is refused leaves the others their answer.
    """
    if wanted.tasks is None:
        entries = validate_configs(wanted.configs or (DEFAULT_CONFIG,), wanted.overrides)
    else:
        entries = [entry for name in wanted.names for entry in _validated(wanted, name)]
    refused = any(entry["status"] == "refused" for entry in entries)
    return {"configs": entries}, 2 if refused else 0


def _validated(wanted: CommandInputs, name: str) -> list[dict[str, Any]]:
    try:
        configs = _selected(wanted, [name], strict=False).configs
    except NightjarError as error:
        return [{"path": name, "status": "refused", "reason": str(error)}]
    return [{"path": config.name, "status": "ok", "reason": None} for config in configs]


def _selected(wanted: CommandInputs, names: Sequence[str], strict: bool) -> ChosenConfigs:
    if wanted.configs:
        raise ConfigError("--tasks and CONFIG name benchmarks both; give one of them (models go into --set)")
    if not wanted.include_path:
        raise ConfigError(
            "--tasks needs --include-path DIR: the folder with the YAML files of the benchmarks"
        )
    configs, selection = load_selected(names, wanted.include_path, wanted.overrides, strict=strict)
    return ChosenConfigs(configs, selection.groups, tuple(selection.warnings))


def _rescored(folder: Path, include_path: Sequence[Path]) -> tuple[EvalConfig, ...]:
    """Evaluations of the harness's own sample logs: its answers are replayed, no model is asked."""
    from tasks.benchmarks.lm_eval import known_definitions, rescored

    logs = rescored(folder, home() / "rescored", known_definitions(folder, include_path))
    if not logs:
        raise ConfigError(f"--from-samples {folder}: no samples_*.jsonl of lm-evaluation-harness below it")
    return tuple(EvalConfig.model_validate(config) for config in logs)
