"""How every command line of the project speaks: one line while it has nothing to draw yet, an exit code at
its end, and one line that says what to fix.

Each command defines an ``App``, which ``command_line`` runs; ``status`` shows what it is doing. Imports
nothing of Prefect, whose settings are made first (``quiet_prefect``).

``nightjar eval|compare|history|…`` has the command lines under one name, so that a shell can complete
them: ``nightjar --install-completion`` does that once; ``python -m flows.eval`` and ``nightjar eval`` are
the same command.
"""

import os
import signal
import sys
import threading

if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    and (
        getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "").startswith("flows.")
        or os.path.basename(getattr(sys.modules["__main__"], "__file__", None) or "") == "nightjar"
    )
):
    # Ctrl-C ends a command without a traceback while the imports below run, and those of the command's
    # module, a second together: there is nothing to put away. ``raise_interrupts`` ends that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import atexit
import getpass
import importlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from traceback import walk_tb
from types import FrameType
from typing import Any, Final, NoReturn, TextIO, TypeVar, cast
from weakref import WeakKeyDictionary

import orjson
import typer
from typer.core import TyperCommand, TyperGroup

from metrics.errors import NightjarError, named, printable
from tasks.processes.garbage import collect_rarely
from tasks.reporting.streams import EscapedStream, drop_unread, raw, shown_safely
from tasks.store.errors import STORE_LOG

FAILED: Final = 1
"""A pair failed, the error budget was exceeded, or a gate said regression."""
REFUSED: Final = 2
"""Refused before anything started."""
UNDECIDED: Final = 3
"""A gate could not decide."""
INTERRUPTED: Final = 130
"""Ended by Ctrl-C; finished responses are kept."""


class NoEmptyWords(TyperCommand):
    """A command that takes no empty text for an option or argument: it would count as left out, and the
    project's own store be pruned where another was meant."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the words; raises BadParameter for what is empty."""
        given = self.make_parser(ctx).parse_args(args=list(args))[0]
        params: list[Any] = self.get_params(ctx)
        for param in params:
            value = given.get(param.name or "")
            if not ctx.resilient_parsing and "" in (value if isinstance(value, list | tuple) else [value]):
                raise typer.BadParameter(EMPTY, ctx=ctx, param=param)
        return super().parse_args(ctx, args)


EMPTY: Final = "it is empty, which a shell makes of a variable that is not set; give a value, or leave it out"


F = TypeVar("F", bound=Callable[..., Any])


class App(typer.Typer):
    """A command's application, without markup in its help and tracebacks of typer's own."""

    def __init__(self) -> None:
        super().__init__(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

    def command(self, name: str | None = None, **given: Any) -> Callable[[F], F]:
        """As typer's; the command takes no empty words."""
        return super().command(name, **{"cls": NoEmptyWords} | given)

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Runs the command and exits."""
        command_line(self, arguments)


def examples(*lines: str) -> str:
    """The end of a command's help: commands to copy, one a line."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)]) + "\n"


def raise_interrupts() -> None:
    """Has Ctrl-C raise KeyboardInterrupt again, now that all is imported: a command may have to put away what
    it began."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def command_line(app: typer.Typer, arguments: Sequence[str] | None = None) -> None:
    """Runs the application on ``arguments`` (default: the process's own) and exits.

    What the user can fix, a NightjarError, is one line on stderr and exit code 2, never a traceback. An
    exit that somebody else asks for, a library or a user's code, is a failure, with a line that says so; so
    is what else is no ``Exception``. A warning of a metric or of the user's code is one line, too, from now
    on.
    """
    quiet_prefect()
    raise_interrupts()
    collect_rarely()
    warnings.showwarning = show_warning
    _warned.clear()
    given = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in given
    with (
        shown_safely(),
        _document_alone(as_json),
        _output_written(),
        _waits_told(),
        _left_by_nobody(),
        _interrupts() as interrupted,
    ):
        try:
            _refuse_other_bytes(given)
            app(arguments)
        except NightjarError as error:
            clear_status()
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(REFUSED) from None
        except KeyboardInterrupt:
            raise
        except Exception:
            # Python and pydantic make other errors of a Ctrl-C that meets a class or a schema being made, as
            # imports do for two seconds and more.
            if not interrupted.is_set():
                raise
            raise SystemExit(INTERRUPTED) from None
        except BaseException as ended:
            frames = list(walk_tb(ended.__traceback__))
            if isinstance(ended, SystemExit) and _is_at_its_end(frames):
                raise
            frame, line = frames[-1]
            place = f"{frame.f_code.co_filename}:{line}"
            clear_status()
            print(f"error: {place} ended the command before it was done ({named(ended)})", file=sys.stderr)
            raise SystemExit(FAILED) from None


def _refuse_other_bytes(arguments: Sequence[str]) -> None:
    """Raises NightjarError for an argument that no document can hold: neither a manifest nor a request to
    Prefect."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            shown = repr(os.fsencode(argument)).removeprefix("b")
            raise NightjarError(f"the argument {shown} is not UTF-8; use another name") from None


_COMMANDS: Final = frozenset({"typer", "click"})
"""Packages that call a command, and end it when it is done."""
_OWN: Final = frozenset({"flows", "__main__"})
"""Where commands are: ``python -m`` gives a module of ``flows`` the other name."""


def _is_at_its_end(frames: Sequence[tuple[FrameType, int]]) -> bool:
    """Whether a command asked for the exit that these frames led to.

    What typer ends may lie below it all the same: libraries put functions of their own in the place of
    ``sys.exit``.
    """
    packages = [frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in frames]
    last = max(place for place, name in enumerate(packages) if name in _COMMANDS | _OWN)
    return packages[last] in _COMMANDS or last == len(frames) - 1


_document: TextIO | None = None
"""Where the JSON document goes that a command was asked for; None: standard output."""


@contextmanager
def _document_alone(as_json: bool) -> Iterator[None]:
    """A block in which standard output has the document of ``print_json`` alone: what users' code, libraries
    and their processes print goes to stderr.
    """
    global _document
    if not as_json:
        yield
        return
    before = sys.stdout
    kept = _document = _kept_stdout(before)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        _document, sys.stdout = None, before
        if kept is not before:
            kept.close()


def _kept_stdout(stream: TextIO) -> TextIO:
    """The stream for the document. That of the process gets a descriptor of its own, and its old one is that
    of stderr from now on, for processes begun here and for what is printed at the very end.
    """
    if raw(stream) is not sys.__stdout__:
        return stream
    stream.flush()
    try:
        kept = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # closed by who began the process
        return stream
    return cast(TextIO, EscapedStream(os.fdopen(kept, "w", encoding="utf-8")))


@contextmanager
def _output_written() -> Iterator[None]:
    """A block at whose end all is written that a command had to say; else a line on stderr says why not, and
    the exit code is 2, or the command's own where that is not 0."""
    ended: BaseException | None = None
    try:
        yield
    except (OSError, SystemExit) as raised:
        ended = raised
    if (refusal := _unwritten(lost=isinstance(ended, OSError))) is not None:
        clear_status()
        print(f"error: standard output can't be written: {refusal.strerror}", file=sys.stderr)
        raise SystemExit((isinstance(ended, SystemExit) and ended.code) or REFUSED)
    if ended is not None:
        raise ended


def _unwritten(lost: bool) -> OSError | None:
    """Why standard output takes no more; what it still holds is dropped, or Python would try again at its
    end. A pipe that nobody reads any more is no error. ``lost``: something could not be written, and an empty
    line tells whether it was this."""
    stream = raw(_document or sys.stdout)
    if getattr(stream, "closed", False):
        return None
    try:
        stream.write("\n" if lost else "")
        stream.flush()
    except BrokenPipeError:
        drop_unread(stream)
        return None
    except OSError as error:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), stream.fileno())
        return error
    return None


@contextmanager
def _left_by_nobody() -> Iterator[None]:
    """A block in which somebody's ``os._exit(0)``, which nothing can catch, is told and is a failure of this
    process; children that it forks end as they like."""
    own, leave = os.getpid(), os._exit

    def told(status: int) -> NoReturn:
        if os.getpid() == own and status == 0:
            frame, status = sys._getframe(1), FAILED
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            print(f"error: {place} ended the command before it was done (os._exit)", file=sys.stderr)
        leave(status)

    os._exit = told
    try:
        yield
    finally:
        os._exit = leave


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """A block in which the event is set once Ctrl-C was pressed; what it does otherwise stays."""
    pressed, before = threading.Event(), signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        pressed.set()
        signal.default_int_handler(number, frame)

    ours = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)


@contextmanager
def _waits_told() -> Iterator[None]:
    """A block in which stderr is told that a store is away and what of it is damaged, and that workers are
    awaited."""
    handler = _Warnings(logging.WARNING)
    logs = (STORE_LOG, logging.getLogger("tasks.processes"))
    for log in logs:
        log.addHandler(handler)
    try:
        yield
    finally:
        for log in logs:
            log.removeHandler(handler)


class _Warnings(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        warn(printable(record.getMessage()))


_warned: "WeakKeyDictionary[TextIO, set[str]]" = WeakKeyDictionary()
"""Where a command prints, and what it warned of there."""


def warn(sentence: str) -> None:
    """Prints a warning on stderr, once in a command: several pairs may find the same."""
    warned = _warned.setdefault(sys.stderr, set())
    if sentence not in warned:
        warned.add(sentence)
        clear_status()
        print(f"warning: {sentence}", file=sys.stderr)


def show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """A warning of a metric or a user's code as the other warnings are shown: no file of ours, no source."""
    named = "" if issubclass(category, UserWarning) else f"{category.__name__}: "
    warn(f"{named}{message}")


def user_name() -> str:
    """Who types this, as the machine knows them: by number where it has no name for them, as in a
    container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def typed_command() -> list[str]:
    """The words that this process was called with; those of ``python -m flows.eval`` where another program
    calls."""
    if os.path.basename(sys.argv[0]) == "nightjar":
        return ["nightjar", *sys.argv[1:]]
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    module = "" if spec is None else spec.name.removesuffix(".__main__")
    return ["python", "-m", module if module.startswith("flows.") else "flows.eval", *sys.argv[1:]]


def quiet_prefect() -> None:
    """Keeps Prefect's log off the terminal, unless the user's environment says otherwise.

    The run's page has the log; the terminal has progress, the table and the reasons.
    """
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_LOGGING_INTERNAL_LEVEL", "CRITICAL")  # what could not be sent, in full
    os.environ.setdefault("PREFECT_LOGGING_COLORS", "false")  # escape sequences are shown, not obeyed


def print_json(document: Any, default: Callable[[Any], Any] | None = None) -> None:
    """Prints one JSON document on stdout; NaN becomes null, ``default`` writes what JSON has no word for."""
    text = orjson.dumps(document, default=default, option=orjson.OPT_INDENT_2).decode()
    stream = _document or sys.stdout
    stream.write(text + "\n")
    stream.flush()


_CLEARED = "\r\x1b[K"
_shown = False


def status(text: str) -> None:
    """Shows the line in the place of the one before; nowhere but on a terminal."""
    global _shown
    if sys.stderr is None or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return
    if not _shown:
        atexit.register(clear_status)
    columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
    raw(sys.stderr).write(f"{_CLEARED}{printable(text)[: columns - 2]}…")
    sys.stderr.flush()
    _shown = True


def clear_status() -> None:
    """Takes the line away, before anything else is printed."""
    global _shown
    if _shown:
        raw(sys.stderr).write(_CLEARED)
        sys.stderr.flush()
        atexit.unregister(clear_status)
        _shown = False


COMMANDS: Final = {
    "init": "flows.init",
    "check": "flows.check",
    "eval": "flows.eval.__main__",
    "lm_eval": "flows.lm_eval.__main__",
    "suite": "flows.suite.__main__",
    "deploy": "flows.deploy",
    "compare": "flows.compare.__main__",
    "history": "flows.history",
    "power": "flows.power",
    "watch": "flows.watch.__main__",
    "why": "flows.why",
    "accept": "flows.accept",
    "mute": "flows.mute",
    "store": "flows.store",
    "catalog": "flows.catalog",
}
"""Name → the module whose ``app`` has the command."""


class NamedCommands(TyperGroup):
    """The commands of ``COMMANDS``. The module of one is imported when it is called or told of: all of them
    take two seconds, and a shell asks at each press of the tab key."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given | {"commands": dict.fromkeys(COMMANDS)})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; None where there is none."""
        module = COMMANDS.get(cmd_name)
        return module and typer.main.get_command(importlib.import_module(module).app)


def named_app() -> typer.Typer:
    """All commands as those of one application."""
    app = typer.Typer(
        name="nightjar", cls=NamedCommands, pretty_exceptions_enable=False, rich_markup_mode=None,
        no_args_is_help=True,
    )  # fmt: skip
    app.callback()(_group)
    return app


def _group() -> None:
    """LLM evaluation as a Prefect workflow."""


def main() -> None:
    """Runs the command that the first argument names, and exits."""
    command_line(named_app())
