"""From a YAML file and ``--set`` overrides to a config that holds together, or an error that names file and
line.
"""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from flows.config.errors import Problem, refusal, schema_problems
from flows.config.schema import EvalConfig
from flows.config.two_phase import TwoPhaseSettings, is_two_phase, translate_two_phase
from flows.config.yaml import Location, YamlSource, origin_of, parse_override, put, read_yaml, with_overrides
from metrics.errors import ConfigError, NightjarError
from tasks.store.home import PROJECT

if TYPE_CHECKING:
    from tasks.benchmarks.lm_eval import Definition, SelectedBenchmarks
    from tasks.benchmarks.lm_eval.read.select import Group
    from tasks.benchmarks.lm_eval.read.yaml import Reader


DEFAULT_CONFIG: Final = PROJECT / "deployments" / "benchmarks" / "demo" / "gsm8k.yaml"
"""What runs without a config: the embedded benchmark on the embedded server."""

NO_MODELS: Final = (
    "'models' is missing: which models to evaluate, as in models: [{name: qwen, config: {base_url: …}}]"
)


def load_config(
    path: str | Path | None = None, overrides: Sequence[str] = (), *, strict: bool = True
) -> EvalConfig:
    """The evaluation that a YAML file describes, with each ``KEY=VALUE`` of ``overrides`` in place.

    Without a path the embedded default. A file with several benchmarks (a group of lm-evaluation-harness)
    is refused; ``load_configs`` takes it. With ``strict=False`` a config may lack models, and no user
    function is imported: enough for a plan without data. Raises ConfigError, one line for each thing that
    is wrong.
    """
    configs = load_configs(path, overrides, strict=strict)
    if len(configs) > 1:
        names = ", ".join(config.name for config in configs)
        raise ConfigError(f"{path} holds several benchmarks ({names}); expected one")
    return configs[0]


def load_configs(
    path: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    strict: bool = True,
    reader: "Reader | None" = None,
) -> tuple[EvalConfig, ...]:
    """As ``load_config``, for a file that may hold several benchmarks. ``reader`` remembers files of the
    harness.
    """
    file = Path(path) if path is not None else DEFAULT_CONFIG
    if is_harness_file(file):
        return tuple(_evaluation(source, file, strict) for source in read_harness(file, overrides, reader))
    source, _ = read_native(file, overrides)
    if "benchmark" in source.data:
        return tuple(_evaluation(merged, file, strict) for merged in with_harness(source, file.parent))
    return (_evaluation(source, file, strict),)


def read_native(path: Path, overrides: Sequence[str] = ()) -> tuple[YamlSource, TwoPhaseSettings | None]:
    """A config's native keys with the overrides in place; what the two-phase framework wrote is translated.

    Beside a translated one stands what it says about the run.
    """
    source = with_overrides(read_yaml(path), overrides, path.parent)
    return translate_two_phase(source, path.parent) if is_two_phase(source.data) else (source, None)


def validate_configs(paths: Sequence[str | Path], overrides: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Whether each file resolves and validates: ``{"path", "status": "ok" | "refused", "reason"}``, in order.

    No dataset is opened and no user function imported; what many files include is read once.
    """
    from tasks.benchmarks.lm_eval.read.yaml import Reader

    reader = Reader()
    entries: list[dict[str, Any]] = []
    for path in paths:
        try:
            load_configs(path, overrides, strict=False, reader=reader)
            entries.append({"path": str(path), "status": "ok", "reason": None})
        except NightjarError as error:
            entries.append({"path": str(path), "status": "refused", "reason": str(error)})
    return entries


def load_selected(
    names: Sequence[str], folders: Sequence[Path], overrides: Sequence[str] = (), *, strict: bool = True
) -> tuple[tuple[EvalConfig, ...], "SelectedBenchmarks"]:
    """The evaluations of ``--tasks`` in the folders of ``--include-path``, and the groups they are scored
    in.
    """
    from tasks.benchmarks.lm_eval import select

    selection = select(names, folders)
    sources = translated(selection, overrides, Path.cwd())
    return tuple(_evaluation(source, None, strict) for source in sources), selection


def _evaluation(source: YamlSource, file: Path | None, strict: bool) -> EvalConfig:
    config = _validated(source, file)
    if strict:
        from flows.config.checks import config_problems  # imports every metric and filter

        problems = config_problems(config) if config.models else [Problem((), NO_MODELS)]
        if problems:
            raise refusal(source, problems)
    return config


def _validated(source: YamlSource, file: Path | None) -> EvalConfig:
    own = EvalConfig.model_fields
    given: dict[str, Any] = {
        key: value for key, value in source.data.items() if value is not None or key not in own
    }
    defaults: Mapping[str, Any] = {}
    if file is not None:
        defaults = {"name": file.stem, "base_dir": str(file.resolve().parent), "config_file": file.name}
    try:
        return EvalConfig.model_validate({**defaults, **given})
    except ValidationError as error:
        raise refusal(source, schema_problems(error, EvalConfig, given)) from error


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


def read_harness(
    path: Path, overrides: Sequence[str], reader: "Reader | None" = None
) -> tuple[YamlSource, ...]:
    """The benchmarks that a harness YAML defines (a group: its members), as native keys with the overrides
    in place.

    Members of a group are looked for beside its file. A ``reader`` shared by many files reads none of them
    twice.
    """
    from tasks.benchmarks.lm_eval import DefinitionIndex, select_file

    index = DefinitionIndex([path.parent] if path.parent.is_dir() else [], reader)
    return translated(select_file(path, index), overrides, path.parent)


def groups_in(path: Path) -> Mapping[str, "Group"]:
    """The groups that a harness YAML scores its members in; none for any other file."""
    if not is_harness_file(path):
        return {}
    from tasks.benchmarks.lm_eval import DefinitionIndex, select_file

    index = DefinitionIndex()
    if path.parent.is_dir():
        index.add_folder(path.parent)
    return select_file(path, index).groups


def translated(
    selection: "SelectedBenchmarks", overrides: Sequence[str], base_dir: Path
) -> tuple[YamlSource, ...]:
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


def with_harness(source: YamlSource, base_dir: Path) -> tuple[YamlSource, ...]:
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
    return tuple(YamlSource(source.name, _laid_over(inner.data, own), source.origins) for inner in sources)


def _selected(settings: Mapping[str, Any], base_dir: Path, where: str) -> "SelectedBenchmarks":
    from tasks.benchmarks.lm_eval import DefinitionIndex, select, select_file

    name = settings["lm_eval"]
    folder = settings.get("include_path")
    if name.endswith((".yaml", ".yml")):
        around = base_dir / str(folder) if folder else (base_dir / name).parent
        return select_file(base_dir / name, DefinitionIndex([around]))
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


def _translated(definition: "Definition", changes: Sequence[tuple[str, Location, Any]]) -> YamlSource:
    from tasks.benchmarks.lm_eval import translate

    config = deepcopy(dict(definition.config))
    for origin, location, value in changes:
        put(config, location, value, origin)
    native = translate(replace(definition, config=config))
    return YamlSource(definition.path.name, {**native, "base_dir": str(definition.path.parent.resolve())})


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` wins key by key; sampling parameters win one by one, so that stop sequences stay."""
    merged = {**below, **above}
    sampling = (below.get("sample_params"), above.get("sample_params"))
    if all(isinstance(entry, Mapping) for entry in sampling):
        merged["sample_params"] = {**sampling[0], **sampling[1]}  # type: ignore[dict-item]
    return merged
