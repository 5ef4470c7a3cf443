"""``nightjar mute PAIR --until DATE --reason …``: a pair decides nothing for a while."""

from datetime import UTC, date, datetime
from typing import Annotated

import typer

from flows.command_line import App, examples, user_name
from metrics.aliases import nearest
from metrics.errors import ConfigError
from tasks.comparison.runs import open_night
from tasks.history.nights import Mute, Night, Notice, add_mute, past_nights, read_nights, suites_with
from tasks.history.notices import change_night, now, with_notice
from tasks.store.home import default_store
from tasks.store.storage import Store

app = App()


@app.command(
    epilog=examples(
        'python -m flows.mute bleu,whole --until 2026-12-01 --reason "its references are being fixed"'
    )
)
def mute_command(
    pair: Annotated[
        str, typer.Argument(metavar="PAIR", help='"metric,filter", or "benchmark metric,filter"')
    ],
    until: Annotated[
        str,
        typer.Option(
            metavar="DATE",
            help="First day on which it decides again, in this machine's time zone; today ends a mute",
        ),
    ],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason, which pages and messages show")],
    suite: Annotated[
        str | None, typer.Option(metavar="NAME", help="Suite of the pair; needed if the store has several")
    ] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URI", help="The store; default: the project's own")
    ] = None,
) -> None:
    """Keeps a pair of a suite from deciding; its numbers are still shown."""
    opened = Store(store or default_store())
    opened.check_readable()
    muted = mute(opened, suite, pair, until, reason, user_name())
    print(f"{muted.pair} is {_said(muted)}; the watch tells it")


def mute(store: Store, suite: str | None, pair: str, until: str, reason: str, by: str) -> Mute:
    """Mutes a pair, and has it told. Raises ConfigError for a pair, a suite or a date that is none."""
    if not reason.strip():
        raise ConfigError("--reason: expected a reason, got nothing")
    chosen, name = _suite(store, suite)
    last = past_nights(store, chosen, name=name)[-1:]
    if not last:
        raise ConfigError(f"suite '{name or chosen}' has no night yet: so there is no pair to mute")
    _check_pair(store, last[0], pair)
    begins = _day(until)
    made = Mute(
        pair=pair,
        until=begins.date().isoformat(),
        ends=begins.astimezone(UTC).isoformat(),
        at=now(),
        by=by,
        reason=reason.strip(),
        suite_name=name,
    )
    add_mute(store, chosen, made)
    text = f"{pair} of {last[0].title} is {_said(made)}"
    told = Notice(key=f"{chosen}:muted:{made.at}", text=text, written=made.at)

    def change(there: Night | None) -> Night:
        return with_notice(there or last[0], told)

    change_night(store, chosen, last[0].run_id, change)
    return made


def _said(made: Mute) -> str:
    return made.said if (made.ends or "") > made.at else f"muted no more, by {made.by}: {made.reason}"


def _suite(store: Store, named: str | None) -> tuple[str, str | None]:
    """The folder of a suite's records and its name, None where no record has one; it is known by its name
    and, where it is the only one there, by its folder."""
    folders = {folder for folder, _ in suites_with(store)}
    known: list[tuple[str, str | None]] = []
    for folder in sorted(folders):
        nights = read_nights(store, folder).found.values()
        own = sorted({night.suite_name for night in nights if night.suite_name is not None})
        known += [(folder, name) for name in own] or [(folder, None)]
    fits = [one for one in known if named in (None, one[1])] or [one for one in known if named == one[0]]
    if len(fits) == 1:
        return fits[0]
    names = [name or folder for folder, name in known]
    hint = nearest(named, names) if named is not None and not fits else ""
    there = ", ".join(f"'{name}'" for name in names) or "none"
    got = f"got '{named}'" if named is not None else "and the store has not just one"
    raise ConfigError(
        f"--suite: expected a suite with nights in the store {store.uri}, {got}{hint or f': {there}'}"
    )


def _check_pair(store: Store, night: Night, pair: str) -> None:
    keys = [key for run in open_night(night, store).values() for key in run.groups]
    known = sorted({name for key in keys for name in (key.pair, f"{key.benchmark} {key.pair}")})
    if pair not in known:
        raise ConfigError(f"the last night of '{night.title}' has no pair '{pair}'{nearest(pair, known)}")


def _day(text: str) -> datetime:
    """When a day begins here."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--until: expected a date such as 2026-12-01, got '{text}'") from None
    if day < datetime.now().astimezone().date():
        raise ConfigError(f"--until: expected today or a later day, got '{text}'")
    return datetime(day.year, day.month, day.day).astimezone()


main = app.main

if __name__ == "__main__":
    main()
