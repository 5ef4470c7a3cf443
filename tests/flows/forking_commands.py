"""A process that has imported the program and forks one command after the other, so that a hundred of them
cost a hundred runs and not a hundred starts of Python.

Reads orders from stdin, one JSON object a line, and answers each with two lines: the child's process id, then
how it ended. An order may bring misfortune; what the command prints ends with the file operations of each
stage.
"""

import ctypes
import errno
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect.context import TaskRunContext

from flows.eval import session  # noqa: F401 (imported for its children)
from flows.eval.__main__ import main

OPERATIONS = (
    "open",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.chmod",
    "os.listdir",
    "os.scandir",
    "os.truncate",
)
WRITES = os.O_WRONLY | os.O_RDWR


class Misfortune:
    """What befalls a command at its file operations below some folders: SIGKILL at the n-th of a stage, or a
    disk that is full from the n-th on.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self.folders = tuple(order["folders"])
        self.counts: Counter[str] = Counter()
        self.kill, self.full_at = order.get("kill"), order.get("full_at")
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in OPERATIONS or not arguments:
            return
        path = arguments[0]
        path = os.fsdecode(path) if isinstance(path, (str, bytes)) else ""
        if not path.startswith(self.folders):
            return
        context = TaskRunContext.get()
        stage = context.task.name if context is not None else "between"
        self.counts[stage] += 1
        if [stage, self.counts[stage]] == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        writes = event in ("os.rename", "os.mkdir") or (event == "open" and (arguments[2] or 0) & WRITES)
        if self.full_at is not None and self.counts.total() >= self.full_at and writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def turn_clock(shim: str | None) -> None:
    """From now on the clock jumps by a day, back and forth: that of the whole process by a library that was
    loaded before the C library, or else Python's own."""
    if shim is not None:
        ctypes.c_int.in_dll(ctypes.CDLL(shim), "jumping").value = 1
        return
    real, calls = time.time, iter(range(1 << 60))
    time.time = lambda: real() + 86_400 * (next(calls) // 20 % 3 - 1)


def limit_disk(folder: str, size: int | None) -> None:
    """Makes the file system of the folder, which is this process's own, so large."""
    options = f"remount,size={size}" if size is not None else "remount,size=50%"
    subprocess.run(["mount", "-o", options, folder], check=True)


def child(order: dict[str, Any]) -> None:
    """Runs one command and ends the process with its code."""
    os.setsid()
    said = os.open(order["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(said, 1)
    os.dup2(said, 2)
    code = 70
    if order.get("clock"):
        turn_clock(os.environ.get("LD_PRELOAD"))
    misfortune = Misfortune(order)
    try:
        sys.argv = ["flows.eval", *order["arguments"]]
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        counts, misfortune.folders = dict(misfortune.counts), ("nowhere",)
        print(f"file operations: {json.dumps(counts)}")
        if "warm" in order:
            Path(order["warm"]).write_text("\n".join(sys.modules))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main_loop() -> None:
    """Serves orders until stdin ends."""
    disk = os.environ.get("OWN_DISK")
    if disk is not None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", "none", disk], check=True)
        (Path(disk) / "journal").mkdir()
        subprocess.run(["mount", "--bind", f"{disk}/journal", os.environ["JOURNAL"]], check=True)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if disk is not None:
            limit_disk(disk, order.get("disk"))
        started = os.fork()
        if not started:
            child(order)
        print(started, flush=True)
        code = os.waitstatus_to_exitcode(os.waitpid(started, 0)[1])
        if "warm" in order and Path(order["warm"]).is_file():
            for name in Path(order["warm"]).read_text().splitlines():
                with suppress(Exception):  # modules that are made while a program runs
                    importlib.import_module(name)
        print(code, flush=True)


main_loop()
