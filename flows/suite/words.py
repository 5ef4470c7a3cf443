"""How a night is said: in a sentence, as a page in Markdown, as JSON, and what of its pairs is told."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from flows.compare.flips import more_than, signed_flips
from flows.compare.runs import (
    DOUBT,
    change_line,
    comparison_document,
    group_of,
    told_pairs,
)
from flows.suite.judging import JudgedNight
from flows.suite.names import is_several, pair_names, risen_outcomes
from flows.suite.rescoring import code_sentence
from metrics.errors import printable
from tasks.comparison.compare import ComparedPair, ComparedRuns, Gate
from tasks.comparison.stopping import stopped_sentence
from tasks.comparison.trends import PairCourse
from tasks.history.nights import MutedPair, Night, NightEvaluation
from tasks.messages.markdown import as_code, as_text, table_row
from tasks.models.errors import shortened
from tasks.models.tally import asked_and_reused
from tasks.reporting import numbers

ROWS = 100
"""Rows of a table in the UI, at most: the whole is in suite.json."""
FLIPS = 10
IDENTITY = "model identity"
CHANGES = 4
"""Changes of a served model that a sentence names, at most."""
TOLD_PAIRS = 3
"""Pairs that a message names, at most: it holds all of them beside its text."""
NOTABLE = 0.05
"""Level, over all pairs and all nights since the anchor, below which a drift is worth a line."""


def headline(judged: JudgedNight) -> str:
    """The night in one sentence."""
    entries = judged.night.evaluations
    failed = [entry for entry in entries if not entry.ok]
    sentences = [f"{len(entries) - len(failed)} of {len(entries)} evaluations complete"]
    if failed:
        sentences.append(f"failed: {_with_reasons(failed)}")
    if asked := [entry.requests for entry in entries if entry.requests is not None]:
        counts = {name: sum(entry[name] for entry in asked) for name in asked[0]}
        sentences.append(asked_and_reused(counts, judged.night.attempt > 1))
    sentences += dict.fromkeys(doubt for entry in entries for doubt in entry.doubts)
    sentences += [f"{entry.name}: {stopped_sentence(entry.stopped)}" for entry in entries if entry.stopped]
    if judged.night.behind is not None:
        sentences.append(_clock_sentence(judged.night, judged.night.behind))
    if judged.compared is None:
        sentences += [] if judged.night.behind is not None else ["nothing to compare with yet"]
    else:
        sentences.append(
            f"against {', '.join(judged.night.baseline)}: {judged.compared.verdict or 'no gate'}"
        )
    sentences += [
        f"{accepted.run_id} is the baseline since {accepted.accepted.at[:10]} by {accepted.accepted.by}: "
        f"{accepted.accepted.reason}"
        for accepted in judged.accepted
        if accepted.accepted is not None
    ]
    sentences += map(_muted_sentence, judged.night.muted)
    if judged.outcome == "undecided":
        sentences.append(f"undecided: {judged.inconclusive} inconclusive nights in a row")
    if judged.spent and judged.gate is not None:
        sentences.append(_alpha_sentence(judged.gate, judged.spent))
    if judged.losses:
        lost = ", ".join(map(pair_names(judged.anchored.pairs if judged.anchored else ()), judged.losses))
        sentences.append(f"lost more than the margin against the anchor {judged.anchored_to}: {lost}")
    if judged.compared is not None:
        sentences += _outcome_sentences(judged.compared)
        sentences += filter(None, [code_sentence(judged.compared)])
    if judged.night.again:
        sentences.append(f"asked again before it was told: {', '.join(e.name for e in judged.night.again)}")
    changed = [] if judged.compared is None else judged.compared.changes
    lines = [change_line(change) for change in changed if change.kind == IDENTITY]
    if identities := [line.removeprefix(f"{IDENTITY} changed: ") for line in lines]:
        rest = f" and {len(identities) - CHANGES} more" if len(identities) > CHANGES else ""
        sentences.append(f"the identity of a model changed: {'; '.join(identities[:CHANGES])}{rest}")
    return "; ".join(sentences)


def told_sentence(judged: JudgedNight) -> str:
    """The night as a message tells it: the pairs that did not pass, worst first, then its headline."""
    base = judged.compared.base if judged.compared is not None else None
    return "; ".join([*pair_sentences(noteworthy_pairs(judged), base), headline(judged)])


def pair_sentences(pairs: Sequence[Mapping[str, Any]], base: str | None) -> Iterator[str]:
    """What each of the first pairs came to, and how many there are besides; ``base`` is what a night is
    compared with, and needs no name."""
    for pair in pairs[:TOLD_PAIRS]:
        name = f"{pair['benchmark']} {pair['pair']}"
        if pair["against"] != base:
            name += f" against {pair['against']}"
        said = pair["verdict"] + (f" ({shortened(pair['reason'])})" if pair["reason"] else "")
        if (now := pair.get("candidate")) is not None:
            before, change = numbers.number(pair["base"], now), numbers.signed(pair["difference"], now)
            said = f"{before} → {numbers.number(now)} ({change}), {said}"
        yield f"{name}: {said}"
    if more := len(pairs[TOLD_PAIRS:]):
        yield f"{numbers.plural(more, 'more pair')} did not pass"


def _outcome_sentences(compared: ComparedRuns) -> Iterator[str]:
    return risen_outcomes(compared.outcomes, is_several(pair.key.benchmark for pair in compared.pairs))


def _clock_sentence(night: Night, ahead: str) -> str:
    return (
        f"inconclusive: by the clock it began at {numbers.moment(night.started)}, before {ahead}, which has "
        "ended; set the clock, or if it is right, remove that night's record "
        f"(suites/{night.suite}/{ahead}.json in the store)"
    )


def _muted_sentence(pair: MutedPair) -> str:
    against = f" against the anchor {pair.anchor}" if pair.anchor is not None else ""
    would = f" (it would say {pair.verdict})" if pair.verdict != "pass" else ""
    return f"{pair.pair}{against} is {pair.said}{would}"


def _with_reasons(failed: Sequence[NightEvaluation]) -> str:
    """The evaluations that failed, and behind all that have a reason in common, in short, that reason."""
    names: dict[str, list[str]] = {}
    for entry in failed:
        names.setdefault(shortened(entry.message or ""), []).append(entry.name)
    return ", ".join(", ".join(same) + (f" ({reason})" if reason else "") for reason, same in names.items())


def _alpha_sentence(gate: Gate, spent: int) -> str:
    part = gate.alpha / gate.shares
    return (
        f"night {spent} of {gate.shares} that share alpha {gate.alpha:g}: {part:.2g} a night, "
        f"{spent * part:.2g} spent"
    )


def summary_markdown(judged: JudgedNight) -> str:
    """The summary artifact and ``suite.md``: what is not this program's own is text in it, and neither markup
    nor anything that a terminal obeys."""
    return printable("\n".join(_markdown(judged)))


def _markdown(judged: JudgedNight) -> Iterator[str]:
    yield f"# {as_text(f'{judged.night.title}: {headline(judged)}')}\n"
    yield "| evaluation | state | answers | run | said |\n|---|---|---|---|---|"
    for entry in (*judged.night.evaluations, *judged.night.again):
        state = "complete" if entry.ok else "**failed**"
        again = judged.night.attempt > 1
        answers = "" if entry.requests is None else asked_and_reused(entry.requests, again)
        said = (
            as_text(entry.name),
            state,
            answers,
            as_code(entry.run_id, cell=True),
            as_text(entry.message or ""),
        )
        yield table_row(said)
    if judged.compared is not None:
        yield from _comparison(judged.compared)
    if judged.anchored is not None:
        yield from _comparison(judged.anchored)
    yield from _courses(judged.courses)
    if judged.skipped:
        yield "\n## Records of earlier nights that can't be read\n"
        yield from (f"- {as_text(str(skipped))}" for skipped in judged.skipped)


def _comparison(compared: ComparedRuns) -> Iterator[str]:
    yield f"\n## Against {as_text(compared.base)}\n"
    yield (
        "| benchmark | group | pair | base | candidate | difference | interval | p adj. | gate |\n"
        + "|---" * 9
        + "|"
    )
    yield from (table_row(_cells(pair)) for pair in compared.pairs[:ROWS])
    yield ""
    named = pair_names(compared.pairs)
    yield from (f"- {as_text(line)}" for line in _outcome_sentences(compared))
    yield from (f"- {as_text(change_line(change))}" for change in compared.changes if change.kind in DOUBT)
    yield from (f"- {_flipped_line(pair, named(pair))}" for pair in compared.pairs if pair.flipped)
    yield from (
        f"- {as_text(f'{named(pair)}: {pair.reason}')}"
        for pair in compared.pairs
        if pair.comparison and pair.reason
    )


def _benchmark_of(pair: ComparedPair) -> str:
    """The benchmark's name, and the one that it has now where that is another."""
    before, after = (key.benchmark if key else None for key in (pair.match.base, pair.match.candidate))
    return " → ".join(dict.fromkeys(name for name in (before, after) if name is not None))


def _cells(pair: ComparedPair) -> list[str]:
    names = [as_text(name) for name in (_benchmark_of(pair), " ".join(group_of(pair)), pair.key.pair)]
    found = pair.comparison
    if found is None:
        return [*names, *[""] * 5, as_text(pair.reason or "")]
    p, like = pair.p_adjusted, found.candidate
    return [
        *names, numbers.number(found.base, like), numbers.number(like),
        numbers.signed(found.difference, like), numbers.interval(found.ci_low, found.ci_high, like),
        numbers.MISSING if p is None or math.isnan(p) else f"{p:.3g}",
        f"{pair.verdict or ''}{' (muted)' if pair.muted else ''}",
    ]  # fmt: skip


def _flipped_line(pair: ComparedPair, name: str) -> str:
    """Which items flipped, with the beginning of their texts where they have no ids of their own."""
    found = signed_flips(pair)
    named = [
        as_code(f"{sign}{item.name}") + (f" {as_text(item.text)}" if item.text else "")
        for sign, item in found[:FLIPS]
    ]
    return f"flipped, {as_text(name)}: {', '.join(named)}{more_than(found, FLIPS)}"


def _courses(courses: tuple[PairCourse, ...]) -> Iterator[str]:
    drifts = [(_course_name(course), course.drift) for course in courses if course.drift is not None]
    moved = [(name, drift) for name, drift in drifts if drift.p_adjusted < NOTABLE]
    few = [name for name, drift in drifts if drift.p_least >= NOTABLE]
    flapping = [course for course in courses if course.flapping]
    if moved or few:
        yield "\n## Drift\n"
    for name, drift in moved:
        nights = "1 night" if drift.night == 1 else f"{drift.night} nights"
        anchor = as_text(drift.anchor)
        yield (
            f"- {as_text(name)}: {drift.first:.4g} → {drift.last:.4g} in {nights} since {anchor} "
            f"(p = {drift.p_adjusted:.2g})"
        )
    if few:
        named = ", ".join(map(as_text, few[:FLIPS])) + more_than(few, FLIPS)
        yield f"- too few items, or clusters, to tell a drift tonight, whatever they say: {named}"
    if flapping:
        yield "\n## Items that flip back and forth\n"
    for course in flapping:
        named = ", ".join(f"{as_code(item.name)} {as_text(item.course)}" for item in course.flapping[:FLIPS])
        yield f"- {as_text(_course_name(course))}: {named}{more_than(course.flapping, FLIPS)}"


def _course_name(course: PairCourse) -> str:
    group = " ".join(course.key.facet_words)
    return f"{course.key.benchmark} {course.key.pair}" + (f" ({group})" if group else "")


def night_document(judged: JudgedNight) -> dict[str, Any]:
    """The night as ``--json`` prints it and ``suite.json`` keeps it."""
    return {
        **judged.night.model_dump(mode="json"),
        "passed": judged.night.passed,
        "outcome": judged.outcome,
        "headline": headline(judged),
        "inconclusive_nights": judged.inconclusive,
        "alpha": None
        if judged.gate is None or not judged.spent
        else {
            "night": judged.spent,
            "nights": judged.gate.shares,
            "tonight": judged.gate.alpha / judged.gate.shares,
            "spent": judged.spent * judged.gate.alpha / judged.gate.shares,
        },
        "skipped": [str(skipped) for skipped in judged.skipped],
        "comparison": comparison_document(judged.compared) if judged.compared is not None else None,
        "anchor": comparison_document(judged.anchored) if judged.anchored is not None else None,
        "drift": [
            {"benchmark": course.key.benchmark, "pair": course.key.pair, "facets": dict(course.key.facets)}
            | asdict(course.drift)
            for course in judged.courses
            if course.drift is not None
        ],
        "flapping": [
            {"benchmark": course.key.benchmark, "pair": course.key.pair} | asdict(item)
            for course in judged.courses
            for item in course.flapping
        ],
    }


def noteworthy_pairs(judged: JudgedNight) -> list[dict[str, Any]]:
    """What a notification says of each pair that did not pass, worst first; against the anchor, of those that
    lost."""
    pairs = (
        [] if judged.compared is None else [(judged.compared.base, pair) for pair in judged.compared.pairs]
    )
    return told_pairs([*pairs, *((str(judged.anchored_to), pair) for pair in judged.losses)])
