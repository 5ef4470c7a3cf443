"""``python -m flows.server start|stop|status|env|link|doctor``: the project's own Prefect server by hand."""

import sys

from flows.command_line import REFUSED, raise_interrupts
from flows.server import link, shell_exports, start, status, stop
from metrics.errors import NightjarError
from tasks.reporting.streams import shown_safely

USAGE = """usage: python -m flows.server COMMAND
  start   starts it, if it is not there, and shows its address
  stop    ends it
  status  says whether it runs, and where
  env     prints what a shell needs for `prefect …`:  eval "$(python -m flows.server env)"
  link    prints an address that opens its UI in a browser, once
  doctor  says what is wrong with the server and the watch, and what to do; exit code 1 if anything is"""


def main() -> None:
    """Runs the command and exits."""
    raise_interrupts()
    command = sys.argv[1] if len(sys.argv) == 2 else ""
    with shown_safely():
        try:
            if command == "doctor":
                from flows.server import doctor  # it looks at the store, too: others need not load that

                raise SystemExit(doctor.main())
            print(_answer(command))
        except NightjarError as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(REFUSED) from None


def _answer(command: str) -> str:
    match command:
        case "start":
            return f"Prefect UI: {link(start().url)}  (make stop ends it)"
        case "stop":
            return "stopped" if stop() else "no server of this project was running"
        case "status":
            running = status()
            return f"running at {running.url}" if running else "not running"
        case "env":
            return shell_exports()
        case "link":
            return link(start().url, always=True)
    print(USAGE, file=sys.stderr)
    raise SystemExit(REFUSED)


if __name__ == "__main__":
    main()
