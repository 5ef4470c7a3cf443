"""Each private name that is used of Prefect, aiohttp, sacrebleu and Python's ``re``, tried alone: what fails
here after an upgrade says what the upgrade broke. There is no server in these tests."""

import ast
import inspect
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import State
from prefect.context import get_settings_context
from prefect.exceptions import UpstreamTaskError
from prefect.futures import PrefectConcurrentFuture
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Failed
from prefect.task_runners import ProcessPoolTaskRunner, ThreadPoolTaskRunner
from prefect.utilities.callables import ParameterSchema

from tasks import prefect_adapter
from tasks.caching import ArtifactRecords
from tasks.prefect_adapter import (
    EndedFuture,
    LocalFuture,
    LocalProcesses,
    LocalThreads,
    ProcessFuture,
    RecordStorage,
    recorded_result,
    served_flow,
    settings_of_all_threads,
)
from tasks.store.errors import FileDamaged

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_server() -> Any:
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        yield


def test_a_future_is_pending_until_its_thread_has_returned() -> None:
    running: Future[State[int]] = Future()
    future: LocalFuture[Any] = LocalFuture(uuid4(), running)  # type: ignore[arg-type]
    assert future.state.is_pending()
    running.set_result(Completed(data=3))
    assert future.state.is_completed()


def test_a_cancelled_future_stays_pending() -> None:
    running: Future[State[int]] = Future()
    running.cancel()
    assert LocalFuture(uuid4(), running).state.is_pending()  # type: ignore[arg-type]


def test_a_task_of_another_process_behind_a_failed_one_is_not_ready() -> None:
    running: Future[State[int]] = Future()
    running.set_exception(UpstreamTaskError("serve did not reach a 'COMPLETED' state"))
    future: ProcessFuture[Any] = ProcessFuture(uuid4(), running)  # type: ignore[arg-type]
    future.wait()
    assert (future.state.name, future.state.message) == (
        "NotReady",
        "serve did not reach a 'COMPLETED' state",
    )


def test_a_task_that_may_fail_is_waited_for_and_no_more() -> None:
    running: Future[State[int]] = Future()
    running.set_result(Failed())
    assert EndedFuture(uuid4(), running).state.is_completed()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ours", "theirs"), [(LocalThreads, ThreadPoolTaskRunner), (LocalProcesses, ProcessPoolTaskRunner)]
)
def test_runners_are_called_as_prefects_are(ours: type, theirs: type) -> None:
    """Prefect calls ``submit`` by these names; one more would be lost on its way through ours."""
    parameters = [list(inspect.signature(runner.submit).parameters) for runner in (ours, theirs)]
    assert parameters[0] == parameters[1] == ["self", "task", "parameters", "wait_for", "dependencies"]


def test_a_future_is_made_of_a_task_runs_id_and_what_it_wraps() -> None:
    names = list(inspect.signature(PrefectConcurrentFuture).parameters)
    assert names == ["task_run_id", "wrapped_future"]
    assert PrefectConcurrentFuture(uuid4(), Future())._final_state is None  # type: ignore[arg-type]


def test_a_runner_has_a_cluster_of_its_own_from_its_beginning_to_its_end() -> None:
    seen: list[str] = []

    @contextmanager
    def cluster() -> Iterator[str]:
        seen.append("begun")
        yield "cluster"
        seen.append("ended")

    named = prefect_adapter.ClusterThreads(cluster, 3)
    with named.duplicate() as runner:  # as Prefect does for each flow run
        assert isinstance(runner, prefect_adapter.ClusterThreads)
        assert (runner.cluster, runner._max_workers, seen) == ("cluster", 3, ["begun"])
        assert named.cluster is None
    assert seen == ["begun", "ended"]


@contextmanager
def awaited(lost: threading.Event) -> Iterator[None]:
    """A cluster without workers: what waits for it goes on once it is lost."""
    assert not lost.is_set()
    try:
        yield
    finally:
        lost.set()


def test_a_runner_whose_block_fails_ends_the_cluster_that_its_threads_wait_for() -> None:
    lost, seen = threading.Event(), []
    runner = prefect_adapter.ClusterThreads(lambda: awaited(lost), 1).__enter__()
    assert runner._executor is not None
    runner._executor.submit(lambda: seen.append(lost.wait(10)))
    runner.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert seen == [True]


def test_a_runners_cluster_can_be_ended_before_its_block() -> None:
    lost = threading.Event()
    with prefect_adapter.ClusterThreads(lambda: awaited(lost), 1) as runner:
        assert runner._executor is not None
        waiting = runner._executor.submit(lost.wait, 60)
        runner.end_cluster()
        assert waiting.result() is True


HEARING = "__import__('tasks.processes.endings').processes.endings.interrupted.wait(60)"


@pytest.mark.parametrize(
    "end", [LocalProcesses.stop_asking, lambda runner: runner.__exit__(None, None, None)]
)
def test_a_runners_processes_hear_that_no_more_is_asked(end: Callable[[LocalProcesses], None]) -> None:
    with LocalProcesses(max_workers=1).duplicate() as runner:  # as Prefect does for each flow run
        assert runner._executor is not None
        waiting = runner._executor.submit(eval, HEARING)
        end(runner)
        assert waiting.cancelled() or waiting.result() is True


def test_a_runners_processes_end_with_a_run_that_was_killed() -> None:
    asking = """
from tasks.prefect_adapter import LocalProcesses
with LocalProcesses(max_workers=1) as runner:
    runner._executor.submit(print, "asking", flush=True).result()
    runner._executor.submit(eval, "__import__('time').sleep(600)").result()
"""
    with subprocess.Popen(
        [sys.executable, "-c", asking], cwd=PROJECT, stdout=subprocess.PIPE, start_new_session=True
    ) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == b"asking\n"
            run.kill()
            run.communicate(timeout=60)  # it ends when nobody has the output open any more
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)


class Kept(RecordStorage):
    """Records in a folder."""

    folder: str

    def read_path(self, path: str, **_: Any) -> bytes:  # type: ignore[override]
        """The bytes of a record."""
        return (Path(self.folder) / path).read_bytes()

    def write_path(self, path: str, content: bytes, **_: Any) -> str:  # type: ignore[override]
        """Keeps a record under the name as it is."""
        assert "/" not in path, path
        (Path(self.folder) / path).write_bytes(content)
        return path


@pytest.mark.parametrize("is_async", [False, True])
async def test_storage_is_called_by_these_names_and_keys_stay_as_they_are(
    tmp_path: Path, is_async: bool
) -> None:
    """``read_path`` and ``write_path`` from threads, their a-names from a loop, ``_resolve_path`` by both."""
    from prefect.results import ResultStore

    storage = Kept(folder=str(tmp_path))
    kept = ResultStore(result_storage=storage, persist_result=True)
    if is_async:
        await kept.awrite({"value": 3}, key="a-key")
        record: Any = await kept.aread("a-key")
    else:
        written = threading.Thread(target=lambda: kept.write({"value": 3}, key="a-key"))
        written.start()
        written.join()
        record = None
    assert [file.name for file in tmp_path.iterdir()] == ["a-key"]
    assert recorded_result((tmp_path / "a-key").read_bytes()) == {"value": 3}
    assert record is None or record.result == {"value": 3}


def test_a_record_under_another_key_is_not_served(tmp_path: Path) -> None:
    """``ResultRecordMetadata.storage_key`` is the key that a record was written under."""
    from prefect.results import ResultStore

    storage = ArtifactRecords(store=str(tmp_path))
    ResultStore(result_storage=storage, persist_result=True).write({"value": 3}, key="score-a")
    assert recorded_result(storage.read_path("score-a")) == {"value": 3}  # type: ignore[arg-type]
    (tmp_path / "records/score-a").rename(tmp_path / "records/score-b")
    with pytest.raises(FileDamaged, match="records/score-b is damaged: it is the record of score-a"):
        storage.read_path("score-b")


def test_settings_hold_in_a_thread_without_a_context() -> None:
    """``prefect.context.GLOBAL_SETTINGS_CONTEXT`` is what such a thread falls back on."""
    found: list[str | None] = []
    address = "http://127.0.0.1:9/api/of-this-test"

    def look() -> None:
        found.append(get_settings_context().settings.api.url)

    with temporary_settings({PREFECT_API_URL: address}):
        for hold in (True, False):
            with settings_of_all_threads() if hold else temporary_settings({}):
                thread = threading.Thread(target=look)
                thread.start()
                thread.join()
    assert found[0] == address
    assert found[1] != address


def test_a_secret_block_is_loaded_without_a_loop() -> None:
    """``_sync`` makes Prefect's ``load`` a plain call."""
    from prefect.blocks.system import Secret

    load = inspect.unwrap(Secret.load)
    assert not inspect.iscoroutine(load)
    with pytest.raises(Exception, match=r"Connection|attempts"):  # and not an unexpected keyword
        prefect_adapter.secret_block("absent")


def test_prefects_server_is_made_by_this_call() -> None:
    from prefect.server.api.server import create_app

    assert "final" in inspect.signature(create_app).parameters


def test_leases_are_kept_in_files_by_the_module_that_the_server_is_told() -> None:
    from importlib import import_module

    from flows.server.app import settings

    named = settings(4200, None)["PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"]
    assert import_module(named).ConcurrencyLeaseStorage


def test_the_ui_reads_the_password_where_the_link_of_a_terminal_puts_it() -> None:
    import prefect

    served = Path(prefect.__file__).parent / "server" / "ui"
    assert any("prefect-password" in script.read_text("utf-8") for script in served.rglob("*.js"))


def test_a_pool_of_connections_opens_them_by_this_call() -> None:
    import aiohttp

    taken = list(inspect.signature(aiohttp.TCPConnector._create_connection).parameters)
    assert taken == ["self", "req", "traces", "timeout"]
    assert inspect.iscoroutinefunction(aiohttp.TCPConnector._create_connection)


def test_sacrebleu_counts_under_these_names() -> None:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.lib_ter import translation_edit_rate
    from sacrebleu.tokenizers.tokenizer_ter import TercomTokenizer

    assert BLEU()._extract_corpus_statistics(["a b"], [["a c"]]) == [[2, 2, 1, 0, 0, 0, 2, 1, 0, 0]]
    assert translation_edit_rate(["a", "b"], ["a", "c"])[0] == 1
    assert TercomTokenizer()("a  b") == "a b"


def test_pythons_patterns_are_read_by_its_own_parser() -> None:
    from re import _constants, _parser  # type: ignore[attr-defined]

    tree = _parser.parse("a+", 0)
    assert next(iter(tree))[0] is _constants.MAX_REPEAT
    assert tree.state.flags == int(re.UNICODE)


def _bases_of_prefect(file: Path) -> Iterator[str]:
    """Names of classes in a file that are made of Prefect's, and modules that are private to Prefect."""
    tree = ast.parse(file.read_text("utf-8"))
    theirs = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "prefect":
            theirs |= {alias.asname or alias.name for alias in node.names}
            if any(part.startswith("_") for part in str(node.module).split(".")):
                yield str(node.module)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
            if any(isinstance(base, ast.Name) and base.id in theirs for base in bases):
                yield node.name


def test_nothing_else_is_made_of_prefects_classes() -> None:
    found = {
        str(file.relative_to(PROJECT)): names
        for folder in ("flows", "tasks")
        for file in sorted((PROJECT / folder).rglob("*.py"))
        if (names := list(_bases_of_prefect(file)))
    }
    assert list(found) == ["tasks/prefect_adapter.py"], found


def test_the_form_of_parameters_is_that_of_the_function_and_made_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[object] = []
    theirs = prefect_adapter.parameter_schema

    def counted(function: Callable[..., object]) -> ParameterSchema:
        made.append(function)
        return theirs(function)

    monkeypatch.setattr(prefect_adapter, "parameter_schema", counted)

    def add(first: int, second: int = 2) -> int:
        """Adds.

        Args:
            first: the one
        """
        return first + second

    flow = served_flow(nullcontext, lambda: None, name="add", retries=1)(add)
    other = flow.with_options(retries=3)
    assert made == []
    assert [each.retries for each in (flow, other)] == [1, 3]
    for each in (flow, other):
        assert each.fn is add
        assert each.parameters == theirs(add) == theirs(each), "a deployment asks for that of the flow"
        assert each.validate_parameters({"first": "1"}) == {"first": 1, "second": 2}
    assert flow.parameters.properties["first"]["type"] == "integer"
