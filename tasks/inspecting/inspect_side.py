"""What runs where Inspect is: a process of its own, by the interpreter that has ``inspect_ai``.

Called as ``python inspect_side.py ACTION REQUEST REPLY``: both are JSON files. ``describe`` says what a task
is made of, ``run`` evaluates some of its samples into a log, ``numbers`` calls Inspect's own metrics.
Imports nothing of this project. Written for inspect_ai 0.3.90 and later.
"""

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

_opened: set[str] = set()


def _note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    """Notes what is opened for reading while the task is loaded."""
    if event == "open" and arguments and isinstance(arguments[0], str):
        mode = arguments[1]
        if mode is None or not set(str(mode)) & set("wax+"):
            _opened.add(arguments[0])


def _task(request: Mapping[str, Any]) -> Any:
    """The one task of a request; raises ValueError for none or several."""
    from inspect_ai._eval.loader import load_tasks

    tasks = load_tasks([request["task"]], request["args"])
    if len(tasks) != 1:
        names = ", ".join(str(one.name) for one in tasks) or "none"
        raise ValueError(f"'{request['task']}' holds {len(tasks)} tasks ({names}); name one, as file.py@name")
    task = tasks[0]
    _check_arguments(task, request["args"])
    # As Inspect does before it runs them: what has no id is known by its place.
    for place, sample in enumerate(task.dataset, start=1):
        if sample.id is None:
            sample.id = place
    return task


def _check_arguments(task: Any, args: Mapping[str, Any]) -> None:
    """Raises ValueError for an argument that the task does not take: Inspect leaves it out with a warning."""
    from inspect_ai._util.registry import registry_info, registry_lookup

    made_by = registry_lookup("task", registry_info(task).name)
    if not callable(made_by):
        return
    known = inspect.signature(made_by).parameters
    if any(one.kind is one.VAR_KEYWORD for one in known.values()):
        return
    if unknown := sorted(args.keys() - known.keys()):
        taken = f"it takes {', '.join(known)}" if known else "it takes none"
        raise ValueError(f"the task takes no argument '{unknown[0]}' ({taken})")


def describe(request: Mapping[str, Any]) -> dict[str, Any]:
    """Samples, scorers, epochs and the files that the task was made of."""
    sys.addaudithook(_note_opened)
    task = _task(request)
    samples = [sample.model_dump(mode="json", exclude_none=True) for sample in task.dataset]
    reducers = task.epochs_reducer or []
    return {
        "name": str(task.name),
        "samples": samples,
        "epochs": task.epochs or 1,
        "reducers": [_name(reducer) for reducer in reducers],
        "scorers": list(_scorers(task)),
        "files": dict(_files(task)),
        "absent": [name for name in request["clients"] if not _is_there(name)],
        "packages": {name: _version(name) for name in ("inspect_ai", *_packages(request["task"]))},
    }


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that should hold it
        return False


def _name(registered: Any) -> str:
    from inspect_ai._util.registry import registry_log_name

    try:
        return str(registry_log_name(registered))
    except Exception:  # what is in no registry has a plain name
        return str(getattr(registered, "__name__", registered))


def _scorers(task: Any) -> Iterator[dict[str, Any]]:
    """The name that each scorer's scores have, its metrics' names, and those of the keys that it names."""
    from inspect_ai.scorer._scorer import scorer_metrics, unique_scorer_name

    used: list[str] = []
    for scorer in task.scorer or []:
        name = unique_scorer_name(scorer, used)
        used.append(name)
        declared = task.metrics if task.metrics is not None else scorer_metrics(scorer)
        entries = declared if isinstance(declared, list) else [declared]
        mappings = [entry for entry in entries if isinstance(entry, dict)]
        yield {
            "name": name,
            "metrics": [_short(entry) for entry in entries if not isinstance(entry, dict)],
            "keys": {
                key: [_short(metric) for metric in metrics]
                for mapping in mappings
                for key, metrics in mapping.items()
            },
        }


def _short(metric: Any) -> str:
    return _name(metric).rpartition("/")[2]


def _files(task: Any) -> Iterator[tuple[str, str]]:
    """The files of the task's own code and data, each with its digest: what was imported or read, beside
    what is installed."""
    modules = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    named = {path for path in (*modules, *_opened, *_sandbox_files(task)) if path}
    installed = [Path(sysconfig.get_paths()[name]).resolve() for name in ("stdlib", "purelib", "platlib")]
    installed += [Path(__file__).resolve().parent, Path("/proc"), Path("/sys"), Path("/dev"), Path("/etc")]
    for name in sorted(named):
        path = Path(name).absolute()
        inside = any(
            path.is_relative_to(place) or path.resolve().is_relative_to(place) for place in installed
        )
        if inside or path.suffix == ".pyc" or not path.is_file():
            continue
        yield str(path), hashlib.sha256(path.read_bytes()).hexdigest()


def _sandbox_files(task: Any) -> Iterator[str]:
    """Files that sandboxes are made of, which a task reads only when it runs."""
    for given in (task.sandbox, *(sample.sandbox for sample in task.dataset)):
        config = getattr(given, "config", None)
        if isinstance(config, str):
            yield config


def _packages(task: str) -> tuple[str, ...]:
    """The distribution that a task ``package/task`` comes from."""
    package = task.partition("/")[0]
    found = importlib.metadata.packages_distributions().get(package) if ".py" not in task else None
    return tuple(found or ())


def _version(name: str) -> str:
    return importlib.metadata.version(name)


def run(request: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluates the samples of a block into a log below ``log_dir``; those that the log ``resume`` holds are
    taken from it."""
    from inspect_ai import eval as evaluate
    from inspect_ai.log import read_eval_log
    from inspect_ai.model import GenerateConfig, get_model

    task = _task(request)
    wanted = set(request["samples"])
    task.dataset = task.dataset.filter(lambda sample: str(sample.id) in wanted)
    generate = request["model"]["generate"]
    if unknown := generate.keys() - set(GenerateConfig.model_fields):
        raise ValueError(
            f"this inspect_ai knows no {', '.join(sorted(unknown))}; leave it out, or take a newer one"
        )
    model = get_model(
        request["model"]["name"],
        config=GenerateConfig(**generate),
        base_url=request["model"]["base_url"],
        **request["model"]["args"],
    )
    subject: Any = task
    if request["resume"] is not None:
        subject = _previous(task, model, request["args"], read_eval_log(request["resume"]))
    options = {
        **request["limits"],
        "epochs": _epochs(task, request["epochs"]),
        "log_dir": request["log_dir"],
        "log_format": "eval",
        "log_buffer": 1,  # each sample is in the file once it has ended
        "log_realtime": False,
        "display": "none",
        "fail_on_error": False,  # one sample that fails costs itself
        "max_tasks": 1,
        "score_display": False,
    }
    known = inspect.signature(evaluate).parameters
    if unknown := request["limits"].keys() - set(known):
        raise ValueError(f"this inspect_ai knows no limit {', '.join(sorted(unknown))}; take a newer one")
    accepted = {name: value for name, value in options.items() if name in known}
    (log,) = evaluate(subject, model=model, **accepted)
    failed = None if log.error is None else log.error.message
    return {"log": log.location.removeprefix("file://"), "status": log.status, "error": failed}


def _epochs(task: Any, epochs: int) -> Any:
    """So many epochs, reduced as the task says."""
    from inspect_ai import Epochs

    return Epochs(epochs, task.epochs_reducer) if task.epochs_reducer else epochs


def _previous(task: Any, model: Any, args: Mapping[str, Any], log: Any) -> Any:
    """The task with the log that it goes on from, as ``eval_retry`` has it."""
    from inspect_ai._eval.task.task import PreviousTask

    given = {
        "id": log.eval.task_id, "task": task, "task_args": dict(args), "model": model, "model_roles": None,
        "sandbox": task.sandbox, "log": log, "log_info": None,
    }  # fmt: skip
    fields = {field.name for field in dataclasses.fields(PreviousTask)}
    return PreviousTask(**{name: value for name, value in given.items() if name in fields})


def _known(model: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those values that a class of this inspect_ai has a field for."""
    return {name: value for name, value in values.items() if name in model.model_fields}


def numbers(request: Mapping[str, Any]) -> dict[str, Any]:
    """What Inspect's own metrics make of the scores of samples: epoch after epoch, as it has them."""
    from inspect_ai._eval.task.results import eval_results
    from inspect_ai.scorer import SampleScore, Score

    task = _task(request)
    scores = [
        {
            name: SampleScore(
                score=Score(**_known(Score, score)),
                sample_id=sample["id"],
                **_known(SampleScore, {"sample_metadata": sample["metadata"]}),
            )
            for name, score in sample["scores"].items()
        }
        for sample in request["samples"]
    ]
    results, _ = eval_results(len(scores), scores, task.epochs_reducer, task.scorer, task.metrics)
    return {
        "scores": [
            {
                "scorer": score.scorer,
                "name": score.name,
                "reducer": score.reducer,
                "metrics": {name: metric.value for name, metric in score.metrics.items()},
            }
            for score in results.scores
        ]
    }


ACTIONS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "describe": describe,
    "run": run,
    "numbers": numbers,
}


def _end_with_parent() -> None:
    """Ends this process and what it started once the one that holds its standard input is gone."""

    def wait() -> None:
        while os.read(0, 4_096):
            pass
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def main(action: str, request: str, reply: str) -> int:
    """Does what is asked; what goes wrong is in the reply, too."""
    _end_with_parent()
    given = json.loads(Path(request).read_text(encoding="utf-8"))
    sys.path.insert(0, os.getcwd())
    try:
        said: dict[str, Any] = {"ok": ACTIONS[action](given)}
    except BaseException as error:
        traceback.print_exc()
        said = {"error": f"{type(error).__name__}: {error}"}
    Path(reply).write_text(json.dumps(said), encoding="utf-8")
    return 0 if "ok" in said else 1


if __name__ == "__main__":
    # The folder of this file is no place to import from: a task's modules are beside the task.
    sys.path[:] = [
        place for place in sys.path if Path(place or ".").resolve() != Path(__file__).resolve().parent
    ]
    sys.exit(main(*sys.argv[1:]))
