"""How a stage becomes a cached, retryable Prefect task.

The key of a stage's artifact is ours (``tasks.store.keys``) and not one of Prefect's policies: those hash the
task's own lines only, or contain the run's id. Prefect's record of a result is kept beside the artifacts;
reading one checks that everything it refers to is still in the store, so a deleted or cut artifact is a miss
and the step is computed again. Where users' code ran, the files that it was seen to read are listed beside
the record, and it serves as long as all of them are as they were.
"""

import inspect
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache, partial, wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, cast

import pyarrow as pa
from prefect import Task, get_run_logger, task
from prefect.cache_policies import CacheKeyFnPolicy
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.exceptions import MissingContextError
from prefect.tasks import exponential_backoff
from pydantic import BaseModel

from metrics.errors import NightjarError
from metrics.json_values import leaves
from tasks.prefect_adapter import RecordStorage, recorded_result
from tasks.processes.workers import in_main_thread, workers
from tasks.reporting.streams import escape_logs, outlive_readers
from tasks.store.errors import StoreUnavailable
from tasks.store.fingerprint import stage_code
from tasks.store.home import FileUnwritable
from tasks.store.keys import Step, Unkeyed, digest
from tasks.store.reasons import Observed, Reason, Subject, flat, keep_observed, keep_reason, read_observed
from tasks.store.storage import RECORDS, ArtifactMissing, ArtifactRef, Store
from tasks.usercode.sources import (
    edited_since,
    entries_in,
    first_difference,
    named_edited_since,
    observed_files,
)
from tasks.usercode.surroundings import file_sets_alarms

P = ParamSpec("P")
R = TypeVar("R")

# Whatever runs a task, a worker's process or another machine's, imports this.
escape_logs()
outlive_readers()


class Workspace(Unkeyed):
    """Where a run keeps things."""

    store: str
    """URI of the artifact store."""
    journal_dir: str
    """Local folder for answers on their way to the store."""
    benchmark: str = ""
    """What is evaluated, and by which run: for the record of why a step was computed."""
    run_id: str = ""
    key: str = ""
    """What the step that is computed here keeps its results under: a stage's function finds its own."""

    def open(self) -> Store:
        """The store, one object a process so that verified artifacts are verified once."""
        return _open_store(self.store)


@lru_cache(maxsize=8)
def _open_store(uri: str) -> Store:
    return Store(uri)


StillHolds = Callable[[Any, Mapping[str, Any]], bool]
"""Whether a record's result is what the step, given these arguments by name, would come to now."""
_still_holds: dict[str, StillHolds] = {}


Where = Literal["here", "machines", "anywhere"]
"""Where a stage's function may be called: in the run's process alone, since it asks something of Prefect or
holds what was read ahead; also on other machines, where the run has some; in any process."""


def cached_task(
    stage: str, still_holds: StillHolds | None = None, where: Where = "here"
) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Makes a stage's function a task that is cached under the stage's key and retried on passing errors.

    All parameters of the function are part of the key: steps by their identity, references by their digest,
    nothing that is Unkeyed. So is the code that the stage runs. Each function takes a ``step``, whose name
    the run bears, and a ``workspace``, which is given to it with the key. Where a key can't say all that
    decides the result (answers are kept under keys of their own), ``still_holds`` is asked before a record is
    served; one that no longer holds is removed.
    """
    if still_holds is not None:
        _still_holds[stage] = still_holds

    def decorate(function: Callable[P, R]) -> Task[P, R]:
        stage_function = inspect.unwrap(function)
        signature = inspect.signature(stage_function)

        @wraps(function)
        def make(*args: P.args, **kwargs: P.kwargs) -> R:
            arguments = signature.bind(*args, **kwargs).arguments
            _refuse_edited(arguments, edited_since)
            began = time.monotonic()
            result = function(*args, **kwargs)
            _refuse_edited(arguments, named_edited_since)
            # In the process that made it: what users' code read, another has not seen.
            _keep_observed(stage, arguments["workspace"].key, arguments, result, began)
            return result

        @wraps(make)
        def compute(*args: P.args, **kwargs: P.kwargs) -> R:
            given = signature.bind(*args, **kwargs)
            arguments = given.arguments
            made_of = ingredients(stage, stage_function, arguments)
            key = digest(made_of)
            arguments["workspace"] = arguments["workspace"].model_copy(update={"key": key})
            made: Callable[..., R] = make
            if where != "here" and _sets_alarms(arguments):
                made = partial(in_main_thread, make)
            elif where == "anywhere" or (where == "machines" and workers().distant):
                made = partial(workers().compute, make)
            result = made(*given.args, **given.kwargs)
            _say_why(key, made_of, arguments)
            return result

        return task(
            name=stage,
            task_run_name="{step.run_name}",
            cache_policy=CacheKeyFnPolicy(cache_key_fn=partial(_cache_key, stage, stage_function)),
            persist_result=True,
            result_serializer="json",
            retries=2,
            retry_delay_seconds=exponential_backoff(backoff_factor=2),
            retry_jitter_factor=0.5,
            retry_condition_fn=is_transient,
        )(compute)

    return decorate


def artifact_task(
    stage: str, schema: pa.Schema, where: Where = "machines"
) -> Callable[[Callable[P, Iterator[pa.RecordBatch]]], Task[P, ArtifactRef]]:
    """As ``cached_task``, for a function that yields the rows of one artifact: they are written as they
    come, and the task returns the reference."""

    def decorate(rows: Callable[P, Iterator[pa.RecordBatch]]) -> Task[P, ArtifactRef]:
        signature = inspect.signature(rows)

        @wraps(rows)
        def write(*args: P.args, **kwargs: P.kwargs) -> ArtifactRef:
            workspace: Workspace = signature.bind(*args, **kwargs).arguments["workspace"]
            return workspace.open().write(stage, workspace.key, schema, rows(*args, **kwargs))

        return cached_task(stage, where=where)(write)

    return decorate


def in_workspace(cached: Task[P, R], workspace: Workspace, refresh: bool = False) -> Task[P, R]:
    """The task with its records in the workspace's store; ``refresh`` computes it whatever the store
    holds."""
    return cast("Task[P, R]", _placed(cached, workspace.store, refresh))


@lru_cache(maxsize=64)  # making one, Prefect reads the function's source file and takes it to pieces
def _placed(cached: Task[..., Any], store: str, refresh: bool) -> Task[..., Any]:
    placed = cached.with_options(refresh_cache=refresh)
    # The constructor takes only blocks that are saved on the server, so that others can read results by
    # their state. Ours are read by key alone, and a store that is moved or shared must not need the server
    # that once knew it.
    placed.result_storage = ArtifactRecords(store=store)
    return placed


def peek(cached: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """What the task would return without running, or None where it would have to run."""
    arguments = inspect.signature(cached.fn).bind(*args, **kwargs).arguments
    key = f"{cached.name}-{artifact_key(cached.name, inspect.unwrap(cached.fn), arguments)}"
    found = _record(key, arguments["workspace"])
    if found is None or not _holds_now(cached.name, key, found, arguments):
        return None
    result: R = found
    return result


def is_transient(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Whether trying again may help: not for errors in a config, in user code or in data."""
    try:
        state.result()
    except (StoreUnavailable, FileUnwritable):
        return True
    except (NightjarError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, ImportError):
        return False
    except Exception as error:
        return isinstance(error, (OSError, TimeoutError))
    return False


def _cache_key(
    stage: str, function: Callable[..., Any], _context: TaskRunContext | None, parameters: Mapping[str, Any]
) -> str:
    key = f"{stage}-{artifact_key(stage, function, parameters)}"
    if stage in _still_holds or _users_files(parameters):
        workspace = parameters["workspace"]
        found = _record(key, workspace)
        if found is not None and not _holds_now(stage, key, found, parameters):
            # Prefect reads the record under this key next; what it then computes takes the record's place.
            workspace.open().remove(f"{RECORDS}/{key}")
    return key


def _record(key: str, workspace: Workspace) -> Any:
    """The result that is kept under a record's key; None where there is none that can be used."""
    try:
        return recorded_result(ArtifactRecords(store=workspace.store).read_path(key))
    except Exception:  # as Prefect takes it: whatever is wrong with a record, the task runs
        return None


def _holds_now(stage: str, key: str, result: Any, arguments: Mapping[str, Any]) -> bool:
    if stage in _still_holds and not _still_holds[stage](result, arguments):
        return False
    users = _users_files(arguments)
    if not users:
        return True
    observed = read_observed(arguments["workspace"].open(), key, digest(result))
    return observed is not None and first_difference(users, observed.files) is None


def _users_files(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The files of the users' functions of a step."""
    step = arguments.get("step")
    return entries_in(step.identity) if isinstance(step, Step) else ()


def _refuse_edited(arguments: Mapping[str, Any], edited: Callable[[Any], str | None]) -> None:
    """Raises NightjarError where users' code, or a file that it names, is no longer what the step's key says:
    of the partitions of a number some would be by the code of before, and others by that of now."""
    step = arguments.get("step")
    if isinstance(step, Step) and (name := edited(step.identity)) is not None:
        raise NightjarError(
            f"{name} was edited while the run was under way, or {os.uname().nodename} has another version of "
            "it, and its scores would come from both; run again, which computes only what differs"
        )


def _sets_alarms(arguments: Mapping[str, Any]) -> bool:
    """Whether users' functions of a step need a main thread. A store in memory is in this process alone."""
    users = _users_files(arguments)
    return any(file_sets_alarms(Path(file)) for file in users) and not arguments["workspace"].open().in_memory


def _keep_observed(stage: str, key: str, arguments: Mapping[str, Any], result: Any, began: float) -> None:
    """Keeps what users' code was seen to read for a result since it ``began``; of what can't be said nothing
    is kept, so that the step is computed again."""
    users = _users_files(arguments)
    files = observed_files(users, began) if users else None
    if files is not None:
        keep_observed(arguments["workspace"].open(), f"{stage}-{key}", Observed(digest(result), files))


def artifact_key(stage: str, function: Callable[..., Any], parameters: Mapping[str, Any]) -> str:
    """The key of a stage's artifact, from the stage's function and its arguments by name: 64 hexadecimal
    digits."""
    return digest(ingredients(stage, function, parameters))


def ingredients(
    stage: str, function: Callable[..., Any], parameters: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """What a key is made of: the code of the stage, the identity of its step, and its inputs by content."""
    step, code = parameters.get("step"), stage_code(function)
    whole = step.whole if isinstance(step, Step) else ()
    inputs = {
        name: _in_key(value, name in whole)
        for name, value in parameters.items()
        if not isinstance(value, Unkeyed | Step)
    }
    return {
        "stage": {"name": stage},
        "code": dict(code.packages),
        "libraries": dict(code.libraries),
        "step": step.identity if isinstance(step, Step) else {},
        "input": inputs,
    }


def _in_key(value: Any, whole: bool) -> Any:
    """A parameter as the key sees it: artifacts by their content, whatever they are nested in; by all their
    bytes where the step reads all columns."""
    if isinstance(value, ArtifactRef):
        return {"artifact": value.digest if whole else value.keyed}
    if isinstance(value, BaseModel):
        fields = ((name, getattr(value, name)) for name in type(value).model_fields)
        return {name: _in_key(entry, whole) for name, entry in fields if not isinstance(entry, Unkeyed)}
    if isinstance(value, dict):
        return {name: _in_key(entry, whole) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_in_key(entry, whole) for entry in value]
    if isinstance(value, Exception):
        return {"failed": str(value)}
    return value


def _say_why(key: str, made_of: Mapping[str, Mapping[str, Any]], parameters: Mapping[str, Any]) -> None:
    """Keeps why a step was computed beside its record, and tells the task run's log."""
    step, workspace = parameters.get("step"), parameters.get("workspace")
    if not isinstance(step, Step) or not isinstance(workspace, Workspace):
        return
    stage = made_of["stage"]["name"]
    files = read_observed(workspace.open(), f"{stage}-{key}") if _users_files(parameters) else None
    inputs = {name: ref.name for name, ref in _named_references(parameters)}
    subject = Subject(workspace.benchmark, stage, step.name, step.about)
    reason = keep_reason(
        workspace.open(),
        Reason(
            subject=subject,
            key=key,
            run_id=workspace.run_id,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            ingredients=flat(made_of) | ({} if files is None else files.ingredients()),
            inputs=inputs,
        ),
    )
    with suppress(MissingContextError):  # outside a flow run there is no log
        get_run_logger().info("%s", reason.because)


def _named_references(parameters: Mapping[str, Any]) -> Iterator[tuple[str, ArtifactRef]]:
    """Every artifact among the inputs, by the parameter's name; of several by their places, too."""
    for name, value in parameters.items():
        found = list(references(value))
        for place, ref in enumerate(found):
            yield (name if len(found) == 1 else f"{name} {place + 1}"), ref


class ArtifactRecords(RecordStorage):
    """Prefect's result records, in the store itself; a record is read only as its own step's, and if its
    artifacts are whole.

    Prefect takes an exception here as "not cached" and runs the task.
    """

    _block_type_name = "Nightjar result records"
    _block_type_slug = "nightjar-result-records"

    store: str

    def read_path(self, path: str, **_: Any) -> bytes:  # type: ignore[override]
        """The record under ``path``; raises ArtifactMissing where an artifact it refers to is not what it
        was, FileDamaged for a record of another step."""
        store = _open_store(self.store)
        content = store.record(path)
        for ref in references(recorded_result(content)):
            if ref.retryable:
                raise ArtifactMissing(f"{ref.name} has {ref.retryable} rows worth asking again")
            if not store.holds(ref):
                raise ArtifactMissing(f"{ref.name} is gone")
        return content

    def write_path(self, path: str, content: bytes, **_: Any) -> str:  # type: ignore[override]
        """Keeps a record, whole or not at all."""
        _open_store(self.store).put_document(f"{RECORDS}/{path}", content)
        return path


def references(value: Any) -> Iterator[ArtifactRef]:
    """Every artifact reference inside a task's result."""
    for leaf in leaves(value):
        if isinstance(leaf, ArtifactRef):
            yield leaf
        elif isinstance(leaf, BaseModel):
            yield from references([getattr(leaf, name) for name in type(leaf).model_fields])
