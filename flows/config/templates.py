"""Template variables checked against the items: a name that no item has is refused with its line."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from flows.config.errors import Problem, refusal, value_at
from flows.config.load import read_native
from flows.config.schema import EvalConfig
from flows.config.yaml import OVERRIDE, Location, YamlSource
from metrics.errors import NightjarError, nearest
from tasks.benchmarks.config import template_texts
from tasks.datasets import open_dataset
from tasks.datasets.item import Item


def check_templates(config: EvalConfig, first_item: Item, overrides: Sequence[str] = ()) -> None:
    """Raises ConfigError, with file and line, for template variables that no item of the dataset has.

    The other items are read only if the first one lacks a name: rows may differ in their fields.
    ``overrides`` are those that the config was loaded with, so that a template given by ``--set`` is named
    as such.
    """
    if config.harness is not None or config.dataset is None:
        return  # a harness YAML's variables are checked where it is translated
    from tasks.benchmarks.native.templates import missing_names, scope

    names = set(scope(first_item))
    lacking = {at: missing for at, text in _texts(config) if (missing := missing_names(text, names))}
    if lacking:
        names.update(*(item.data for item in open_dataset(config.dataset, config.base_dir)))
        problems = [
            Problem(at, _message(name, names))
            for at, missing in lacking.items()
            for name in missing
            if name not in names
        ]
        if problems:
            raise refusal(_told_apart(written(config, overrides), config), problems)


def written(config: EvalConfig, overrides: Sequence[str] = ()) -> YamlSource:
    """The file that a config was read from, to name lines of it; one without lines if it is no longer
    there.
    """
    folder = Path(config.base_dir)
    if config.config_file is not None:
        try:
            return read_native(folder / config.config_file, overrides)[0]
        except NightjarError:
            pass  # moved or edited since: the message then names the key alone
    return YamlSource(config.config_file or f"config '{config.name}'", {})


def _told_apart(source: YamlSource, config: EvalConfig) -> YamlSource:
    """The source with templates that are not those of the file said to come from ``--set``."""
    changed = {
        at: f"{OVERRIDE} {'.'.join(map(str, at))}"
        for at, text in template_texts(config)
        if at in source.origins and value_at(source.data, at) != text
    }
    return YamlSource(source.name, source.data, {**source.origins, **changed})


def _texts(config: EvalConfig) -> Iterator[tuple[Location, str]]:
    from tasks.benchmarks.native.templates import template_source

    yield from template_texts(config)
    for index, prompt in enumerate(config.prompt_templates or ()):
        if prompt.path is not None:
            yield ("prompt_templates", index, "path"), template_source(prompt, config.base_dir)


def _message(name: str, names: Iterable[str]) -> str:
    return (
        f"template variable '{name}' is in no item{nearest(name, names)} (known: {', '.join(sorted(names))})"
    )
