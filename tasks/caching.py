"""How a stage becomes a cached, retryable Prefect task.

The key of a stage's artifact is ours (``tasks.store.keys``) and not one of Prefect's policies: those hash
the task's own lines only, or contain the run's id. Prefect's record of a result is kept beside the
artifacts; reading one checks that everything it refers to is still in the store, so a deleted or cut
artifact is a miss and the step is computed again.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial, wraps
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa
from prefect import Task, task
from prefect.cache_policies import CacheKeyFnPolicy
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.filesystems import WritableFileSystem
from prefect.results import ResultRecord  # type: ignore[attr-defined]
from prefect.tasks import exponential_backoff
from pydantic import BaseModel

from metrics.errors import NightjarError
from tasks.steps import Step, Unkeyed
from tasks.store.fingerprint import fingerprint
from tasks.store.keys import stage_key
from tasks.store.storage import ArtifactMissing, ArtifactRef, Store

P = ParamSpec("P")
R = TypeVar("R")


class Workspace(Unkeyed):
    """Where a run keeps things."""

    store: str
    """URI of the artifact store."""
    journal_dir: str
    """Local folder for answers on their way to the store."""

    def open(self) -> Store:
        """The store, one object a process so that verified artifacts are verified once."""
        return _open_store(self.store)


@lru_cache(maxsize=8)
def _open_store(uri: str) -> Store:
    return Store(uri)


def cached_task(stage: str) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Makes a stage's function a task that is cached under the stage's key and retried on passing errors.

    All parameters of the function are part of the key: steps by their identity, references by their digest,
    nothing that is Unkeyed; so is the code that the stage runs. Each function takes a ``step``, whose name
    the run bears.
    """

    def decorate(function: Callable[P, R]) -> Task[P, R]:
        return task(
            name=stage,
            task_run_name="{step.name}",
            cache_policy=CacheKeyFnPolicy(cache_key_fn=partial(_cache_key, stage, inspect.unwrap(function))),
            persist_result=True,
            result_serializer="json",
            retries=2,
            retry_delay_seconds=exponential_backoff(backoff_factor=2),
            retry_jitter_factor=0.5,
            retry_condition_fn=is_transient,
        )(function)

    return decorate


def artifact_task(
    stage: str, schema: pa.Schema
) -> Callable[[Callable[P, Iterator[pa.RecordBatch]]], Task[P, ArtifactRef]]:
    """As ``cached_task``, for a function that yields the rows of one artifact: they are written as they
    come, and the task returns the reference."""

    def decorate(rows: Callable[P, Iterator[pa.RecordBatch]]) -> Task[P, ArtifactRef]:
        signature = inspect.signature(rows)

        @wraps(rows)
        def write(*args: P.args, **kwargs: P.kwargs) -> ArtifactRef:
            bound = signature.bind(*args, **kwargs)
            store = bound.arguments["workspace"].open()
            key = artifact_key(stage, rows, bound.arguments)
            ref: ArtifactRef = store.write(stage, key, schema, rows(*args, **kwargs))
            return ref

        return cached_task(stage)(write)

    return decorate


def in_workspace(cached: Task[P, R], workspace: Workspace, refresh: bool = False) -> Task[P, R]:
    """The task with its records in the workspace's store; ``refresh`` computes it whatever the store
    holds."""
    placed = cached.with_options(refresh_cache=refresh)
    # The constructor takes only blocks that are saved on the server, so that others can read results by
    # their state. Ours are read by key alone, and a store that is moved or shared must not need the server
    # that once knew it.
    placed.result_storage = ArtifactRecords(store=workspace.store)
    return placed


def peek(cached: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """What the task would return without running, or None where it would have to run."""
    arguments = inspect.signature(cached.fn).bind(*args, **kwargs).arguments
    key = _cache_key(cached.name, inspect.unwrap(cached.fn), None, arguments)
    records = ArtifactRecords(store=arguments["workspace"].store)
    try:
        result: R = ResultRecord.deserialize(records.read_path(key)).result
    except Exception:  # as Prefect takes it: whatever is wrong with a record, the task runs
        return None
    return result


def is_transient(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Whether trying again may help: not for errors in a config, in user code or in data."""
    try:
        state.result()
    except (NightjarError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, ImportError):
        return False
    except Exception as error:
        return isinstance(error, (OSError, TimeoutError))
    return False


def _cache_key(
    stage: str, function: Callable[..., Any], _context: TaskRunContext | None, parameters: Mapping[str, Any]
) -> str:
    return f"{stage}-{artifact_key(stage, function, parameters)}"


def artifact_key(stage: str, function: Callable[..., Any], parameters: Mapping[str, Any]) -> str:
    """The key of a stage's artifact, from the stage's function and its arguments by name: 64 hexadecimal
    digits."""
    values = {name: _by_digest(value) for name, value in parameters.items() if not isinstance(value, Unkeyed)}
    return stage_key(stage, _stage_version(function), values)


@lru_cache(maxsize=64)
def _stage_version(function: Callable[..., Any]) -> str:
    return fingerprint(function)


def _by_digest(value: Any) -> Any:
    """A parameter as the key sees it: artifacts by their content, whatever they are nested in."""
    if isinstance(value, ArtifactRef):
        return {"artifact": value.digest}
    if isinstance(value, Step):
        return value.identity
    if isinstance(value, BaseModel):
        fields = ((name, getattr(value, name)) for name in type(value).model_fields)
        return {name: _by_digest(entry) for name, entry in fields if not isinstance(entry, Unkeyed)}
    if isinstance(value, dict):
        return {name: _by_digest(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_by_digest(entry) for entry in value]
    if isinstance(value, Exception):
        return {"failed": str(value)}
    return value


class ArtifactRecords(WritableFileSystem):
    """Prefect's result records, in the store itself; a record is read only if its artifacts are whole.

    Prefect takes an exception here as "not cached" and runs the task.
    """

    _block_type_name = "Nightjar result records"
    _block_type_slug = "nightjar-result-records"

    store: str

    def _resolve_path(self, _path: str) -> None:
        """Keys are paths already: Prefect must not make them absolute."""

    # Prefect calls the plain names with ``_sync=True`` from threads and the a-names from a loop.
    def read_path(self, path: str, **_: Any) -> bytes:  # type: ignore[override]
        """The record under ``path``; raises ArtifactMissing where an artifact it refers to is not what it
        was."""
        store = _open_store(self.store)
        content: bytes = store.fs.cat_file(store.path(f"records/{path}"))
        for ref in references(ResultRecord.deserialize(content).result):
            if ref.retryable:
                raise ArtifactMissing(f"{ref.name} has {ref.retryable} rows worth asking again")
            if not store.holds(ref):
                raise ArtifactMissing(f"{ref.name} is gone")
        return content

    def write_path(self, path: str, content: bytes, **_: Any) -> str:  # type: ignore[override]
        """Keeps a record, whole or not at all."""
        _open_store(self.store).put_bytes(f"records/{path}", content)
        return path

    async def aread_path(self, path: str) -> bytes:
        """As ``read_path``."""
        return self.read_path(path)

    async def awrite_path(self, path: str, content: bytes) -> str:
        """As ``write_path``."""
        return self.write_path(path, content)


def references(value: Any) -> Iterator[ArtifactRef]:
    """Every artifact reference inside a task's result."""
    if isinstance(value, ArtifactRef):
        yield value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from references(getattr(value, name))
    elif isinstance(value, dict):
        for entry in value.values():
            yield from references(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from references(entry)
