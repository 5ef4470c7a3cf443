"""From a YAML file and ``--set`` overrides to a config that holds together, or an error that names file and
line.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from flows.config import EvalConfig
from flows.loading_harness import is_harness_file, read_harness, translated, with_harness
from flows.overrides import with_overrides
from flows.schema_errors import Problem, refusal, schema_problems
from flows.yaml_source import Source, read_yaml
from metrics.errors import ConfigError, NightjarError

if TYPE_CHECKING:
    from tasks.benchmarks.lm_eval import Selection
    from tasks.benchmarks.lm_eval.read.yaml import Reader

DEFAULT_CONFIG: Final = (
    Path(__file__).resolve().parent.parent / "deployments" / "benchmarks" / "demo" / "gsm8k.yaml"
)
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
    source = with_overrides(read_yaml(file), overrides, file.parent)
    if "benchmark" in source.data:
        return tuple(_evaluation(merged, file, strict) for merged in with_harness(source, file.parent))
    return (_evaluation(source, file, strict),)


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
) -> tuple[tuple[EvalConfig, ...], "Selection"]:
    """The evaluations of ``--tasks`` in the folders of ``--include-path``, and the groups they are scored
    in.
    """
    from tasks.benchmarks.lm_eval import select

    selection = select(names, folders)
    sources = translated(selection, overrides, Path.cwd())
    return tuple(_evaluation(source, None, strict) for source in sources), selection


def _evaluation(source: Source, file: Path | None, strict: bool) -> EvalConfig:
    config = _validated(source, file)
    if strict:
        from flows.loading_checks import config_problems  # imports every metric and filter

        problems = config_problems(config) if config.models else [Problem((), NO_MODELS)]
        if problems:
            raise refusal(source, problems)
    return config


def _validated(source: Source, file: Path | None) -> EvalConfig:
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
