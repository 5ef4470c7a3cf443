"""What makes a config's models beside what it says itself: flags of the command line, and folders of
checkpoints.

``--model``, ``--base-url``, ``--api``, ``--api-key-env``, ``--model-path`` and ``--serve`` become an
override like any ``--set``, so that everything after it knows only overrides.

``checkpoints:`` becomes a model for each folder of weights when a run begins: a config keeps the pattern,
so that a deployment finds the folders of the night it runs in.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from flows.config.errors import schema_problems
from flows.config.schema import EvalConfig
from flows.config.source import Location, override
from metrics.errors import ConfigError
from scorers.config import GradingModel
from tasks.comparison.trends import SWEEP
from tasks.models.addresses import flags_for
from tasks.models.config import ModelConfig, Prices
from tasks.models.providers.openai.config import EndpointConfig
from tasks.models.providers.provider import AddressedConfig
from tasks.serving.config import DEFAULT_PRESET
from tasks.serving.weights import lacking
from tasks.store.home import named_path

logger = logging.getLogger(__name__)
SERVED: Final = {"max_concurrency": 256}
"""Requests at a server of our own: it works on those together that wait together."""


@dataclass(frozen=True)
class ModelFlags:
    """The flags as they were given; ``names`` may be empty."""

    names: tuple[str, ...] = ()
    base_url: str | None = None
    api: str | None = None
    api_key_env: str | None = None
    paths: tuple[str, ...] = ()
    """Folders of weights, or patterns of them."""
    serve: str | None = None
    """The preset that serves them."""

    def __bool__(self) -> bool:
        """Whether any was given."""
        return bool(self.names or self.paths or self.serve or self._endpoint())

    def overrides(
        self, models: Sequence[ModelConfig], asked: Iterable[tuple[Location, GradingModel]] = ()
    ) -> tuple[str, ...]:
        """``models=[…]``: the named models instead of the config's ``models``; and where one of those that
        are left out is ``asked`` all the same (a judge, a simulated user), its entry in the place of its
        name.

        A name that the config has keeps its entry; another one is asked like the config's first endpoint.
        What the flags say of address, interface and key lies over both, and without ``--model`` over every
        endpoint of the config. Raises ConfigError.
        """
        if self.paths:
            return self._weights()
        if self.serve is not None:
            raise ConfigError("--serve belongs to weights: add --model-path DIR")
        known = {model.name: model for model in models}
        endpoints = [model for model in models if isinstance(model.config, AddressedConfig)]
        names = self.names or tuple(known)
        if not self.names and not endpoints:
            raise ConfigError(
                "--base-url, --api and --api-key-env belong to a model with an address: add --model NAME"
            )
        first = _written(endpoints[0].config) if endpoints else {}
        first.pop("model", None)
        entries = [
            self._entry(known[name]) if name in known else self._new(name, first)
            for name in dict.fromkeys(names)
        ]
        left_out = {name: model for name, model in known.items() if name not in names}
        return (override("models", entries), *_written_out(left_out, asked))

    def _weights(self) -> tuple[str, ...]:
        """The models of ``--model-path``: named like their folders, asked by completions as base models are,
        unless ``--api chat`` says otherwise."""
        if self.names or self.base_url is not None or self.api_key_env is not None:
            raise ConfigError(
                "--model-path serves the weights itself: leave --model, --base-url and --api-key-env out"
            )
        entries: list[dict[str, Any]] = []
        for path in self.paths:
            place = named_path(Path(), path)
            entry: dict[str, Any] = {"config": _checked({"api": self.api or "completions", **SERVED})}
            entry["serve"] = {"preset": self.serve or DEFAULT_PRESET}
            if any(sign in path for sign in "*?["):
                entry |= {"name": _fixed(path), "checkpoints": {"glob": str(place.absolute())}}
            elif place.exists():
                entry |= {"name": place.resolve().name, "path": str(place.resolve())}
            else:  # a hub's name, or nothing: who serves it says which
                entry |= {"name": path.partition("@")[0].rpartition("/")[2], "path": path}
            entries.append(entry)
        names = [entry["name"] for entry in entries]
        for entry in entries:
            if names.count(entry["name"]) > 1 and "path" in entry:
                entry["name"] = "-".join(Path(entry["path"]).parts[-2:])
        return (override("models", entries),)

    def _entry(self, model: ModelConfig) -> dict[str, Any]:
        entry = model.model_dump(mode="json", exclude_unset=True)
        if isinstance(model.config, AddressedConfig):
            entry["config"] = _checked({**_written(model.config), **self._endpoint()})
        elif self._endpoint() and self.names:
            raise ConfigError(
                f"--model {model.name}: the config has it as {model.type}, which takes no address; "
                "name it differently, or leave --base-url, --api and --api-key-env out"
            )
        return entry

    def _new(self, name: str, first: dict[str, Any]) -> dict[str, Any]:
        if self.base_url is None and (known := flags_for(name)) is not None:
            raise ConfigError(f"--model {name}: an address and a key are needed; write\n  {known}")
        # Another address has another key: that of the config's own endpoint is not sent there.
        kept = {key: value for key, value in first.items() if self.base_url is None or "api_key" not in key}
        return {"name": name, "config": _checked({**kept, **self._endpoint()})}

    def _endpoint(self) -> dict[str, str]:
        given = {"base_url": self.base_url, "api": self.api, "api_key_env": self.api_key_env}
        return {key: value for key, value in given.items() if value is not None}


def _written_out(
    left_out: Mapping[str, ModelConfig], asked: Iterable[tuple[Location, GradingModel]]
) -> Iterator[str]:
    """The models that are asked with entries of their own, where they stand among the models left out."""
    places: dict[Location, list[GradingModel]] = {}
    for place, one in asked:  # of a list the whole: one judge alone may stand there without brackets
        places.setdefault(place[:-1] if isinstance(place[-1], int) else place, []).append(one)
    for place, found in places.items():
        lost = [not one.entry and one.name in left_out for one in found]
        entries = [
            left_out[one.name].model_dump(mode="json", exclude_unset=True)
            if is_lost
            else {"name": one.name, **one.entry}
            for one, is_lost in zip(found, lost, strict=True)
        ]
        if any(lost):
            yield override(".".join(map(str, place)), entries if place[-1] == "judges" else entries[0])


def _fixed(pattern: str) -> str:
    """The last part of a pattern's path before the first that is open: ``runs/sft/step-*`` is of ``sft``."""
    parts = Path(pattern).absolute().parts
    open_at = next(n for n, part in enumerate(parts) if any(sign in part for sign in "*?["))
    return parts[open_at - 1].strip("/") or "model"


def _written(config: Any) -> dict[str, Any]:
    return dict(config.model_dump(mode="json", exclude_unset=True))


def _checked(endpoint: dict[str, Any]) -> dict[str, Any]:
    try:
        EndpointConfig.model_validate(endpoint)
    except ValidationError as error:
        (key, *_), said = schema_problems(error, EndpointConfig, endpoint)[0]
        raise ConfigError(f"--{str(key).replace('_', '-')}: {said}") from error
    return endpoint


NO_FLAGS: Final = ModelFlags()


_WILD: Final = re.compile(r"[*?\[]")
IsNew = Callable[[ModelConfig], bool]
"""Whether the model of a checkpoint has not been evaluated yet; raises ConfigError where that is gone."""


def with_checkpoints(config: EvalConfig, is_new: IsNew = lambda _: True) -> EvalConfig:
    """The config with a model for every checkpoint, in the order of their steps, in place of the models that
    name a pattern. Each has the price of its entry, unless it has one of its own.

    Raises ConfigError where a pattern matches nothing.
    """
    sweeps = [model for model in config.models if model.checkpoints is not None]
    models: list[ModelConfig] = []
    prices = dict(config.prices.model_extra or {})
    for model in config.models:
        if model.checkpoints is None:
            models.append(_placed(model, config.base_dir))
        else:
            named = model.model_copy(update={"metadata": {SWEEP: model.name, **model.metadata}})
            own = list(_checkpoints(named if len(sweeps) > 1 else model, config.base_dir, is_new))
            models += own
            if (price := config.prices.of(model.name)) is not None:
                prices = {**dict.fromkeys((one.name for one in own), price), **prices}
    if tuple(models) == config.models:
        return config
    names = [model.name for model in models]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two models are called '{twice}': give the entries of checkpoints other names")
    priced = Prices(currency=config.prices.currency, **prices)
    return config.model_copy(update={"models": tuple(models), "prices": priced})


def _placed(model: ModelConfig, base_dir: str) -> ModelConfig:
    """The model with the whole paths of its weights and its adapter, where they are on this machine."""
    named = {"path": model.path, "peft": model.peft}
    places = {key: (Path(base_dir) / path).absolute() for key, path in named.items() if path is not None}
    found = {key: str(place) for key, place in places.items() if place.exists() and str(place) != named[key]}
    return model.model_copy(update=found) if found else model


def _checkpoints(model: ModelConfig, base_dir: str, is_new: IsNew) -> Iterator[ModelConfig]:
    settings = model.checkpoints
    assert settings is not None
    found = list(_matches(settings.glob, Path(base_dir)))
    if not found and not settings.new_only:
        raise ConfigError(f"model '{model.name}': checkpoints: nothing matches {settings.glob} in {base_dir}")
    doubts = {place: lacking(place, Path(base_dir)) for place, _ in found}
    reasons = [said for said in doubts.values() if said is not None]
    if reasons and len(reasons) == len(found) and not settings.new_only:
        raise ConfigError(f"model '{model.name}': checkpoints: {'; '.join(reasons)}")
    for said in reasons:
        _tell_left_out(model.name, said)
    found = [(place, name) for place, name in found if doubts[place] is None]
    entries = [(place, name, dict(settings.metadata_of(place.as_posix(), name))) for place, name in found]
    for place, name, metadata in sorted(entries, key=lambda entry: (_step(entry[2]), entry[1])):
        named = {"name": f"{model.name}-{name.replace('/', '-')}", "path": str(place), "checkpoints": None}
        own = model.model_copy(update={**named, "metadata": {**model.metadata, **metadata}})
        try:
            if settings.new_only and not is_new(own):
                continue
        except (ConfigError, FileNotFoundError) as error:  # removed while it was read
            _tell_left_out(model.name, str(error))
            continue
        yield own


@lru_cache(maxsize=1024)
def _tell_left_out(model: str, reason: str) -> None:
    """Once: a watch looks every half minute."""
    logger.warning("model '%s': a checkpoint is left out: %s", model, reason)


def _matches(pattern: str, base_dir: Path) -> Iterator[tuple[Path, str]]:
    """The folders and files that match, and of each the part of its path that the pattern left open."""
    parts = named_path(Path(), pattern).parts
    fixed = next((n for n, part in enumerate(parts) if _WILD.search(part)), len(parts) - 1)
    root = base_dir.joinpath(*parts[:fixed]).absolute()
    if not root.is_dir():
        return
    for place in sorted(root.glob("/".join(parts[fixed:]))):
        if place.is_dir() or place.suffix in (".gguf", ".ggml"):
            yield place, place.relative_to(root).as_posix()


def _step(metadata: dict[str, Any]) -> float:
    step = metadata.get("step")
    return step if isinstance(step, int | float) else float("inf")
