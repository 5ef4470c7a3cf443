"""``nightjar accept NIGHT --reason …``: a night's results are as they should be from now on."""

from typing import Annotated

import typer

from flows.command_line import App, examples, user_name
from metrics.aliases import nearest
from metrics.errors import ConfigError
from tasks.history.nights import STOPPED, Acceptance, Night, Notice, find_night, suites_with
from tasks.history.notices import change_night, now, with_notice
from tasks.store.home import default_store
from tasks.store.storage import Store

app = App()


@app.command(epilog=examples('python -m flows.accept nightly-9f2c… --reason "the new checkpoint is meant"'))
def accept_command(
    night: Annotated[str, typer.Argument(metavar="NIGHT", help="Run id of the night, as its page shows it")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason, which pages and messages show")],
    store: Annotated[
        str | None, typer.Option(metavar="URI", help="The store; default: the project's own")
    ] = None,
) -> None:
    """Makes a night the baseline of those to come (last-passed, rolling)."""
    opened = Store(store or default_store())
    opened.check_readable()
    accepted = accept(opened, night, reason, user_name())
    print(f"{accepted.run_id} is the baseline of '{accepted.title}' from now on; the watch tells it")


def accept(store: Store, run_id: str, reason: str, by: str) -> Night:
    """Makes a night the baseline, and has it told. Raises ConfigError for a night that can't be one."""
    suites = suites_with(store, run_id)
    if not suites:
        known = [name for _, name in suites_with(store)]
        raise ConfigError(f"the store {store.uri} has no night '{run_id}'{nearest(run_id, known)}")
    suite = suites[0][0]
    reason = reason.strip()
    if not reason:
        raise ConfigError("--reason: expected the reason for the change, got nothing")
    found = find_night(store, suite, run_id)
    if found is None or not found.complete:
        raise ConfigError(f"night '{run_id}' is not complete; accept a night whose evaluations all succeeded")
    if found.only is not None:
        raise ConfigError(
            f"night '{run_id}' is of a part of its suite; accept a night of all its evaluations"
        )
    if found.stopped:
        raise ConfigError(f"night '{run_id}': {STOPPED}")
    acceptance = Acceptance(at=now(), by=by, reason=reason)
    told = Notice(
        key=f"{run_id}:accepted:{acceptance.at}",
        text=f"{run_id} was accepted by {by} as the baseline of {found.title}: {reason}",
        verdict=found.verdict,
        written=acceptance.at,
    )

    def change(there: Night | None) -> Night:
        return with_notice((there or found).model_copy(update={"accepted": acceptance}), told)

    return change_night(store, suite, run_id, change)


main = app.main

if __name__ == "__main__":
    main()
