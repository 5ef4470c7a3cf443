"""Weights & Biases: one of its runs for each model, with every number and its interval, sent by its client.

A run's id there follows from the run's id and the model: a second time goes on with the same run, and its
summary gets the numbers of now. Offline, it is a folder below the run's own, which ``wandb sync`` sends.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal

from pydantic import Field

from tasks.publishers.publisher import (
    ANSWERS,
    SAMPLES,
    FinishedRun,
    Server,
    WebAddress,
    identifier,
    named_key,
    named_numbers,
)
from tasks.store.outputs import samples_file

FOLDER: Final = "wandb"
QUIET: Final[Mapping[str, Any]] = {
    "silent": True,
    "console": "off",  # what this process prints is about other models, too
    "symlink": False,
    "disable_git": True,
    "disable_code": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    "finish_timeout_raises": True,
    "x_graphql_retry_max": 2,  # by itself it tries for hours; the step has a retry of its own
    "x_file_stream_retry_max": 2,
    "x_file_transfer_retry_max": 2,
}
"""How its client is to behave: nothing leaves but what the config says, and what is away is told soon."""

_ONE_AT_A_TIME = Lock()
"""Its client has one process and one key for a whole Python process."""


class WandB(Server):
    """A project of Weights & Biases, or of a server that speaks as it does."""

    extra = "wandb"
    client = ("wandb",)
    key_variables = ("WANDB_API_KEY",)

    project: str = Field(min_length=1, description="Which project")
    entity: str | None = Field(
        None, min_length=1, description="User or team that has it; default: that of the key"
    )
    mode: Literal["online", "offline"] | None = Field(
        None,
        description="offline: into the folder wandb/ of the run's own, for wandb sync; "
        "default: the variable WANDB_MODE, else online",
    )
    base_url: WebAddress | None = Field(
        None, description="Address of a server of your own; default: the variable WANDB_BASE_URL"
    )
    api_key_env: str | None = Field(
        None, min_length=1, description="Environment variable that holds the key; default: WANDB_API_KEY"
    )
    samples: bool = Field(False, description=f"{SAMPLES}; they are a table")

    def check(self, models: Sequence[str]) -> None:
        """Raises ConfigError where the client or the key that the config names is not there."""
        super().check(models)
        named_key(self.api_key_env, "api_key_env")

    def destination(self, run: FinishedRun) -> str:
        """Its address, and the project."""
        own = "$WANDB_BASE_URL" if "WANDB_BASE_URL" in os.environ else "https://api.wandb.ai"
        address = self.base_url or own  # what the variable holds might have a password
        return f"{address} project {self.project}"

    def key_names(self) -> Sequence[str]:
        """The variable that is named, else the client's own."""
        return [self.api_key_env] if self.api_key_env else self.key_variables

    def secrets(self) -> Iterable[str]:
        """The keys of the variables."""
        return [*super().secrets(), os.environ.get(self.api_key_env or "", "")]

    def send(self, run: FinishedRun) -> Sequence[str]:
        """Sends each model that has a number; says where its run is."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when it is imported
        import wandb

        places = []
        with _ONE_AT_A_TIME:
            try:
                for model in run.manifest["models"]:
                    if numbers := named_numbers(run.numbers(model), "/".join):
                        places.append(self._send_model(run, model, numbers))
            except BaseException:
                if (self.mode or os.environ.get("WANDB_MODE")) != "offline":
                    _remove_local(run)
                raise
            finally:
                wandb.teardown()  # its process keeps the id of a run that failed, and refuses it to a retry
        return places

    def _send_model(self, run: FinishedRun, model: str, numbers: Mapping[str, float]) -> str:
        import wandb

        manifest, mark = run.manifest, identifier(run.run_id, model).hex
        folder = run.folder / FOLDER
        folder.mkdir(exist_ok=True)  # where it can't write it takes a temporary folder, without a word
        for earlier in folder.glob(f"*-{mark}"):
            shutil.rmtree(earlier)
        key = named_key(self.api_key_env, "api_key_env")
        patience = {
            "login_timeout": self.timeout,
            "init_timeout": 2 * self.timeout,
            "x_graphql_timeout_seconds": self.timeout,
            "x_file_stream_timeout_seconds": self.timeout,
            "finish_timeout": ANSWERS * self.timeout / 2,
        }
        given = {"mode": self.mode, "base_url": self.base_url, "api_key": key}
        known = {name: value for name, value in given.items() if value is not None}
        sent = wandb.init(
            project=self.project,
            entity=self.entity,
            id=mark,
            name=f"{manifest['run_name']} {model}",
            group=str(manifest["run_name"]),
            job_type="evaluation",
            tags=[str(manifest["benchmark"])[:64]],  # as many characters as it takes
            config=_config(run, model),
            allow_val_change=True,
            resume="allow",
            reinit="create_new",  # beside a run of the user's own code
            dir=str(run.folder),
            settings=wandb.Settings(**QUIET, **patience, **known),
        )
        try:
            sent.summary.update(dict(numbers))
            if self.samples:
                _add_samples(sent, run, model)
        except BaseException:
            sent.finish(exit_code=1)
            raise
        sent.finish()
        local = Path(sent.settings.sync_dir)
        _check_log(Path(sent.settings.log_internal))
        if sent.settings.mode == "offline":
            return str(local)
        shutil.rmtree(local, ignore_errors=True)
        return str(sent.url)


def _remove_local(run: FinishedRun) -> None:
    """Removes what its client left of a run: its log quotes a server's words, which may repeat the key."""
    for model in run.manifest["models"]:
        for left in (run.folder / FOLDER).glob(f"*-{identifier(run.run_id, model).hex}"):
            shutil.rmtree(left, ignore_errors=True)


def _check_log(log: Path) -> None:
    """Raises ConnectionError where its client gave numbers up: it tells that its log alone, and ends well."""
    try:
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return
    for line in lines:
        if str(line.get("level")).startswith("ERROR+"):  # what it calls fatal
            raise ConnectionError(f"its client gave up: {line.get('msg')}")


def _config(run: FinishedRun, model: str) -> dict[str, Any]:
    manifest = run.manifest
    return {
        **run.evaluated(model),
        "run_id": run.run_id,
        "night": manifest.get("night"),
        "versions": manifest["versions"],
        "git_revision": manifest.get("git_revision"),
        "config": manifest["config"],
    }


def _add_samples(sent: Any, run: FinishedRun, model: str) -> None:
    """The model's samples as tables, each of as many rows as one shows."""
    import wandb

    lines, part = _lines(run, model), 0
    while chunk := list(islice(lines, wandb.Table.MAX_ROWS)):
        metrics = sorted({name for line in chunk for name in line["metrics"]})
        table = wandb.Table(columns=[*TEXTS, *metrics], allow_mixed_types=True)
        for line in chunk:
            texts = (_text(line.get(name)) for name in TEXTS)
            table.add_data(*texts, *(_number(line.get(name)) for name in metrics))
        sent.summary["samples" if not part else f"samples/{part}"] = table
        part += 1


TEXTS: Final = ("item_id", "prompt_template", "filter", "arguments", "resps", "filtered_resps", "target")
"""What a row of the table says of a sample, beside its scores; by their names in the run's own file."""


def _lines(run: FinishedRun, model: str) -> Iterator[Mapping[str, Any]]:
    file = run.folder / samples_file(str(run.manifest["benchmark"]))
    with file.open(encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            if line.get("model_name", model) == model:  # a run of one model does not name it
                yield line


def _text(value: Any) -> str | None:
    return value if isinstance(value, str | None) else json.dumps(value, ensure_ascii=False)


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float | None) else _text(value)
