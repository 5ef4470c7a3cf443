"""``inspect:`` of a config: the task is asked about itself, and what it says becomes native keys."""

from pathlib import Path

from pydantic import ValidationError

from flows.config.errors import Problem, refusal
from flows.config.source import YamlSource
from metrics.errors import ConfigError, NightjarError
from tasks.inspecting import OWN_KEYS, InspectTask, inspect_keys
from tasks.store.home import home, named_path
from tasks.usercode.load import check_trusted


def with_inspect(source: YamlSource, folder: Path) -> YamlSource:
    """The config with the keys that its task brings, over which its own ones lie.

    Runs code of the task. Raises ConfigError for keys that say what the task says, for a task that can't be
    loaded, and where inspect_ai is not installed.
    """
    try:
        task = InspectTask.model_validate(source.data["inspect"])
    except ValidationError:
        return source  # the validation of the config names the key
    if said := [key for key in OWN_KEYS if source.data.get(key) is not None]:
        raise refusal(source, [Problem((key,), _said_twice(key)) for key in said])
    base_dir = Path(str(source.data.get("base_dir") or folder.resolve()))
    where = source.where(("inspect", "task"))
    _check_place(task, base_dir, where)
    try:
        keys = inspect_keys(task, base_dir, home() / "imported")
    except ConfigError:
        raise
    except NightjarError as error:
        raise ConfigError(f"{where}: inspect.task: {error}") from error
    own = source.data
    sampling = {**keys["sample_params"], **(own.get("sample_params") or {})}
    return YamlSource(source.name, {**keys, **own, "sample_params": sampling}, source.origins)


def _said_twice(key: str) -> str:
    if key == "limits":
        return "a task of Inspect has limits of its own; set inspect.limits, and leave this out"
    return f"'{key}' is what the task of Inspect says; leave it out"


def _check_place(task: InspectTask, base_dir: Path, where: str) -> None:
    """Refuses a file that is not there, and code that must not run unasked."""
    file = task.task.partition("@")[0]
    check_trusted(base_dir, task.task)
    if not file.endswith(".py"):
        return
    place = named_path(base_dir, file)
    if not place.is_file():
        raise ConfigError(f"{where}: inspect.task: '{file}' is not there: expected a file at {place}")
    check_trusted(place.parent, task.task)
