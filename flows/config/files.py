"""The files that a config names: one list, from which two rules follow.

A run never writes over what it reads: ``kept_outputs`` says which files of the output folder stay as they
are, and refuses the folder where any other is read. And a run sends what it reads to its endpoints:
``untrusted`` holds configs whose code would need ``--trust`` to the files below their own folder.

The list is derived: fields marked ``NamesFile`` of the config and of the models in it, and what the benchmark
says of itself. Raises ConfigError naming the key.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from flows.config.errors import Problem, problem_of
from flows.config.schema import EvalConfig
from flows.config.source import OVERRIDE, Location, YamlSource
from metrics.config import NamesFile, RunsProgram
from metrics.errors import ConfigError, NightjarError
from scorers.config import grading_models
from tasks.benchmarks.config import SimulatedUser
from tasks.models.config import ModelConfig
from tasks.models.providers.provider import provider_of
from tasks.models.registry import PROVIDERS
from tasks.store.home import named_path
from tasks.store.outputs import RESPONSES, written_over
from tasks.usercode.load import check_named, check_trusted


@dataclass(frozen=True)
class NamedFile:
    """A file that a config names, the key that names it, and the name as it is written."""

    location: Location
    name: str
    path: Path
    replayed: bool = False
    """Whether it holds recorded responses."""

    @property
    def key(self) -> str:
        """The key as messages write it."""
        return ".".join(map(str, self.location))


def files_of(config: EvalConfig) -> Iterator[NamedFile]:
    """Every file that a run of the config reads by a name in it, whether or not it is there."""
    base = Path(config.base_dir)
    if config.config_file is not None:
        yield NamedFile(("config_file",), config.config_file, base / config.config_file)
    recorded = {PROVIDERS[kind].schema for kind in PROVIDERS if not PROVIDERS[kind].asks}
    for model, at in ((config, ()), *_models_of_their_own(config)):
        for location, name, owner in _marked(model, at, NamesFile):
            if isinstance(name, str):
                yield NamedFile(location, name, named_path(base, name), owner in recorded)
    if config.harness is not None:
        from tasks.benchmarks.lm_eval import files_of_benchmark

        with suppress(NightjarError):  # what is wrong is said when the dataset is read
            for key, path in files_of_benchmark(config.harness, base):
                yield NamedFile(("harness", *key), str(path), path)


def _models_of_their_own(config: EvalConfig) -> Iterator[tuple[BaseModel, Location]]:
    """Models that are no entry of ``models``: those of scorers and of simulated users."""
    entries: list[tuple[Mapping[str, Any], Location]] = [
        ({"name": grader.name, **grader.entry}, ("scorer", grader.name))
        for grader in grading_models(config.scorer)
        if grader.entry
    ]
    if isinstance(config.turns, SimulatedUser) and not isinstance(config.turns.model, str):
        entries.append(({"name": "user", **config.turns.model}, ("turns", "model")))
    for entry, at in entries:
        with suppress(ValidationError):  # what is wrong is said when the model is asked
            yield ModelConfig.model_validate(entry), at


def _marked(value: Any, at: Location, mark: type) -> Iterator[tuple[Location, Any, type]]:
    """The places below ``value`` that have a mark, what stands there, and the class that it is a field of."""
    if isinstance(value, BaseModel):
        for name, info in type(value).model_fields.items():
            inner = getattr(value, name)
            if inner and any(isinstance(entry, mark) for entry in info.metadata):
                yield (*at, name), inner, type(value)
            else:
                yield from _marked(inner, (*at, name), mark)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _marked(inner, (*at, str(key)), mark)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _marked(inner, (*at, index), mark)


def kept_outputs(config: EvalConfig, output: Path) -> tuple[str, ...]:
    """Names of the output folder's files that stay as they are: its own recorded responses, where they are
    replayed.

    Raises ConfigError where the run would write over any other file that it reads.
    """
    kept = dict.fromkeys(
        name for file in files_of(config) if (name := _kept(config, file, output)) is not None
    )
    return tuple(kept)


def _kept(config: EvalConfig, file: NamedFile, output: Path) -> str | None:
    over = written_over(file.path, output, config.name)
    if over is None:
        return None
    if not file.replayed or over != output / RESPONSES:
        raise ConfigError(
            f"--output {output}: the run would write over {over.name}, which it reads "
            f"({file.key}: {file.name}); name another folder by --output"
        )
    base = Path(config.base_dir)
    asked = [model.name for model in config.models if provider_of(model, base).asks]
    if asked:
        raise ConfigError(
            f"--output {output}: the run reads its {RESPONSES} ({file.key}: {file.name}), so it can't "
            f"write the responses of {', '.join(asked)} there; name another folder by --output"
        )
    return over.name


def untrusted(
    config: EvalConfig, source: YamlSource, home: Path | None, given: bool = True
) -> Iterator[Problem]:
    """What a config may not name where its code must not run unasked: files outside its folder, and programs.

    ``home`` is the folder of the file that was read; the benchmark's own may be another. What ``--set`` put
    there is the user's own, unless it was not ``given`` by the user but by a suite.
    """
    base = Path(config.base_dir)
    checks = [(file.location, partial(check_named, file.path, name=file.name)) for file in files_of(config)]
    checks += [
        (location, partial(check_trusted, reference=_shown(value)))
        for model, at in ((config, ()), *_models_of_their_own(config))
        for location, value, _ in _marked(model, at, RunsProgram)
    ]
    for location, check in checks:
        if given and source.where(location).startswith(OVERRIDE):
            continue
        for folder in dict.fromkeys((home or base, base)):
            yield from problem_of(location, partial(check, folder))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else " ".join(map(str, value))
