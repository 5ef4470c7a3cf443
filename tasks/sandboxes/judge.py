"""Judges programs from outside: starts each in a sandbox as a plain ``python``, keeps its clock and its
limits, and says how it ended.

It is a program of its own that imports nothing of the project, and runs outside of every sandbox. Jobs
come on stdin and results go to stdout, each with its length before it. It ends when stdin does, and with it
all that it started. A program holds nothing of it: its stdin is a file that can't be changed, its stdout and
stderr are pipes that anything may be written to. What is known of a program is its exit status, what it
printed, and what the kernel tells of its processes.

bubblewrap says which process is the first of the sandbox, waits until it has its limits, and says after the
end whether the program was begun. A container's first process says so on stderr before anything of the
program runs.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

TICK = 0.05
"""Seconds between two looks at the memory and the files of a program."""
START_SECONDS = 30.0
"""How long a sandbox may take to begin. A program's own time counts from there."""
END_SECONDS = 10.0
"""How long what was killed may take to end."""
OPEN_FILES = 512
BEGUN = b"\0begun\n"
"""What a container's first process writes to stderr, just before it becomes the program."""
INODES_PER_MB = 256
PR_SET_CHILD_SUBREAPER = 36
CREATED_BY_ENGINE = 125
"""Exit codes of container engines from here to 127 say that the program could not be started."""


def main() -> None:
    """Runs jobs until stdin ends."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # so that what a sandbox leaves is reaped
    # What nohup, cron or a shell's & had us ignore, programs would ignore, too, and end otherwise.
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # which Python itself gives back
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    while (head := _read_exactly(8)) is not None:
        job = _read_exactly(struct.unpack(">Q", head)[0])
        if job is None:
            return
        result = json.dumps(_judged(json.loads(job))).encode()
        write_all(1, struct.pack(">Q", len(result)) + result)


def _judged(job: dict[str, Any]) -> dict[str, Any]:
    """The runs of a program, one a case; those after one that took too much are not run."""
    runs = []
    for text in job["inputs"] if job["inputs"] is not None else [""]:
        try:
            run = Run(job, text)
            runs.append(run.result())
        except OSError as error:  # no process, no file, no memory for them: nothing of the program ran
            return {"error": f"it could not be started: {error}", "runs": []}
        if not run.begun:
            return {"error": run.reason(), "runs": []}
        if run.ended_by is not None:
            break
    return {"error": None, "runs": runs}


class Run:
    """One run of a program: its sandbox, what it printed, and how it ended."""

    def __init__(self, job: dict[str, Any], text: str) -> None:
        self.job, self.limits = job, job["limits"]
        self.mark = job["mark"].encode()
        self.by_status = "@status" in job["command"]
        self.ended_by: str | None = None
        self.note = ""
        self.began: float | None = None
        self.first: int | None = None
        self.first_fd: int | None = None
        self.code: int | None = None
        self.said = b""
        self.output = {"stdout": b"", "stderr": b""}
        self.room = self.limits["output_kb"] * 1024 + 2 * len(self.mark) + len(BEGUN)
        self.usage = 0.0
        self.group: Cgroup | None = None
        self.wall = 0.0
        self._start(text.encode("utf-8", "surrogatepass"))
        try:
            self._watch()
        finally:
            self._close()

    def _start(self, text: bytes) -> None:
        data = {name: _sealed(base64.b64decode(value)) for name, value in self.job["data"].items()}
        if "before_stdin" in data:
            text = base64.b64decode(self.job["data"]["before_stdin"]) + text
        source, out, err = _sealed(text), os.pipe(), os.pipe()
        status, block = os.pipe(), os.pipe()
        for fd in (source, out[1], err[1]):
            os.fchmod(fd, 0o444 if fd == source else 0o666)  # may be opened by name by the program's user
        given = {**data, "status": status[1], "block": block[0]}
        command = [str(given[part[1:]]) if part[:1] == "@" else part for part in self.job["command"]]
        passed = [fd for name, fd in given.items() if f"@{name}" in self.job["command"]]
        self.started = time.monotonic()
        theirs = [*data.values(), source, out[1], err[1], status[1], block[0]]
        ours = [out[0], err[0], status[0], block[1]]
        try:
            self.process = subprocess.Popen(
                command, stdin=source, stdout=out[1], stderr=err[1], pass_fds=passed, cwd="/"
            )
        except OSError:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        self.pipes = {out[0]: "stdout", err[0]: "stderr", status[0]: "status"}
        self.block = block[1]
        self.waited_for = [block[1]] if self.by_status else []

    def _watch(self) -> None:
        look = self.started + TICK
        while self.pipes and self.ended_by is None and not self._told_its_end():
            now = time.monotonic()
            deadline = self.started + START_SECONDS
            if self.began is not None:
                deadline = self.began + self.limits["seconds"]
            if now >= deadline:
                self._end("timeout", f"it took more than {self.limits['seconds']:g} s (limits.seconds)")
            elif now >= look:
                look = now + TICK
                self._look()
            else:
                self._listen(min(deadline, look) - now)
        self._finish()

    def _told_its_end(self) -> bool:
        """bubblewrap has said how the program ended; what the program left behind may still run."""
        return self.by_status and self.code is not None

    def _listen(self, wait: float) -> bool:
        """Takes what is printed and told within ``wait`` seconds; False where there was nothing."""
        waiting = select.poll()
        for fd in (0, *self.pipes):
            waiting.register(fd, select.POLLIN)
        for fd in self.waited_for:
            waiting.register(fd, 0)
        ready = waiting.poll(wait * 1_000)
        for fd, _ in ready:
            if fd == self.block:  # it has read our word and closed its end: all is set up
                self.waited_for, self.began = [], time.monotonic()
                continue
            if fd == 0:  # nobody waits for this any more
                self._kill()
                os._exit(0)
            data = os.read(fd, 1 << 16)
            if not data:
                os.close(fd)
                del self.pipes[fd]
            elif self.pipes[fd] == "status":
                self._told(data)
            else:
                self._printed(self.pipes[fd], data)
        return bool(ready)

    def _told(self, data: bytes) -> None:
        """What bubblewrap says of itself: lines of JSON."""
        *lines, self.said = (self.said + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                told = json.loads(line)
                self.code = told.get("exit-code", self.code)
                if "child-pid" in told:
                    self._begin(told["child-pid"])

    def _begin(self, first: int) -> None:
        """The first process of the sandbox, which will wait for our word, gets its limits, and the word."""
        with contextlib.suppress(ProcessLookupError, BrokenPipeError):  # it has ended, and said why
            self.first_fd = os.pidfd_open(first)
            self.first = first
            limit_process(first, self.limits)
            if self.job["cgroup"]:
                self.group = Cgroup(self.job["cgroup"], self.limits, first)
            os.write(self.block, b"\n")

    def _printed(self, stream: str, data: bytes) -> None:
        room = self.room - sum(map(len, self.output.values()))
        self.output[stream] += data[: max(room, 0)]
        if not self.by_status and self.began is None and self.output["stderr"].startswith(BEGUN):
            self.began = time.monotonic()
        if len(data) > room:
            self._end("output", f"it printed more than {self.limits['output_kb']} kB (limits.output_kb)")

    def _look(self) -> None:
        """Ends a program whose processes hold too much memory, or that made too many files."""
        if self.first is None or self.began is None:  # its folders are this machine's until all is set up
            return
        allowed = self.limits["memory_mb"] << 20
        if memory_of(self.first) > allowed and memory_of(self.first, exactly=True) > allowed:
            self._end("memory", f"it held more than {self.limits['memory_mb']} MB (limits.memory_mb)")
        elif _files_below(self.first) > (most := self.limits["disk_mb"] * INODES_PER_MB):
            self._end(
                "memory", f"it made more than {most} files and folders ({INODES_PER_MB} a limits.disk_mb)"
            )

    def _end(self, reason: str, note: str) -> None:
        if self.ended_by is None:
            self.ended_by, self.note = reason, note

    def _kill(self) -> None:
        """Ends the sandbox by its first process, so that it can still say whether the program was begun."""
        if self.first_fd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.first_fd, signal.SIGKILL)
        elif not self.by_status and self.job["stop"]:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    self.job["stop"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
                )
        if self.first_fd is None:
            self.process.kill()
        if self.group is not None:
            self.group.kill()

    def _finish(self) -> None:
        """Ends and reaps all that is left of the sandbox, and takes what it printed before."""
        if self.ended_by is not None or self.by_status:
            if self.first is not None and self.code is None:
                self.usage = cpu_of(self.first)  # it is killed, and nobody waits for it
            self._kill()
        deadline = time.monotonic() + END_SECONDS
        while self.process.returncode is None and time.monotonic() < deadline:
            self._take_rest(TICK)
            self._reap(block=not self.pipes)
        if self.process.returncode is None:
            self.process.kill()
        self._reap(block=True)
        self.wall = time.monotonic() - (self.began or self.started)
        self._take_rest(0.0)
        if not self.by_status:
            self.code = self.process.returncode

    def _take_rest(self, wait: float) -> None:
        while self.pipes and self._listen(wait):
            wait = 0.0

    def _reap(self, block: bool) -> None:
        """Waits for what has ended: bubblewrap, and the first process of its sandbox, which is ours then."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, 0 if block else os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.usage += usage.ru_utime + usage.ru_stime
            if pid == self.process.pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)

    def _close(self) -> None:
        if self.process.returncode is None:  # something failed on the way
            self._kill()
            self.process.kill()
            self._reap(block=True)
        for fd in (*self.pipes, self.block, self.first_fd):
            if fd is not None:
                os.close(fd)
        if self.group is not None:
            self.group.remove()

    @property
    def begun(self) -> bool:
        """Whether anything of the program ran."""
        if self.by_status:
            return self.code is not None
        not_started = range(CREATED_BY_ENGINE, CREATED_BY_ENGINE + 3)
        return self.began is not None and (self.ended_by is not None or self.code not in not_started)

    def reason(self) -> str:
        """Why nothing of the program ran."""
        if self.ended_by is not None:
            seconds = START_SECONDS if self.began is None else self.limits["seconds"]
            return f"it did not begin within {seconds:g} s"
        said = self.output["stderr"].decode("utf-8", "replace").strip()[-2_000:]
        return f"it ended with exit code {self.process.returncode}: {said or 'no word'}"

    def result(self) -> dict[str, Any]:
        """How it ended, and what it printed."""
        finished = not self.mark or any(self.mark in text for text in self.output.values())
        shown = {name: text.replace(self.mark, b"") for name, text in self.output.items()}
        shown["stderr"] = shown["stderr"].removeprefix(BEGUN) if not self.by_status else shown["stderr"]
        printed = {name: text.decode("utf-8", "replace") for name, text in shown.items()}
        code = self.code if self.code is not None else -1
        signalled = code - 128 if 128 < code < 128 + signal.NSIG else None
        if self.ended_by is None and self.group is not None and self.group.out_of_memory():
            self.ended_by, self.note = "memory", "its processes took more than its cgroup has"
        elif self.ended_by is None and signalled == signal.SIGXCPU:
            self.ended_by, self.note = "timeout", "it took more CPU time than limits.seconds"
        ended = self.ended_by
        if ended is None and not self.by_status and signalled == signal.SIGKILL:
            ended, self.note = "memory", "the container was ended: its memory was full"
        if (
            ended is None
            and code != 0
            and printed["stderr"].rstrip().rpartition("\n")[2][:11] == "MemoryError"
        ):
            ended = self.ended_by = "memory"
        if ended is None:
            ended = "done" if code == 0 and finished else "failed"
            if code == 0 and not finished:
                self.note = "it ended before its last line"
        if self.note:
            printed["stderr"] = f"{printed['stderr'].rstrip()}\n[ended: {self.note}]".lstrip()
        return {
            "ended": ended,
            "exit_code": None if signalled or self.code is None else code,
            "signal": signalled,
            "cpu_seconds": round(self.usage, 4),
            "wall_seconds": round(self.wall, 4),
            **printed,
        }


def limit_process(pid: int, limits: dict[str, Any]) -> None:
    """Gives a process its limits. Raises OSError where one is above what the machine lets it have: with less,
    a program would be wrong here that is right elsewhere."""
    # Of processes one more: bubblewrap's own first one.
    held = {**rlimits(limits), "RLIMIT_NPROC": limits["processes"] + limits["own_processes"]}
    for name, value in held.items():
        kind = getattr(resource, name)
        try:
            resource.prlimit(pid, kind, (value, value))
        except PermissionError as error:
            hard = resource.prlimit(pid, kind)[1]
            raise OSError(
                f"{name} has to be {value}, and the hard limit here is {hard}: raise it (ulimit -H)"
            ) from error


def rlimits(limits: dict[str, Any]) -> dict[str, int]:
    """The kernel's limits of each process, in every sandbox."""
    return {
        "RLIMIT_AS": limits["memory_mb"] << 20,
        "RLIMIT_CPU": int(limits["seconds"]) + 1,
        "RLIMIT_FSIZE": limits["disk_mb"] << 20,
        "RLIMIT_NOFILE": OPEN_FILES,
        "RLIMIT_CORE": 0,
    }


class Cgroup:
    """A control group of its own below ``parent``, for one run: memory and processes of all together."""

    def __init__(self, parent: str, limits: dict[str, Any], first: int) -> None:
        self.path = os.path.join(parent, f"nightjar-{os.getpid()}-{first}")
        os.mkdir(self.path)
        most = (limits["memory_mb"] + limits["disk_mb"] + limits["shared_mb"]) << 20
        try:
            self._write("memory.max", str(most))
            with contextlib.suppress(OSError):  # there is no swap
                self._write("memory.swap.max", "0")
            self._write("pids.max", str(limits["processes"] + limits["own_processes"]))
            self._write("cgroup.procs", str(first))
        except OSError:
            self.remove()
            raise

    def _write(self, name: str, value: str) -> None:
        with open(os.path.join(self.path, name), "w") as file:
            file.write(value)

    def kill(self) -> None:
        """Ends all that is in it."""
        with contextlib.suppress(OSError):  # Linux before 5.14: the first process's end does it
            self._write("cgroup.kill", "1")

    def out_of_memory(self) -> bool:
        """Whether the kernel ended a process because the group was full."""
        try:
            with open(os.path.join(self.path, "memory.events")) as file:
                counts = dict(line.split() for line in file)
        except (OSError, ValueError):
            return False
        return int(counts.get("oom_kill", 0)) > 0

    def remove(self) -> None:
        """Removes it, once what was in it is gone."""
        for _ in range(100):
            try:
                os.rmdir(self.path)
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.01)
            else:
                return


def memory_of(first: int, exactly: bool = False) -> int:
    """Bytes of resident memory of a process and all below it; ``exactly``: what several share counts once."""
    return sum(_shared_fairly(pid) if exactly else _resident(pid) for pid in _family(first))


def cpu_of(first: int) -> float:
    """Seconds of CPU time of a process, all below it, and those that these have waited for."""
    ticks = 0
    for pid in _family(first):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/stat") as file:
            ticks += sum(map(int, file.read().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _family(first: int) -> Iterator[int]:
    waiting = [first]
    while waiting:
        pid = waiting.pop()
        yield pid
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children") as file:
                    waiting += map(int, file.read().split())


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0


def _shared_fairly(pid: int) -> int:
    """Its resident memory and swap, what it shares with n processes counted as an n-th."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in file)
                     if name in ("Pss", "SwapPss")}  # fmt: skip
        return sum(sizes.values()) << 10
    except (OSError, IndexError, ValueError):
        return _resident(pid)


def _files_below(first: int) -> int:
    """How many files and folders a program has made."""
    made = 0
    for place in ("tmp", "dev/shm"):
        with contextlib.suppress(OSError):
            room = os.statvfs(f"/proc/{first}/root/{place}")
            made += room.f_files - room.f_ffree
    return made


def _sealed(content: bytes) -> int:
    """A file in memory that nobody can change."""
    import fcntl

    fd = os.memfd_create("input", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    write_all(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0xF)
    return fd


def _read_exactly(size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_all(fd: int, content: bytes) -> None:
    """Writes the content to the end, however much a call takes."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    main()
    sys.exit(0)
