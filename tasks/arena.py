"""Stages of an arena: two models' answers go to a judge ("ask"), its verdicts become games ("games"), a
model's games its win rates ("score"), and all games of a prompt the models' strengths ("rate").

A matchup is made of the artifacts of two models and knows nothing of a third: a model that is added plays its
own games, and those of before are served. What the judge is asked holds both answers, so that a verdict is
kept by what was compared, whatever the models are called.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from metrics.config import StatisticsConfig
from metrics.statistics.clusters import wider
from metrics.statistics.ratings import Estimated, Games, Ratings, longer, place_preference, rate
from scorers.arena import ArenaScorer, Game, Played, matchup, played, repeats
from scorers.base import Batch
from tasks.ask import AskSetup, PlacedReplies, asked_rows, replies_of
from tasks.caching import Workspace, artifact_task
from tasks.rows.parts import PairSetup, Row
from tasks.rows.scoring import joined_batches, statistics_batch
from tasks.store.keys import Answered, Step, Unkeyed
from tasks.store.schemas import GAMES, RATINGS, REQUESTS, STATISTICS, cluster_ways
from tasks.store.storage import ArtifactRef, Store


class RateSetup(Unkeyed):
    """Whose strengths are estimated, and how: ``models`` in the config's order."""

    models: tuple[str, ...]
    filter: str
    statistics: StatisticsConfig


@artifact_task("ask", REQUESTS)
def ask_matchup(
    step: Step[AskSetup],
    requests: ArtifactRef,
    first: tuple[ArtifactRef, Answered],
    second: tuple[ArtifactRef, Answered],
    asked: Sequence[ArtifactRef],
    replied: Sequence[Answered],
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """What judges are asked about two models' (predictions, answers) to the same requests; attempts as in
    ``ask``."""
    store = workspace.open()
    matchups = (batch for batch, _ in _matchups(store, step.setup, requests, first, second))
    yield from asked_rows(step.setup, matchups, replies_of(store, asked, replied))


@artifact_task("games", GAMES)
def read_games(
    step: Step[PairSetup],
    requests: ArtifactRef,
    first: tuple[ArtifactRef, Answered],
    second: tuple[ArtifactRef, Answered],
    asked: Sequence[ArtifactRef],
    replied: Sequence[Answered],
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """The games of two models: a row a verdict; a matchup that could not be played has a row that says
    why."""
    store = workspace.open()
    scorer, metric = _scorer(step.setup), step.setup.metric_record()
    replies = PlacedReplies(step.setup, replies_of(store, asked, replied))
    for batch, doc_ids in _matchups(store, step.setup, requests, first, second):
        given = replies.take(scorer.count_requests(batch, metric))
        games = scorer.games(batch, metric, given)
        yield pa.RecordBatch.from_pylist(list(_game_rows(batch, doc_ids, games)), schema=GAMES)


def _matchups(
    store: Store,
    setup: PairSetup,
    requests: ArtifactRef,
    first: tuple[ArtifactRef, Answered],
    second: tuple[ArtifactRef, Answered],
) -> Iterator[tuple[Batch, Mapping[str, int]]]:
    """The matchups of two models, batch by batch, with the position of each item."""
    streams = [
        joined_batches(store, requests, predictions, answered.responses, setup.cut_off)
        for predictions, answered in (first, second)
    ]
    for one, other in zip(*streams, strict=True):
        named = zip(
            one.samples.column("item_id").to_pylist(), one.samples.column("doc_id").to_pylist(), strict=True
        )
        yield matchup(one.batch, other.batch), dict(named)


def _game_rows(batch: Batch, doc_ids: Mapping[str, int], games: Sequence[Game]) -> Iterator[Row]:
    by_row: defaultdict[int, list[Game]] = defaultdict(list)
    for game in games:
        by_row[game.row].append(game)
    for row, answers in enumerate(batch.predictions):
        about = {
            "item_id": batch.item_ids[row],
            "doc_id": doc_ids[batch.item_ids[row]],
            "repeat": int(batch.sample_index[row]),
            "first_length": len(answers.first or ""),
            "second_length": len(answers.second or ""),
        }
        if not batch.scored[row]:
            yield about | {"asked": False, "error": "one of the two has no answer: its request failed"}
        for game in by_row[row]:
            yield about | {
                "judge": game.judge, "swapped": game.swapped, "asked": game.asked, "value": game.value,
                "reply": game.reply, "error": game.error,
            }  # fmt: skip


@artifact_task("score", STATISTICS)
def score_games(
    step: Step[PairSetup],
    requests: ArtifactRef,
    predictions: ArtifactRef,
    answered: Answered,
    games: Sequence[ArtifactRef],
    opponents: Sequence[tuple[str, bool]],
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """The win rates of one model's samples; ``opponents`` says of each of its matchups against whom it is,
    and whether the model is the first in it."""
    store = workspace.open()
    scorer, metric = _scorer(step.setup), step.setup.metric_record()
    matchups = [
        _Kept(store, ref, opponent, is_first)
        for ref, (opponent, is_first) in zip(games, opponents, strict=True)
    ]
    for part in joined_batches(store, requests, predictions, answered.responses, step.setup.cut_off):
        doc_ids = part.samples.column("doc_id").to_pylist()
        places = list(zip(doc_ids, repeats(part.batch).tolist(), strict=True))
        by_place = [one.of(places) for one in matchups]
        given: list[Played | None] = [
            played({one.opponent: found[row] for one, found in zip(matchups, by_place, strict=True)})
            for row in range(len(places))
        ]
        yield statistics_batch(part.samples, scorer.score_games(part.batch, metric, given))


class _Kept:
    """The games of one matchup, given out in the order of the items."""

    def __init__(self, store: Store, games: ArtifactRef, opponent: str, is_first: bool) -> None:
        self.opponent, self._is_first = opponent, is_first
        self._batches = store.batches(games)
        self._held: defaultdict[tuple[int, int], list[Row]] = defaultdict(list)
        self._last = -1

    def of(self, places: Sequence[tuple[int, int]]) -> list[list[tuple[Game, bool]]]:
        """The games on each sample, by the position of its item and its place among the item's samples."""
        until = max((doc_id for doc_id, _ in places), default=-1)
        while self._last <= until and (batch := next(self._batches, None)) is not None:
            for row in batch.to_pylist():
                self._held[row["doc_id"], row["repeat"]].append(row)
                self._last = row["doc_id"]
        return [[(_game(row), self._is_first) for row in self._held.pop(place, ())] for place in places]


def _game(row: Row) -> Game:
    judge = row["judge"] or "none"
    return Game(0, judge, bool(row["swapped"]), row["value"], row["asked"], row["reply"], row["error"])


def _scorer(setup: PairSetup) -> ArenaScorer:
    scorer = setup.scorer()
    assert isinstance(scorer, ArenaScorer), "the plan makes these steps for such a scorer alone"
    return scorer


@artifact_task("rate", RATINGS)
def rate_models(
    step: Step[RateSetup],
    prompt_template: str,
    matchups: Sequence[tuple[str, str]],
    games: Sequence[ArtifactRef],
    requests: Sequence[ArtifactRef],
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """The models' strengths from all games at one prompt; ``matchups`` names both models of each, and
    ``requests`` beside it say which items belong together."""
    store, setup = workspace.open(), step.setup
    clusters: dict[int, str] = {}
    for ref in dict.fromkeys(requests):
        for batch in store.batches(ref, ["doc_id", "item_id", "cluster"]):
            clusters |= {
                row["doc_id"]: row["cluster"] or f"item {row['item_id']}" for row in batch.to_pylist()
            }
    rows = [
        (names, row)
        for names, ref in zip(matchups, games, strict=True)
        for batch in store.batches(ref)
        for row in batch.to_pylist()
    ]
    document = ratings(setup.models, rows, clusters, setup.statistics)
    about = {"prompt_template": prompt_template, "filter": setup.filter}
    text = orjson.dumps(about | document).decode()
    yield pa.RecordBatch.from_pylist([about | {"ratings_json": text}], schema=RATINGS)


def ratings(
    models: Sequence[str],
    rows: Sequence[tuple[tuple[str, str], Row]],
    clusters: Mapping[int, str],
    options: StatisticsConfig,
) -> dict[str, Any]:
    """The strengths as JSON: ``models`` with strength, its error and rank, ``position``, ``length`` and
    ``ties`` (all in log odds), ``judges`` with what the first place won, and the numbers of games.

    ``rows`` are GAMES with the names of both models, ``clusters`` says by position which items belong
    together. A number that there is none of is null, with a ``note``.
    """
    read = [(names, row) for names, row in rows if row["value"] is not None]
    found = _games(models, read, clusters)
    rated = rate(found, len(models), options)
    return {
        "games": len(read),
        "unread": len(rows) - len(read),
        "models": [
            {
                "model": name, **_told("strength", one.strength),
                "rank_best": one.best, "rank_worst": one.worst,
                "wins": one.wins, "ties": one.ties, "losses": one.losses, "note": one.doubt,
            }
            for name, one in zip(models, rated.models, strict=True)
        ],
        **{name: _effect(getattr(rated, name)) for name in ("position", "length", "ties")},
        "judges": dict(_preferences(models, read, clusters, options.seed)),
        "warning": _warning(rated, len(rows) - len(read), len(rows)),
    }  # fmt: skip


def _games(
    models: Sequence[str], rows: Sequence[tuple[tuple[str, str], Row]], clusters: Mapping[int, str]
) -> Games:
    number = {name: place for place, name in enumerate(models)}
    swapped = np.array([bool(row["swapped"]) for _, row in rows], dtype=bool)
    pair = np.array([[number[name] for name in names] for names, _ in rows], dtype=np.int64).reshape(-1, 2)
    share = np.array([row["value"] for _, row in rows], dtype=np.float64)
    lengths = np.array(
        [[row["first_length"], row["second_length"]] for _, row in rows], dtype=np.float64
    ).reshape(-1, 2)
    asked = np.array([row["asked"] for _, row in rows], dtype=np.float64)
    share = np.where(swapped, 1 - share, share)
    pair[swapped], lengths[swapped] = pair[swapped][:, ::-1], lengths[swapped][:, ::-1]
    return Games(
        first=pair[:, 0],
        second=pair[:, 1],
        # A judge's scale may have more than three steps: which side of the middle it is on decides.
        outcome=np.where(np.isclose(share, 0.5), 0.5, (share > 0.5).astype(np.float64)),
        item=_units([clusters[row["doc_id"]] for _, row in rows]),
        longer=longer(lengths[:, 0], lengths[:, 1]) * asked,
        placed=asked,
    )


def _units(clusters: Sequence[str]) -> np.ndarray[Any, np.dtype[np.signedinteger[Any]]]:
    """The numbers of clusters; of two fields that cross, those of the one with fewer values."""
    ways = [cluster_ways(text) for text in clusters]
    width = max(map(len, ways), default=1)
    columns = [
        np.unique([way[min(place, len(way) - 1)] for way in ways] or [""], return_inverse=True)[1][
            : len(ways)
        ]
        for place in range(width)
    ]
    return wider(columns[0] if width == 1 else np.column_stack(columns))


def _preferences(
    models: Sequence[str], rows: Sequence[tuple[tuple[str, str], Row]], clusters: Mapping[int, str], seed: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Judge → how often the answer shown first won, and how likely that is if places say nothing."""
    seen = [(names, row) for names, row in rows if row["asked"]]
    for judge in dict.fromkeys(row["judge"] for _, row in seen):
        own = [(names, row) for names, row in seen if row["judge"] == judge]
        share, chance = place_preference(_games(models, own, clusters), seed)
        yield judge, {"verdicts": len(own), "first": share, "p_value": chance}


def _warning(rated: Ratings, unread: int, total: int) -> str | None:
    said = [rated.warning, f"{unread} of {total} games have no verdict and are left out" if unread else None]
    return "; ".join(part for part in said if part) or None


def _told(name: str, one: Estimated | None) -> dict[str, float | None]:
    if one is None:
        return dict.fromkeys((name, "stderr", "ci_low", "ci_high"))
    numbers = {name: one.value, "stderr": one.stderr, "ci_low": one.low, "ci_high": one.high}
    return {key: value if np.isfinite(value) else None for key, value in numbers.items()}


def _effect(one: Estimated | None) -> dict[str, float | None] | None:
    return None if one is None else _told("value", one)


def read_ratings(store: Store, refs: Iterable[ArtifactRef]) -> list[dict[str, Any]]:
    """The documents of ``rate_models``, one a prompt and filter."""
    return [
        orjson.loads(text) for ref in refs for text in store.table(ref).column("ratings_json").to_pylist()
    ]
