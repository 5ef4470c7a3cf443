"""What a store keeps of the nights of suites, how they are read, and which of them a night is compared with.

``suites/SUITE/NIGHT.json``   the record of a night
``history/nights/SUITE.json`` all of a suite's records in one file: made of them, never instead of them
``history/mutes/SUITE.json``  which of its pairs were to decide nothing, until when, and why

Of each record the file of all says the token that it had: one that was written again since is read by itself.
So a night opens one file and the few records that are newer, however many nights there were.

SUITE is made of the suite's name, and several names may come to one: so a record holds the name too, and
nights and mutes count for the suite of that name only. Records of before hold none, and count for each.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from metrics.aliases import nearest
from metrics.errors import ConfigError
from tasks.history.layout import (
    HistoryError,
    Records,
    check_format,
    check_run_id,
    known_runs,
    read_json,
    read_records,
    tokens,
)
from tasks.store.claims import claim
from tasks.store.errors import STORE_LOG, StoreError
from tasks.store.storage import FORMAT, Store

SUITES: Final = "suites"
INDEX: Final = "history/nights"
MUTES: Final = "history/mutes"
LOOSE_NIGHTS: Final = 16
"""So many records are read by themselves before the file of all is written again."""
LAST, LAST_PASSED, ROLLING, FIRST = "last", "last-passed", "rolling", "first"


class NightEvaluation(BaseModel):
    """One evaluation of a night; ``name`` is the same every night, ``run_id`` its run in the history."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    run_id: str
    ok: bool = True
    whole: bool = False
    """Where it is not ``ok``: nothing of it is missing, and findings alone failed it."""
    message: str | None = None
    requests: dict[str, int] | None = None
    """Of its models: ``sent``, of these ``batched``, ``cached``, and of those ``same_night``; None where it
    came to nothing."""
    doubts: tuple[str, ...] = ()
    """What canaries say against reusing answers."""
    cost: dict[str, float] = {}
    """What its last attempt cost, by currency; the key is empty where the prices name none."""
    stopped: dict[str, Any] | None = None
    """As its manifest has it: ``asked_items``, ``of_items``, ``why``; None where all items were asked."""

    @property
    def lacks(self) -> bool:
        """Whether a rerun could compute something of it."""
        return not self.ok and not self.whole


class Notice(BaseModel):
    """What somebody is to be told of a night. ``key`` is the same each time that it is sent; ``delivered`` is
    the receipt: when the webhook took it, None while it is outstanding. ``cost`` is by currency. ``tries`` is
    how often it was sent and not answered, ``tried`` when that was last."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str
    text: str
    url: str | None = None
    verdict: str | None = None
    pairs: tuple[dict[str, Any], ...] = ()
    cost: dict[str, float] = {}
    written: str
    delivered: str | None = None
    tries: int = 0
    tried: str | None = None


class Acceptance(BaseModel):
    """That a night's results are as they should be from now on: who said so, when, and why."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    at: str
    by: str
    reason: str


class Mute(BaseModel):
    """A pair, "metric,filter" or "benchmark metric,filter", that decides nothing in nights due before
    ``until``, a date; who said so, when, and why. ``ends`` is when that day begins where they said so, in
    UTC; None in records of before, where it begins as it does in UTC. ``suite_name`` is as in `Night`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pair: str
    until: str
    at: str
    by: str
    reason: str
    suite_name: str | None = None
    ends: str | None = None

    @property
    def said(self) -> str:
        """In words."""
        return f"muted until {self.until} by {self.by}: {self.reason}"


class MutedPair(BaseModel):
    """A muted pair of a night, and what its verdict would have been; ``anchor`` is what it lost against, None
    for the baseline."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pair: str
    said: str
    verdict: str | None = None
    anchor: str | None = None


class Night(BaseModel):
    """One run of a suite. ``suite`` is the folder of its records, ``suite_name`` the name in its file,
    None in records of before. ``verdict`` is the gate's, None where there was nothing to compare with;
    ``spending`` tells the nights apart that take parts of another alpha, or against another named baseline;
    None where it takes none.
    ``limit`` is how many of the first items the night was to ask at most, None for all of the suite's;
    ``only`` names its evaluations where it left others of the suite out.

    A night is recorded when it is first due, with the baseline that its retries keep; ``ended`` says whether
    its outcome is known by now. ``due`` is None in records of before, whose nights were due as they started.
    ``behind`` is a night that had ended when this one first began, and had begun later by the clock: the
    clock was wrong for either. ``attempt`` is 0 where it ended before it could begin.
    ``format`` is that of the store's records; a later version may add keys within one.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    suite: str
    run_id: str
    started: str
    evaluations: tuple[NightEvaluation, ...]
    suite_name: str | None = None
    limit: int | None = None
    only: tuple[str, ...] | None = None
    baseline: tuple[str, ...] = ()
    verdict: str | None = None
    spending: str | None = None
    due: str | None = None
    behind: str | None = None
    ended: bool = True
    attempt: int = 1
    notices: tuple[Notice, ...] = ()
    accepted: Acceptance | None = None
    muted: tuple[MutedPair, ...] = ()
    again: tuple[NightEvaluation, ...] = ()
    """Evaluations that were asked again to confirm a regression."""
    format: int = FORMAT

    @property
    def title(self) -> str:
        """The suite's name for people."""
        return self.suite_name or self.suite

    def is_of(self, name: str | None) -> bool:
        """Whether it is a night of the suite of this name, as far as its record says; None: of any."""
        return None in (name, self.suite_name) or name == self.suite_name

    @property
    def place(self) -> str:
        """Sorts nights by the time that they were due."""
        return self.due or self.started

    @property
    def complete(self) -> bool:
        """It ended, and everything was evaluated. A night that was cancelled or crashed with nothing to
        evaluate is not."""
        return self.ended and bool(self.evaluations) and all(entry.ok for entry in self.evaluations)

    @property
    def passed(self) -> bool:
        """It is complete, and nothing stands against it, nor would without mutes: the next night may be
        compared with this one."""
        verdicts = (self.verdict, *(pair.verdict for pair in self.muted))
        return self.complete and all(verdict in (None, "pass") for verdict in verdicts)

    def covers(self, limit: int | None, only: Sequence[str] | None) -> bool:
        """Whether it asked what a night of this limit and these evaluations asks; one that somebody accepted
        stands for itself, however many items it asked."""
        items = self.limit is None or (limit is not None and limit <= self.limit)
        evaluations = self.only is None or (only is not None and {*only} <= {*self.only})
        return evaluations and (items or self.accepted is not None)

    def asks_just(self, limit: int | None, only: Sequence[str] | None) -> bool:
        """Whether it asks what a night of this limit and these evaluations asks, and no more."""
        parts = [None if names is None else {*names} for names in (self.only, only)]
        return self.limit == limit and parts[0] == parts[1]

    @property
    def stopped(self) -> bool:
        """Whether a gate ended the asking of a part of it: such a night is no baseline."""
        return any(evaluation.stopped for evaluation in self.evaluations)

    @property
    def asked_all(self) -> bool:
        """Whether it asked all items of what it could evaluate, and could evaluate something."""
        return not self.stopped and any(entry.ok or entry.whole for entry in self.evaluations)

    @property
    def cost(self) -> dict[str, float]:
        """What its evaluations cost together, by currency."""
        total: dict[str, float] = {}
        every = (*self.evaluations, *self.again)
        for currency, amount in (part for entry in every for part in entry.cost.items()):
            total[currency] = total.get(currency, 0.0) + amount
        return total


def record_night(store: Store, night: Night) -> None:
    """Adds a night to its suite's history, whole or not at all; a retry replaces its own record."""
    store.put_document(_night_file(night.suite, night.run_id), night.model_dump_json(indent=1).encode())


def find_night(store: Store, suite: str, run_id: str) -> Night | None:
    """A night's record; None where there is none. Raises HistoryError for one that can't be read."""
    there = run_id in store.names(f"{SUITES}/{check_run_id(suite)}", ".json")
    name = _night_file(suite, run_id)
    return _night(store, name, read_json(store, name)) if there else None


def _night_file(suite: str, run_id: str) -> str:
    return f"{SUITES}/{check_run_id(suite)}/{check_run_id(run_id)}.json"


def read_nights(store: Store, suite: str) -> Records[Night]:
    """All nights of a suite by their ids, in the order in which they were due, and the records that nobody
    can read."""
    folder = f"{SUITES}/{check_run_id(suite)}"
    listed, known = tokens(store, folder), _index(store, suite)
    kept: dict[str, dict[str, Any]] = {}

    def read(path: str) -> Night:
        name = path.rpartition("/")[2]
        entry = known.get(name)
        if entry is None or entry["token"] != listed[name]:
            entry = {"token": listed[name], "record": read_json(store, path)}
            loose.append(name)
        night = _night(store, path, entry["record"])
        kept[name] = entry
        return night

    loose: list[str] = []
    found = read_records([(name.removesuffix(".json"), f"{folder}/{name}") for name in sorted(listed)], read)
    if len(loose) > LOOSE_NIGHTS:
        with suppress(StoreError):  # a store that only others may write answers all the same
            _write_index(store, suite, kept)
    return Records(dict(sorted(found.found.items(), key=lambda entry: entry[1].place)), found.skipped)


def _index(store: Store, suite: str) -> dict[str, dict[str, Any]]:
    """Name of a record → its token then, and what it said; empty where nobody can read the file of all."""
    if suite not in store.names(INDEX, ".json"):
        return {}
    try:
        entries = read_json(store, _index_file(suite)).get("nights") or {}
        return {name: entry for name, entry in entries.items() if {"token", "record"} <= entry.keys()}
    except (HistoryError, AttributeError) as error:
        STORE_LOG.warning("the nights' records are read one by one: %s", error)
        return {}


def _write_index(store: Store, suite: str, entries: Mapping[str, Mapping[str, Any]]) -> None:
    document = {"format": FORMAT, "nights": entries}
    store.put_document(_index_file(suite), json.dumps(document, ensure_ascii=False).encode())


def _index_file(suite: str) -> str:
    return f"{INDEX}/{check_run_id(suite)}.json"


def suites_with(store: Store, run_id: str | None = None) -> list[tuple[str, str]]:
    """Suite and run of every night of the store, or of the night of this id."""
    found = [
        (entry.name.split("/")[-2], entry.name.rpartition("/")[2].removesuffix(".json"))
        for entry in store.all_entries(SUITES)
        if entry.name.endswith(".json")
    ]
    return [(suite, name) for suite, name in found if run_id in (None, name)]


def past_nights(store: Store, suite: str, name: str | None = None) -> list[Night]:
    """The suite's nights that ended and can be read, oldest first; with ``name``, those of the suite of that
    name."""
    found = read_nights(store, suite).found.values()
    return [night for night in found if night.ended and night.is_of(name)]


def night_ahead(nights: Iterable[Night], own: Night) -> Night | None:
    """The night of the same suite that ended already though it began after ``own``, the last of several;
    ``own`` has only begun."""
    ahead = [night for night in nights if night.ended and night.attempt and night.is_of(own.suite_name)]
    last = max(ahead, key=lambda night: night.started, default=own)
    return last if last.started > own.started else None


def nights_before(nights: Iterable[Night], own: Night) -> list[Night]:
    """Those of ``nights`` that are of the same suite, ended and were due before ``own``: a retry finds those
    of its first time."""
    return [
        night
        for night in nights
        if night.ended
        and night.run_id != own.run_id
        and night.place < own.place
        and night.is_of(own.suite_name)
    ]


def _night(store: Store, name: str, document: Mapping[str, Any]) -> Night:
    check_format(store, name, document)
    try:
        return Night.model_validate({"format": 0, **document})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise HistoryError(
            f"store {store.uri}: {name} is no record of a night: {place}: {first['msg']}"
        ) from error


def _candidates(nights: Sequence[Night]) -> list[Night]:
    """The nights that another may be compared with, in the order in which they count."""
    passed = [night for night in nights if night.passed]
    accepted = max(
        ((night.accepted.at, night) for night in nights if night.accepted is not None),
        key=lambda entry: entry[0],
        default=None,
    )
    if accepted is None:
        return passed
    since, chosen = accepted
    return [chosen, *(night for night in passed if night.place > since)]


def read_mutes(store: Store, suite: str) -> list[Mute]:
    """All that was ever muted in a suite, oldest first. Raises HistoryError."""
    if suite not in store.names(MUTES, ".json"):
        return []
    name = f"{MUTES}/{check_run_id(suite)}.json"
    document = read_json(store, name)
    check_format(store, name, document)
    try:
        return [Mute.model_validate(entry) for entry in document.get("mutes") or ()]
    except ValidationError as error:
        raise HistoryError(f"store {store.uri}: {name} is no list of mutes: {error.errors()[0]}") from error


def add_mute(store: Store, suite: str, mute: Mute) -> None:
    """Adds one to a suite's; of several of one pair the last counts. Raises StoreError."""
    with claim(store, f"mutes-{check_run_id(suite)}"):
        mutes = [entry.model_dump() for entry in (*read_mutes(store, suite), mute)]
        document = {"format": FORMAT, "mutes": mutes}
        store.put_document(
            f"{MUTES}/{suite}.json", json.dumps(document, ensure_ascii=False, indent=1).encode()
        )


def mutes_of(store: Store, night: Night) -> dict[str, Mute]:
    """The pairs that decide nothing in a night."""
    last = {mute.pair: mute for mute in read_mutes(store, night.suite) if night.is_of(mute.suite_name)}
    return {pair: mute for pair, mute in last.items() if night.place < (mute.ends or mute.until)}


STOPPED: Final = "it stopped before it had asked all items, and is no baseline; name a run that asked all"


def baseline_nights(
    store: Store,
    nights: Sequence[Night],
    baseline: str,
    count: int,
    limit: int | None = None,
    only: Sequence[str] | None = None,
) -> list[Night]:
    """The nights that ``baseline`` names among past ones, oldest first; none if there is no such night yet.

    ``last``; ``last-passed``; ``rolling``, the last ``count`` that passed; ``first``, the first that did; or
    the id of a suite's run, or of a single evaluation's. Of those that passed, the night that was accepted
    last takes the place of all that were due before it was accepted. None of them is a night that stopped
    before it had asked all, of which everything failed, that asked fewer of the first items than ``limit``,
    or that left out what ``only`` names (None: the whole suite). Raises ConfigError for an id that nothing in
    the store has, or that of a night that stopped.
    """
    whole = [night for night in nights if night.asked_all and night.covers(limit, only)]
    passed = _candidates(whole)
    match baseline:
        case "last":
            return whole[-1:]
        case "last-passed":
            return passed[-1:]
        case "rolling":
            return passed[-count:]
        case "first":
            return passed[:1]
    if found := [night for night in nights if night.run_id == baseline]:
        if found[0].stopped:
            raise ConfigError(f"baseline '{baseline}': {STOPPED}")
        return found
    runs = known_runs(store)
    if baseline in runs:
        alone = (NightEvaluation(name="", run_id=baseline),)
        return [Night(suite="", run_id=baseline, started="", evaluations=alone)]
    known = [LAST_PASSED, LAST, ROLLING, FIRST, *(night.run_id for night in nights), *runs]
    hint = nearest(baseline, known)
    words = f"{LAST_PASSED}, {LAST}, {ROLLING}, {FIRST}"
    raise ConfigError(f"baseline '{baseline}' is neither {words} nor a run{hint}")
