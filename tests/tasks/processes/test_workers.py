"""Steps that processes of their own compute: what they return, raise and leave."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from metrics.errors import DataError, NightjarError
from tasks.processes import workers as module
from tasks.processes.workers import WorkerDied, Workers, workers, working
from tasks.store.home import PROJECT


def place(value: object) -> tuple[object, int, str]:
    return value, os.getpid(), os.environ["NIGHTJAR_SAID"]


def refuse(text: str) -> None:
    raise DataError(text)


class TwoWords(NightjarError):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def refuse_oddly() -> None:
    raise TwoWords("no", "way")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_without_processes_a_step_is_computed_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_SAID", "here")
    assert not workers().warm
    assert workers().compute(place, 1) == (1, os.getpid(), "here")
    with pytest.raises(DataError, match="bad"):
        workers().compute(refuse, "bad")


def test_no_more_steps_are_computed_in_place_than_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_in_place", threading.BoundedSemaphore(2))
    under_way, most = [0], [0]

    def step(number: int) -> int:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        time.sleep(0.05)
        under_way[0] -= 1
        return number

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(lambda number: workers().compute(step, number), range(6))) == list(range(6))
    assert most == [2]


def test_runs_side_by_side_share_processes() -> None:
    with working(2) as outer:
        with working(1) as inner:
            assert inner is outer
            assert inner.count == 2
        assert outer.count == 2
    assert workers().count == 0


class Watched(list[int]):
    """The counts of runs; whoever looks through them when they are none lets another run begin."""

    def __iter__(self) -> Iterator[int]:
        seen = list(super().__iter__())
        if not seen and not self.began.is_set():
            self.began.set()
            self.begun.wait(0.3)  # as long as it takes, where nothing keeps it from beginning
        return iter(seen)

    began: threading.Event
    begun: threading.Event


def test_a_run_that_begins_while_the_last_one_ends_has_its_processes() -> None:
    made, over = Workers(0), threading.Event()
    made._runs = counts = Watched()
    counts.began, counts.begun = threading.Event(), threading.Event()

    def begin() -> int:
        assert counts.began.wait(30)
        with made.lent(2):
            counts.begun.set()
            assert over.wait(30)
            return made.count

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(begin)
        with made.lent(2):
            pass
        over.set()
        assert other.result(30) == 2


@pytest.mark.services
def test_processes_compute_and_raise_and_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    # The server of forks finds this file by its name.
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(module, "STAGES", ())
    for function in (place, refuse, refuse_oddly, die):
        monkeypatch.setattr(function, "__module__", "test_workers")
    monkeypatch.setenv("NIGHTJAR_SAID", "run")
    made = Workers(2)
    try:
        value, process, said = made.compute(place, "x")
        assert (value, said) == ("x", "run")
        assert process != os.getpid()
        assert made.compute(place, lambda: None)[1] == os.getpid()  # no pickle can hold it
        with pytest.raises(DataError, match="bad"):
            made.compute(refuse, "bad")
        with pytest.raises(RuntimeError, match="TwoWords: no way"):
            made.compute(refuse_oddly)
        with pytest.raises(WorkerDied):
            made.compute(die)
        assert made.compute(place, 2)[1] not in (os.getpid(), process)
    finally:
        made.close()
    assert not made.warm


KILLED = """
import os, sys, time
from tasks.processes import workers

if __name__ == "__main__":
    workers.STAGES = workers.LATE = ()
    made = workers.Workers(2)
    if "fork" in sys.argv:
        made.fork(2)
    made.compute(os.getpid)
    waiting = [made.submit(time.sleep, 600) for _ in range(2)]
    time.sleep(1)
    print(*(process.pid for process in made._pool._processes.values()), flush=True)
    time.sleep(600)
"""


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.services
@pytest.mark.parametrize("how", ["fork", "forkserver"])
def test_processes_end_with_a_run_that_is_killed(tmp_path: Path, how: str) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py"), how]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        processes = [int(pid) for pid in run.stdout.readline().split()]
        assert processes
        assert all(map(lives, processes))
        run.kill()
        ended = time.monotonic() + 60
        while any(map(lives, processes)) and time.monotonic() < ended:
            time.sleep(0.1)
        assert not any(map(lives, processes))


INTERRUPTED = """
import os, sys
from tasks.prefect_adapter import LocalProcesses
from tasks.processes import workers

workers.STAGES = workers.LATE = ()
made = workers.Workers(2)
made.compute(os.getpid)
with LocalProcesses(max_workers=1) as runner:
    runner._executor.submit(os.getpid).result()
    os._exit(130)  # as at Ctrl-C
"""


def ended(code: str) -> tuple[int, str]:
    """With which exit code a Python ends that runs so much, and what it prints as errors."""
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False)
    return ran.returncode, ran.stderr


def test_a_run_that_is_ended_at_once_leaves_no_warning_of_what_its_processes_shared() -> None:
    assert ended(INTERRUPTED) == (130, "")


BEGINNING = """
import os, signal
from multiprocessing import forkserver
from tasks.prefect_adapter import LocalProcesses
from tasks.processes import workers

workers.STAGES = ("pandas",)
workers._context()
os.kill(forkserver._forkserver._forkserver_pid, signal.SIGINT)
workers.Workers(2).compute(os.getpid)
with LocalProcesses(max_workers=1) as runner:
    begun = runner._resolver_executor.submit(runner._executor.submit, os.getpid).result()
    for process in runner._executor._processes:
        os.kill(process, signal.SIGINT)
    begun.result()
"""


def test_ctrl_c_leaves_no_traceback_of_processes_that_are_about_to_begin() -> None:
    """A terminal tells all of them: in the middle of their imports, before they leave it to the run."""
    assert ended(BEGINNING) == (0, "")


FORKED = """
import os, sys, warnings
from tasks.processes import workers
from tasks.usercode.load import load_function

warnings.simplefilter("error")
workers.STAGES = workers.LATE = ()
assert workers.may_fork()
known = object()  # what only a copy of this process can have
def is_known(number):
    return number == id(known) and os.getppid() == os.getpid_of_run
os.getpid_of_run = os.getpid()

workers.prepare(1)
assert not workers.workers().warm
workers.prepare(2)
workers.prepare(2)
assert workers.workers().warm
with workers.working(2) as pool:
    assert pool.compute(is_known, id(known))
    assert pool.compute(os.getpid) != os.getpid()
assert not workers.workers().warm

with open(sys.argv[1], "w") as file:
    file.write("def own(): return 1\\n")
load_function(sys.argv[1] + ":own", ".")
assert not workers.may_fork()
print("done")
"""


@pytest.mark.services
def test_a_copy_of_the_process_computes_beside_it(tmp_path: Path) -> None:
    (tmp_path / "forked.py").write_text(FORKED)
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "forked.py"), str(tmp_path / "own.py")],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("done\n", "")


def test_no_copy_is_made_beside_other_threads() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert not module.may_fork()
    finally:
        over.set()
        thread.join()
