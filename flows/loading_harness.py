"""Benchmarks of lm-evaluation-harness among the configs: recognised, translated, and laid under native
keys.
"""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.overrides import origin_of, parse_override, put, with_overrides
from flows.yaml_source import Location, Source
from metrics.errors import ConfigError

if TYPE_CHECKING:
    from tasks.benchmarks.lm_eval import Definition, Selection
    from tasks.benchmarks.lm_eval.read.select import Group
    from tasks.benchmarks.lm_eval.read.yaml import Reader

_HARNESS_KEY = re.compile(
    r"""^["']?(?:task|task_list|group|include|dataset_path|doc_to_text)["']?\s*:""", re.MULTILINE
)


def is_harness_file(path: Path) -> bool:
    """Whether a YAML file is the harness's: its top level has ``task:``, or another key that only the
    harness has.
    """
    try:
        return _HARNESS_KEY.search(path.read_text(encoding="utf-8", errors="replace")) is not None
    except OSError:
        return False  # reading it as a config says what is wrong with it


def read_harness(path: Path, overrides: Sequence[str], reader: "Reader | None" = None) -> tuple[Source, ...]:
    """The benchmarks that a harness YAML defines (a group: its members), as native keys with the overrides
    in place.

    Members of a group are looked for beside its file. A ``reader`` shared by many files reads none of them
    twice.
    """
    from tasks.benchmarks.lm_eval import Index, select_file

    index = Index([path.parent] if path.parent.is_dir() else [], reader)
    return translated(select_file(path, index), overrides, path.parent)


def groups_in(path: Path) -> Mapping[str, "Group"]:
    """The groups that a harness YAML scores its members in; none for any other file."""
    if not is_harness_file(path):
        return {}
    from tasks.benchmarks.lm_eval import Index, select_file

    index = Index()
    if path.parent.is_dir():
        index.add_folder(path.parent)
    return select_file(path, index).groups


def translated(selection: "Selection", overrides: Sequence[str], base_dir: Path) -> tuple[Source, ...]:
    """The benchmarks of a selection as native keys; raises ConfigError naming the file and the key, or the
    ``--set``.

    An override of a key of the harness is put into its definition, any other one into the native config.
    """
    from tasks.benchmarks.lm_eval.read.schema import TASK_KEYS

    parsed = [(text, *parse_override(text, base_dir)) for text in overrides]
    inner = [
        (origin_of(text), location, value) for text, location, value in parsed if location[0] in TASK_KEYS
    ]
    outer = [text for text, location, _ in parsed if location[0] not in TASK_KEYS]
    sources = (_translated(definition, inner) for definition in selection.benchmarks.values())
    return tuple(with_overrides(source, outer, base_dir) for source in sources)


def with_harness(source: Source, base_dir: Path) -> tuple[Source, ...]:
    """A native config with ``benchmark: {lm_eval: NAME}``: its own keys over those of the translated
    benchmark.

    NAME is a YAML file, or a name looked up in ``include_path`` or else in an installed
    lm-evaluation-harness; other keys beside them are keys of the harness (``num_fewshot: 5``).
    """
    own = {key: value for key, value in source.data.items() if key != "benchmark"}
    settings = source.data["benchmark"]
    where = f"{source.where(('benchmark',))}: benchmark"
    if not isinstance(settings, Mapping) or not isinstance(settings.get("lm_eval"), str):
        raise ConfigError(f"{where}: expected a mapping such as {{lm_eval: gsm8k}}, got {settings!r}")
    selection = _selected(settings, base_dir, where)
    changed = [
        (f"{where}.{key}", (key,), value)
        for key, value in settings.items()
        if key not in ("lm_eval", "include_path")
    ]
    sources = [_translated(definition, changed) for definition in selection.benchmarks.values()]
    return tuple(Source(source.name, _laid_over(inner.data, own), source.origins) for inner in sources)


def _selected(settings: Mapping[str, Any], base_dir: Path, where: str) -> "Selection":
    from tasks.benchmarks.lm_eval import Index, select, select_file

    name = settings["lm_eval"]
    folder = settings.get("include_path")
    if name.endswith((".yaml", ".yml")):
        around = base_dir / str(folder) if folder else (base_dir / name).parent
        return select_file(base_dir / name, Index([around]))
    folders = [base_dir / str(folder)] if folder else _installed()
    if not folders:
        raise ConfigError(
            f"{where}: '{name}' is looked up in include_path: FOLDER, or in lm-evaluation-harness, which "
            "is not installed"
        )
    try:
        return select([name], folders)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _installed() -> list[Path]:
    from importlib.util import find_spec

    spec = find_spec("lm_eval")
    return (
        [Path(place) / "tasks" for place in (spec.submodule_search_locations or ())]
        if spec is not None
        else []
    )


def _translated(definition: "Definition", changes: Sequence[tuple[str, Location, Any]]) -> Source:
    from tasks.benchmarks.lm_eval import translate

    config = deepcopy(dict(definition.config))
    for origin, location, value in changes:
        put(config, location, value, origin)
    native = translate(replace(definition, config=config))
    return Source(definition.path.name, {**native, "base_dir": str(definition.path.parent.resolve())})


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` wins key by key; sampling parameters win one by one, so that stop sequences stay."""
    merged = {**below, **above}
    sampling = (below.get("sample_params"), above.get("sample_params"))
    if all(isinstance(entry, Mapping) for entry in sampling):
        merged["sample_params"] = {**sampling[0], **sampling[1]}  # type: ignore[dict-item]
    return merged
