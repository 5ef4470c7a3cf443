"""How a file, a benchmark's name or a sample log becomes a config that holds together, or a refusal.

A native file is read as it is; a lm-evaluation-harness file is recognised by its keys and translated, and a
native config may lie over it. ``load_config`` serves programs, ``load_configs`` suites, ``choose_configs``
and ``validation_document`` the command line. Raises ConfigError with file and line for all that is wrong.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from flows.config.errors import Problem, as_written, misplaced_functions, misread, refusal, schema_problems
from flows.config.files import untrusted
from flows.config.inspected import with_inspect
from flows.config.models import NO_FLAGS, ModelFlags
from flows.config.schema import EvalConfig
from flows.config.source import (
    OVERRIDE,
    Location,
    YamlSource,
    origin_of,
    parse_override,
    put,
    refuse_dropped,
    with_overrides,
)
from flows.config.two_phase import TwoPhaseSettings, notes_of, read_native
from metrics.errors import ConfigError, NightjarError
from tasks.store.home import PROJECT, home
from tasks.usercode.load import check_named, check_trusted, may_run_code

if TYPE_CHECKING:
    from tasks.benchmarks.lm_eval import Definition, SelectedBenchmarks
    from tasks.benchmarks.lm_eval.select import Group
    from tasks.benchmarks.lm_eval.trial import Trials
    from tasks.benchmarks.lm_eval.yaml import Reader


DEFAULT_CONFIG: Final = PROJECT / "deployments" / "benchmarks" / "demo" / "gsm8k.yaml"
"""What runs without a config: the embedded benchmark on the embedded server."""
NO_MODELS: Final = (
    "'models' is missing: which models to evaluate, as in models: [{name: qwen, config: {base_url: …}}]"
)
_HARNESS_KEY = re.compile(
    r"""^["']?(?:task|task_list|group|include|dataset_path|doc_to_text)["']?\s*:""", re.MULTILINE
)


@dataclass(frozen=True)
class CommandInputs:
    """What a command line names."""

    configs: tuple[Path, ...] = ()
    overrides: tuple[str, ...] = ()
    tasks: str | None = None
    include_path: tuple[Path, ...] = ()
    from_samples: Path | None = None
    recorded: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    """Files of other programs' evaluations, by the program."""
    models: ModelFlags = NO_FLAGS
    force: bool = False
    """Whether a benchmark that is refused leaves the others of a list to run."""

    @property
    def names(self) -> list[str]:
        """The benchmarks of ``--tasks``, patterns among them."""
        return [name.strip() for name in (self.tasks or "").split(",") if name.strip()]


@dataclass(frozen=True)
class Refused:
    """A benchmark of a list that can't run, and why."""

    name: str
    reason: NightjarError


@contextmanager
def left_out(name: str, refused: list[Refused] | None) -> Iterator[None]:
    """A block whose NightjarError leaves one benchmark of a list out; None: it is raised."""
    try:
        yield
    except NightjarError as error:
        if refused is None:
            raise
        refused.append(Refused(name, error))


def raise_if_alone(found: Sequence[object], refused: Sequence[Refused]) -> None:
    """Raises the first reason where nothing is left to run."""
    if refused and not found:
        raise refused[0].reason


@dataclass(frozen=True)
class ChosenConfigs:
    """The evaluations to run, and the groups that lm-evaluation-harness scores some of them in."""

    configs: tuple[EvalConfig, ...]
    groups: Mapping[str, "Group"] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    settings: tuple[TwoPhaseSettings | None, ...] = ()
    """What each config says about its run, where it is one of the two-phase framework."""
    refused: tuple[Refused, ...] = ()
    """What is left out under ``force``."""


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
    suite: str | Path | None = None,
) -> tuple[EvalConfig, ...]:
    """As ``load_config``, for a file that may hold several benchmarks: a group of the harness's, whose
    members are looked for beside it. ``reader`` remembers files of the harness; ``suite`` is the folder of
    the suite that names file and overrides, None where the user does.
    """
    return _held(Path(path) if path is not None else DEFAULT_CONFIG, overrides, strict, reader, suite)[0]


def _held(
    file: Path,
    overrides: Sequence[str],
    strict: bool = True,
    reader: "Reader | None" = None,
    suite: str | Path | None = None,
) -> "tuple[tuple[EvalConfig, ...], Mapping[str, Group], TwoPhaseSettings | None]":
    """The evaluations of a file, the groups that the harness scores them in, and what a file of the
    two-phase framework says about their run."""
    if suite is not None:
        check_named(file, Path(suite), file.name)
        if overrides and may_run_code(file.parent):
            check_trusted(
                Path(suite), f"set of {file.name}"
            )  # it may name code that the config's folder runs
    groups: Mapping[str, Group] = {}
    settings = None
    if is_harness_file(file):
        from tasks.benchmarks.lm_eval import DefinitionIndex, select_file

        found = select_file(file, DefinitionIndex([file.parent], reader))
        groups, sources = found.groups, translated(found.benchmarks.values(), overrides, file.parent)
    else:
        source, settings = read_native(file, overrides)
        if "benchmarks" in source.data and "dataset" not in source.data:
            raise ConfigError(
                f"{file.name}: holds a suite, not one benchmark; run it: python -m flows.suite {file}"
            )
        sources = with_harness(source, file.parent) if "benchmark" in source.data else (source,)
        if source.data.get("inspect") is not None:
            sources = (with_inspect(source, file.parent),)
        for merged in sources:
            _check_place(merged, file)
    return tuple(_evaluation(source, file, strict, suite is None) for source in sources), groups, settings


def _check_place(source: YamlSource, file: Path) -> None:
    """Refuses a file whose code must not run unasked, and that names another folder for it to be of."""
    folder = source.data.get("base_dir")
    if folder is None or source.where(("base_dir",)).startswith(OVERRIDE):
        return
    if Path(str(folder)).absolute().resolve() != file.resolve().parent:
        check_trusted(file.parent, f"{file.name}, which is about {folder},")


def _check_inputs(inputs: CommandInputs) -> None:
    """Raises ConfigError for what would be dropped beside the rest."""
    files = "--from-samples" if inputs.from_samples is not None else ""
    files = next((f"--from-{program}" for program, paths in inputs.recorded.items() if paths), files)
    if inputs.tasks is not None and not inputs.names:
        raise ConfigError(f"--tasks {inputs.tasks} names no benchmark; give NAME,… or leave it out")
    refuse_dropped(inputs.overrides)
    if files and inputs.overrides:
        raise ConfigError(f"{files} takes all from the files; leave --set out")
    if inputs.from_samples is not None and inputs.configs:
        raise ConfigError("--from-samples takes all from the files; leave CONFIG out")
    if inputs.include_path and inputs.tasks is None and inputs.from_samples is None:
        raise ConfigError("--include-path needs --tasks or --from-samples: add one, or leave it out")


def choose_configs(inputs: CommandInputs) -> ChosenConfigs:
    """The evaluations, user code imported and everything checked; raises NightjarError."""
    _check_inputs(inputs)
    if inputs.from_samples is not None:
        if inputs.models:
            raise ConfigError("--from-samples takes the answers of the logs; leave --model out")
        return ChosenConfigs(_rescored(inputs.from_samples, inputs.include_path))
    if any(inputs.recorded.values()):
        return _imported(inputs)
    if inputs.tasks is not None:
        return _chosen_by_name(inputs, inputs.names, strict=True)
    if not inputs.configs:
        return ChosenConfigs((load_config(None, _overrides(inputs, None)),))
    configs: list[EvalConfig] = []
    settings: list[TwoPhaseSettings | None] = []
    groups: dict[str, Group] = {}
    refused: list[Refused] = []
    for path in inputs.configs:
        with left_out(str(path), refused if inputs.force else None):
            loaded, scored, about = _held(path, _overrides(inputs, path))
            groups |= scored
            configs += loaded
            settings += [about] * len(loaded)
    raise_if_alone(configs, refused)
    return ChosenConfigs(
        tuple(configs),
        groups,
        (*notes_of([entry for entry in settings if entry is not None]), *_notes_of_tasks(configs)),
        tuple(settings),
        tuple(refused),
    )


def _overrides(inputs: CommandInputs, path: Path | None) -> tuple[str, ...]:
    """The overrides of one file: the flags' models, which depend on those that the file has, and before what
    ``--set`` changes of them."""
    if not inputs.models:
        return inputs.overrides
    from flows.config.checks import asked_models

    config = next(iter(load_configs(path, strict=False)), None)
    found = () if config is None else ((place, one) for place, _, one in asked_models(config))
    models = config.models if config is not None else ()
    return (*inputs.models.overrides(models, found), *inputs.overrides)


def validation_document(inputs: CommandInputs) -> tuple[dict[str, Any], int]:
    """Resolves and validates without opening a dataset: a document, and the exit code.

    Functions of lm-evaluation-harness benchmarks are imported, and run on rows made for them; where no row
    could be made that they run on, ``warnings`` says so. Every config has an entry of its own: one that is
    refused leaves the others their answer.
    """
    from tasks.benchmarks.lm_eval.trial import Trials

    _check_inputs(inputs)
    with Trials() as trials:
        if inputs.tasks is not None:
            entries = [entry for name in inputs.names for entry in _validation_of(inputs, name, trials)]
        else:
            paths = inputs.configs or (DEFAULT_CONFIG,)
            if inputs.models:
                entries = [_validation_with_flags(inputs, path, trials) for path in paths]
            else:
                entries = validate_configs(paths, inputs.overrides, trials)
    refused = any(entry["status"] == "refused" for entry in entries)
    return {"configs": entries}, 2 if refused else 0


def _validation_with_flags(inputs: CommandInputs, path: Path, trials: "Trials") -> dict[str, Any]:
    try:
        overrides = _overrides(inputs, path)
    except NightjarError as error:
        return {"path": str(path), "status": "refused", "reason": str(error)}
    return validate_configs([path], overrides, trials)[0]


def _validation_of(inputs: CommandInputs, name: str, trials: "Trials") -> list[dict[str, Any]]:
    try:
        configs = _chosen_by_name(inputs, [name], strict=False).configs
    except NightjarError as error:
        return [_refused(name, error)]
    return [_tried(config.name, (config,), trials) for config in configs]


def _refused(name: str, error: NightjarError) -> dict[str, Any]:
    return {"path": name, "status": "refused", "reason": str(error), "warnings": []}


def _tried(name: str, configs: Sequence[EvalConfig], trials: "Trials") -> dict[str, Any]:
    """The entry of configs that resolve, after their functions were imported and run on made rows."""
    warnings = []
    for config in configs:
        if config.harness is None or "samples" in config.harness:
            continue
        try:
            trial = trials.try_definition(config.harness, config.base_dir, config.scoring())
        except NightjarError as error:
            return _refused(name, error)
        if not trial.ran:
            warnings.append(f"{config.name}: not run on made rows: {trial.reason}")
    return {"path": name, "status": "ok", "reason": None, "warnings": warnings}


def _chosen_by_name(inputs: CommandInputs, names: Sequence[str], strict: bool) -> ChosenConfigs:
    if inputs.configs:
        raise ConfigError("--tasks and CONFIG both name benchmarks; give one of them (models go into --set)")
    if not inputs.include_path:
        raise ConfigError(
            "--tasks needs --include-path DIR: the folder with the YAML files of the benchmarks"
        )
    flags = inputs.models.overrides(()) if inputs.models else ()
    refused: list[Refused] = []
    configs, selection = load_selected(
        names, inputs.include_path, (*flags, *inputs.overrides), strict=strict,
        refused=refused if inputs.force else None,
    )  # fmt: skip
    return ChosenConfigs(configs, selection.groups, tuple(selection.warnings), refused=tuple(refused))


def _rescored(folder: Path, include_path: Sequence[Path]) -> tuple[EvalConfig, ...]:
    """Evaluations of the harness's own sample logs: its answers are replayed, no model is asked."""
    from tasks.benchmarks.lm_eval import known_definitions, rescoring_configs

    logs = rescoring_configs(folder, home() / "rescored", known_definitions(folder, include_path))
    if not logs:
        raise ConfigError(f"--from-samples {folder}: no samples_*.jsonl of lm-evaluation-harness below it")
    return tuple(_foreign("--from-samples", config) for config in logs)


def _foreign(flag: str, config: Mapping[str, Any]) -> EvalConfig:
    """The evaluation that another program's files are; raises ConfigError where its names can't be ours."""
    try:
        return EvalConfig.model_validate(config)
    except ValidationError as error:
        said = "; ".join(
            f"{'.'.join(map(str, location))}: {message}"
            for location, message in schema_problems(error, EvalConfig, config)
        )
        raise ConfigError(f"{flag}: benchmark '{config['name']}': {said}") from error


def _imported(inputs: CommandInputs) -> ChosenConfigs:
    """Evaluations of other programs: answers and scores are theirs, and nothing is asked."""
    from tasks.benchmarks.recorded import recorded_configs

    named = {program: paths for program, paths in inputs.recorded.items() if paths}
    if inputs.models or inputs.configs or inputs.tasks is not None or len(named) > 1:
        flags = " and ".join(f"--from-{program}" for program in named)
        raise ConfigError(
            f"{flags} takes all from the files; leave CONFIG, --tasks and --model out, and name one program"
        )
    ((program, paths),) = named.items()
    configs, notes = recorded_configs(program, paths, home() / "imported")
    found = tuple(_foreign(f"--from-{program}", one) for one in configs)
    return ChosenConfigs(found, warnings=tuple(notes))


def _notes_of_tasks(configs: Sequence[EvalConfig]) -> list[str]:
    """What is to be told of tasks of Inspect."""
    return [note for config in configs if config.inspected for note in config.inspected["notes"]]


def load_selected(
    names: Sequence[str],
    folders: Sequence[Path],
    overrides: "Sequence[str] | Callable[[Definition], Sequence[str]]" = (),
    *,
    strict: bool = True,
    refused: list[Refused] | None = None,
) -> tuple[tuple[EvalConfig, ...], "SelectedBenchmarks"]:
    """The evaluations of ``--tasks`` in the folders of ``--include-path``, and the groups they are scored
    in.

    ``overrides`` are the same for all, or made for each definition. What can't run is put into ``refused``
    where there is such a list.
    """
    from tasks.benchmarks.lm_eval import build_index, select_from

    index = build_index(folders)
    known: list[str] = []
    for name in names:
        with left_out(name, refused):
            index.matching([name])
            known.append(name)
    raise_if_alone(known, refused or ())
    selection = select_from(index, known)
    configs: list[EvalConfig] = []
    for definition in selection.benchmarks.values():
        with left_out(definition.name, refused):
            own = overrides(definition) if callable(overrides) else overrides
            (source,) = translated((definition,), own, Path.cwd())
            configs.append(_evaluation(source, None, strict))
    raise_if_alone(configs, refused or ())
    return tuple(configs), selection


def validate_configs(
    paths: Sequence[str | Path], overrides: Sequence[str] = (), trials: "Trials | None" = None
) -> list[dict[str, Any]]:
    """Whether each file resolves and validates: ``{"path", "status": "ok" | "refused", "reason",
    "warnings"}``, in order.

    No dataset is opened; what many files include is read once. Functions are imported and run in a process
    of their own: that of ``trials``, else a new one.
    """
    from tasks.benchmarks.lm_eval.trial import Trials
    from tasks.benchmarks.lm_eval.yaml import Reader

    if trials is None:
        with Trials() as own:
            return validate_configs(paths, overrides, own)
    reader = Reader()
    entries: list[dict[str, Any]] = []
    for path in paths:
        try:
            loaded = load_configs(path, overrides, strict=False, reader=reader)
            entries.append(_tried(str(path), loaded, trials))
        except NightjarError as error:
            entries.append(_refused(str(path), error))
    return entries


def _evaluation(source: YamlSource, file: Path | None, strict: bool, given: bool = True) -> EvalConfig:
    """The config, checked; ``given``: its overrides are the user's own."""
    config = _validated(source, file)
    home = file.resolve().parent if file is not None else None
    if refused := list(untrusted(config, source, home, given)):
        raise refusal(source, refused)
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
    given = as_written(EvalConfig, source, given)
    defaults: Mapping[str, Any] = {}
    if file is not None:
        defaults = {"name": file.stem, "base_dir": str(file.resolve().parent), "config_file": file.name}
    try:
        config = EvalConfig.model_validate({**defaults, **given})
    except ValidationError as error:
        raise refusal(source, schema_problems(error, EvalConfig, given)) from error
    problems = [*misread(config, given), *misplaced_functions(EvalConfig, source)]
    if problems:
        raise refusal(source, problems)
    return config


def is_harness_file(path: Path) -> bool:
    """Whether a YAML file is the harness's: its top level has ``task:``, or another key that only the
    harness has.
    """
    try:
        return _HARNESS_KEY.search(path.read_text(encoding="utf-8", errors="replace")) is not None
    except OSError:
        return False  # reading it as a config says what is wrong with it


def translated(
    definitions: "Iterable[Definition]", overrides: Sequence[str], base_dir: Path
) -> tuple[YamlSource, ...]:
    """Benchmarks of the harness as native keys; raises ConfigError naming the file and the key, or the
    ``--set``.

    An override of a key of the harness is put into its definition, any other one into the native config.
    """
    from tasks.benchmarks.lm_eval.yaml import TASK_KEYS

    parsed = [(text, *parse_override(text, base_dir)) for text in overrides]
    inner = [
        (origin_of(text), location, value) for text, location, value in parsed if location[0] in TASK_KEYS
    ]
    outer = [text for text, location, _ in parsed if location[0] not in TASK_KEYS]
    sources = (_translated(definition, inner) for definition in definitions)
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
    selection = _benchmarks_named(settings, base_dir, where)
    changed = [
        (f"{where}.{key}", (key,), value)
        for key, value in settings.items()
        if key not in ("lm_eval", "include_path")
    ]
    sources = [_translated(definition, changed) for definition in selection.benchmarks.values()]
    return tuple(YamlSource(source.name, _over(inner.data, own), source.origins) for inner in sources)


def _benchmarks_named(settings: Mapping[str, Any], base_dir: Path, where: str) -> "SelectedBenchmarks":
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
    given = {("harness", "config", *location): origin for origin, location, _ in changes}
    data = {**native, "base_dir": str(definition.path.parent.resolve())}
    return YamlSource(
        definition.path.name, data, {at: by for at, by in given.items() if by.startswith(OVERRIDE)}
    )


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` wins key by key; sampling parameters win one by one, so that stop sequences stay."""
    merged = {**below, **above}
    sampling = (below.get("sample_params"), above.get("sample_params"))
    if all(isinstance(entry, Mapping) for entry in sampling):
        merged["sample_params"] = {**sampling[0], **sampling[1]}  # type: ignore[dict-item]
    return merged
