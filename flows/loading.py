"""From a YAML file and ``--set`` overrides to a config that holds together, or an error that names file and line."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from flows.config import EvalConfig
from flows.overrides import with_overrides
from flows.schema_errors import refusal, schema_problems
from flows.yaml_source import Source, read_yaml

DEFAULT_CONFIG: Final = Path(__file__).resolve().parent.parent / "deployments" / "benchmarks" / "demo" / "gsm8k.yaml"
"""What runs without a config: the embedded benchmark on the embedded server."""


def load_config(path: str | Path | None = None, overrides: Sequence[str] = ()) -> EvalConfig:
    """The evaluation that a YAML file describes, with each ``KEY=VALUE`` of ``overrides`` in place.

    Without a path the embedded default. Raises ConfigError, one line for each thing that is wrong.
    """
    file = Path(path) if path is not None else DEFAULT_CONFIG
    source = with_overrides(read_yaml(file), overrides, file.parent)
    return _validated(source, file)


def _validated(source: Source, file: Path) -> EvalConfig:
    own = EvalConfig.model_fields
    given = {key: value for key, value in source.data.items() if value is not None or key not in own}
    defaults = {"name": file.stem, "base_dir": str(file.resolve().parent), "config_file": file.name}
    try:
        return EvalConfig.model_validate({**defaults, **given})
    except ValidationError as error:
        raise refusal(source, schema_problems(error, EvalConfig, given)) from error
