"""The process between an evaluation and a model's server: ``python -m tasks.serving.supervisor FOLDER``.

It waits for its places (GPUs), starts the server that the order in FOLDER describes, writes how far it is,
keeps a bounded log, and starts it again when it dies. It ends the server when the order is withdrawn or
SIGTERM comes, when the process that the server is for is gone, and when it has to give up. A guard, a process
of its own, does so when the supervisor itself is killed; the server's own process is then killed by the
kernel where it can do that. Imports little beyond the standard library, to start at once.
"""

import ctypes
import fcntl
import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import IO, Final

from tasks.serving import launch, records
from tasks.serving.records import Order, State, end_marked, lives, signal_group, started
from tasks.serving.weights import KnownWeights

TICK: Final = 0.1
STOP_SECONDS: Final = 10.0
"""How long a server may take to end by itself."""
PORTS_TRIED: Final = 3
TAKEN: Final = ("address already in use", "address in use")
_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG
_LIBC: Final = ctypes.CDLL(None)  # loaded here: between fork and exec nothing may be


class Stopped(Exception):
    """The server is not wanted any more."""


class Places:
    """Places of this host, each the lock of a file: the kernel gives it back when its last holder ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    def take(self, candidates: tuple[str, ...], count: int) -> tuple[str, ...] | None:
        """Takes ``count`` of the candidates, all or none of them; None where too few are free."""
        found: dict[str, int] = {}
        for name in candidates:
            if len(found) == count:
                break
            held = self._lock(name)
            if held is not None:
                found[name] = held
        if len(found) < count:
            for number in found.values():
                os.close(number)
            return None
        self._held |= found
        return tuple(found)

    def give_back(self, name: str) -> None:
        """Gives one place back."""
        os.close(self._held.pop(name))

    def _lock(self, name: str) -> int | None:
        # Reading is all that a lock needs: the file may be another user's.
        number = os.open(self._folder / name, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(number)
            return None
        return number

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The locks as a server inherits them: a place is not free while one of its processes lives."""
        return tuple(self._held.values())


class Guard:
    """A process that ends the server when the supervisor ends without having done so."""

    def __init__(self, order: Order) -> None:
        read, self._write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._write)
            os.setsid()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            _guard(read, order)
            os._exit(0)
        os.close(read)

    def tell(self, word: str) -> None:
        """Tells it the server's process group, or "done"."""
        with suppress(OSError):
            os.write(self._write, f"{word}\n".encode())

    def dismiss(self) -> None:
        """Lets it end: the server is gone."""
        self.tell("done")
        os.close(self._write)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _guard(read: int, order: Order) -> None:
    told = b""
    while piece := os.read(read, 4096):
        told += piece
    words = told.decode().split()
    if words[-1:] == ["done"]:
        return
    for word in words[-1:]:
        signal_group(int(word), signal.SIGKILL)
    end_container(order)
    end_marked(order.id)


def end_container(order: Order) -> None:
    """Ends the server's container, if it has one."""
    if order.container:
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(order.container, capture_output=True, timeout=60, check=False)


class Supervisor:
    """One server, from its order to its end."""

    def __init__(self, folder: Path, order: Order) -> None:
        self._folder = folder
        self._order = order
        self._state = State(supervisor=os.getpid(), supervisor_started=started(os.getpid()))
        self._log = records.BoundedLog(folder, order.log_bytes)
        self._places = Places(Path(order.locks))
        self._reserved: socket.socket | None = None
        self._guard = Guard(order)
        self._server: subprocess.Popen[bytes] | None = None
        self._drain: threading.Thread | None = None
        self._told_to_stop = False

    def run(self) -> None:
        """Serves until the server is not wanted any more, or can't be started."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            # First the state, then the look at the order: what withdraws it looks for a state afterwards.
            self._tell()
            self._pause(0)
            self._wait_for_places()
            lacking = launch.lacking_memory(self._order.bytes_needed, self._state.held)
            if lacking is not None:
                self._tell(phase=records.FAILED, reason=lacking)
                return
            self._serve()
        except Stopped:
            self._end()
            self._tell(phase=records.ENDED)
        except OSError as error:
            self._end()
            self._tell(phase=records.FAILED, reason=f"{error.strerror or error}: {error.filename or ''}")
        finally:
            self._end()
            self._log.close()
            self._guard.dismiss()

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._told_to_stop = True

    def _tell(self, **changes: object) -> None:
        self._state = replace(self._state, **changes)  # type: ignore[arg-type]
        records.write(self._folder / records.STATE, self._state)

    def _pause(self, seconds: float = TICK) -> None:
        """Waits; raises Stopped where nobody wants the server any more."""
        time.sleep(seconds)
        if self._told_to_stop or not lives(self._order.owner, self._order.owner_started):
            raise Stopped
        if not records.is_wanted(self._folder):
            raise Stopped

    def _wait_for_places(self) -> None:
        order = self._order
        while (held := self._places.take(order.candidates, order.places)) is None:
            self._pause(TICK * (1 + random.random()))
        self._tell(held=held)

    def _serve(self) -> None:
        """Starts the server, and again each time it dies after it was ready."""
        for _ in range(1 + self._order.restarts):
            reason = self._start()
            self._let_go_of_port()
            if reason is None and (reason := self._replaced()) is None:
                self._tell(phase=records.READY, reason="")
                assert self._server is not None
                while self._server.poll() is None:
                    self._pause()
                reason = f"it {_ended(self._server.returncode)} after it had been ready"
                self._end()
                if self._state.starts <= self._order.restarts:
                    self._tell(phase=records.STARTING, reason=reason)
                    continue
                reason += f", {self._state.starts} times"
            self._end()
            self._tell(phase=records.FAILED, reason=reason)
            return

    def _replaced(self) -> str | None:
        """Why what the server has loaded, at its start or when it was started again, may be other weights
        than it is asked for; None where it can't."""
        known = self._order.weights
        return None if known is None else KnownWeights(**known).replaced()

    def _start(self) -> str | None:
        """Starts the server and waits until it is ready; why it is not, or None."""
        reason = None
        for attempt in range(PORTS_TRIED):
            if not self._state.port:
                self._tell(port=self._free_port())
            if attempt:  # a server that does not set SO_REUSEADDR takes a reserved port for one in use
                self._let_go_of_port()
            self._launch()
            reason = self._until_ready()
            if reason is None or self._state.starts > 1 or not self._port_was_taken():
                return reason
            self._end()
            self._let_go_of_port()
            self._places.give_back(f"port-{self._state.port}")
            self._tell(port=0, starts=0)
        return reason

    def _port_was_taken(self) -> bool:
        said = "\n".join(records.last_lines(self._folder)).lower()
        return any(words in said for words in TAKEN)

    def _free_port(self) -> int:
        """A port that nothing listens on, and that no other supervisor of this host has chosen.

        It stays reserved while the server loads: a socket is bound that does not listen, beside which a
        server may bind its own, and nobody is given the port who asks for any.
        """
        while True:
            tried = socket.socket()
            for option in ("SO_REUSEADDR", "SO_REUSEPORT"):
                if hasattr(socket, option):
                    tried.setsockopt(socket.SOL_SOCKET, getattr(socket, option), 1)
            tried.bind((self._order.host, 0))
            port = int(tried.getsockname()[1])
            if self._places.take((f"port-{port}",), 1) is not None:
                self._reserved = tried
                return port
            tried.close()
            self._pause(0)

    def _let_go_of_port(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def _launch(self) -> None:
        order, devices = self._order, [name.removeprefix("gpu-") for name in self._state.held]
        gpus = [name for name in self._state.held if name.startswith("gpu-")]
        filled = {"{port}": str(self._state.port), "{devices}": ",".join(devices)}
        filled |= {f"{{device{number}}}": name for number, name in enumerate(devices)}
        environment = dict(order.environment)
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
            environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as the driver counts them
        self._tell(phase=records.STARTING, starts=self._state.starts + 1)
        self._server = subprocess.Popen(
            [launch.filled(word, filled) for word in order.command], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, cwd=self._folder,
            start_new_session=True, pass_fds=self._places.descriptors, preexec_fn=_die_with_parent,
        )  # fmt: skip
        self._guard.tell(str(self._server.pid))
        self._tell(group=self._server.pid)
        assert self._server.stdout is not None
        self._drain = threading.Thread(target=self._keep_log, args=(self._server.stdout,), daemon=True)
        self._drain.start()

    def _keep_log(self, output: IO[bytes]) -> None:
        with output, suppress(OSError, ValueError):
            while piece := os.read(output.fileno(), 65_536):
                self._log.write(piece)

    def _until_ready(self) -> str | None:
        """None once the server answers; else why it does not."""
        assert self._server is not None
        until = time.monotonic() + self._order.start_seconds
        said = "nothing listens"
        while time.monotonic() < until:
            self._pause()
            if self._server.poll() is not None:
                if self._drain is not None:
                    self._drain.join(timeout=5)  # its last words
                return f"it {_ended(self._server.returncode)} before it was ready"
            said = self._asked()
            if not said:
                return None
        return f"it was not ready within {self._order.start_seconds:g} s ({said})"

    def _asked(self) -> str:
        """Empty where the server says that it is ready; else what it says."""
        connection = http.client.HTTPConnection(self._order.host, self._state.port, timeout=5)
        try:
            connection.request("GET", self._order.ready)
            response = connection.getresponse()
            response.read(65_536)  # an answer closed unread resets the connection, which servers log
            status = response.status
            return "" if status < 300 else f"{self._order.ready} answers {status}"
        except (OSError, http.client.HTTPException) as error:
            return f"{self._order.ready}: {error or type(error).__name__}"
        finally:
            connection.close()

    def _end(self) -> None:
        """Ends the server and everything that it started."""
        server = self._server
        if server is None:
            return
        self._server = None
        signal_group(server.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.wait(STOP_SECONDS)
        signal_group(server.pid, signal.SIGKILL)
        end_container(self._order)
        end_marked(self._order.id)  # neither this process nor the guard bears the mark
        server.wait()
        if self._drain is not None:
            self._drain.join(timeout=5)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        _LIBC.prctl(_DEATH_SIGNAL, signal.SIGKILL)


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def main() -> None:
    """Supervises the server of the folder that the command line names."""
    folder = Path(sys.argv[1])
    order = records.read_order(folder)
    if order is None:
        sys.exit(f"{folder}: no order to start a server")
    Supervisor(folder, order).run()


if __name__ == "__main__":
    main()
