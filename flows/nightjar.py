"""``nightjar eval|compare|history|…``: the command lines under one name, so that a shell can complete them.

``nightjar --install-completion`` does that once; ``python -m flows.eval`` and ``nightjar eval`` are the same
command.
"""

import copy
import importlib
from typing import Final

import typer

from flows.command_line import command_line, quiet_prefect

COMMANDS: Final = {
    "eval": "flows.eval.__main__",
    "suite": "flows.suite.__main__",
    "compare": "flows.compare.__main__",
    "history": "flows.history",
    "power": "flows.power",
    "why": "flows.why",
    "catalog": "flows.catalog",
}
"""Name → the module whose ``app`` has the command."""


def named_app() -> typer.Typer:
    """All commands as those of one application."""
    app = typer.Typer(
        name="nightjar", help="LLM evaluation as a Prefect workflow.", pretty_exceptions_enable=False,
        rich_markup_mode=None, no_args_is_help=True,
    )  # fmt: skip
    for name, module in COMMANDS.items():
        for command in importlib.import_module(module).app.registered_commands:
            own = copy.copy(command)
            own.name = name
            app.registered_commands.append(own)
    return app


def main() -> None:
    """Runs the command that the first argument names, and exits."""
    quiet_prefect()
    command_line(named_app())


if __name__ == "__main__":
    main()
