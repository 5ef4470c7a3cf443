"""How ``checkpoints:`` becomes models: one for each folder of weights, when a run begins.

A config keeps the pattern, so that a deployment finds the folders of the night it runs in.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from flows.config.schema import EvalConfig
from metrics.errors import ConfigError
from tasks.comparison.trends import SWEEP
from tasks.models.config import ModelConfig
from tasks.serving.weights import weights_digest

_WILD: Final = re.compile(r"[*?\[]")
IsNew = Callable[[str], bool]
"""Whether the checkpoint with this digest has not been evaluated yet."""


def with_checkpoints(config: EvalConfig, is_new: IsNew = lambda _: True) -> EvalConfig:
    """The config with a model for every checkpoint, in the order of their steps, in place of the models that
    name a pattern.

    Raises ConfigError where a pattern matches nothing.
    """
    sweeps = [model for model in config.models if model.checkpoints is not None]
    models: list[ModelConfig] = []
    for model in config.models:
        if model.checkpoints is None:
            models.append(_placed(model, config.base_dir))
        else:
            named = model.model_copy(update={"metadata": {SWEEP: model.name, **model.metadata}})
            models += _checkpoints(named if len(sweeps) > 1 else model, config.base_dir, is_new)
    if tuple(models) == config.models:
        return config
    names = [model.name for model in models]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two models are called '{twice}': give the entries of checkpoints other names")
    return config.model_copy(update={"models": tuple(models)})


def _placed(model: ModelConfig, base_dir: str) -> ModelConfig:
    """The model with the whole path of its weights, where they are on this machine."""
    place = (Path(base_dir) / model.path).absolute() if model.path is not None else None
    if place is None or not place.exists() or str(place) == model.path:
        return model
    return model.model_copy(update={"path": str(place)})


def _checkpoints(model: ModelConfig, base_dir: str, is_new: IsNew) -> Iterator[ModelConfig]:
    settings = model.checkpoints
    assert settings is not None
    found = list(_matches(settings.glob, Path(base_dir)))
    if not found and not settings.new_only:
        raise ConfigError(f"model '{model.name}': checkpoints: nothing matches {settings.glob} in {base_dir}")
    entries = [(place, name, dict(settings.metadata_of(place.as_posix()))) for place, name in found]
    for place, name, metadata in sorted(entries, key=lambda entry: (_step(entry[2]), entry[1])):
        if settings.new_only and not is_new(weights_digest(place)):
            continue
        yield model.model_copy(
            update={
                "name": f"{model.name}-{name}",
                "path": str(place),
                "checkpoints": None,
                "metadata": {**model.metadata, **metadata},
            }
        )


def _matches(pattern: str, base_dir: Path) -> Iterator[tuple[Path, str]]:
    """The folders and files that match, and of each the part of its path that the pattern left open."""
    parts = Path(pattern).expanduser().parts
    fixed = next((n for n, part in enumerate(parts) if _WILD.search(part)), len(parts) - 1)
    root = base_dir.joinpath(*parts[:fixed]).absolute()
    if not root.is_dir():
        return
    for place in sorted(root.glob("/".join(parts[fixed:]))):
        if place.is_dir() or place.suffix in (".gguf", ".ggml"):
            yield place, "-".join(place.relative_to(root).parts)


def _step(metadata: dict[str, Any]) -> float:
    step = metadata.get("step")
    return step if isinstance(step, int | float) else float("inf")
