"""Which samples of two runs stand side by side, and which of them a page shows.

Only numbers are kept: some hundred bytes a sample and no text. A model or prompt that is the only one in each
run is what the runs are about (two checkpoints, two prompts) and does not hold their samples apart.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain

from tasks.reporting import numbers
from tasks.reporting.report.select import PageLimits
from tasks.reporting.view import SampleView, mean_of_scored

SampleKey = tuple[str, str, str]
PairMeans = Mapping[str, float | None]


@dataclass
class ScannedRun:
    """The samples of one run as keys and mean scores, by position."""

    keys: list[SampleKey] = field(default_factory=list)
    means: list[PairMeans] = field(default_factory=list)
    failed: list[bool] = field(default_factory=list)
    responses: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, samples: Iterable[SampleView]) -> "ScannedRun":
        """One pass over a run's samples."""
        run = cls()
        for sample in samples:
            item = sample.item_digest or sample.item_id
            run.keys.append((item, sample.model_name, sample.prompt_template))
            run.means.append({pair: mean_of_scored(scores) for pair, scores in sample.scores.items()})
            run.failed.append(sample.failed)
            run.responses.append(max(1, len(sample.responses)))
        return run


@dataclass(frozen=True)
class PairedSample:
    """Positions of one sample in both runs, None where a run does not have it; did a score change?"""

    base: int | None
    candidate: int | None
    flipped: bool


def pair_samples(base: ScannedRun, candidate: ScannedRun) -> list[PairedSample]:
    """All samples of both runs, paired by item, and by model and prompt where a run has several.

    The n-th copy of an item meets the n-th copy. Samples of one run alone come last.
    """
    apart = [len({key[part] for key in run.keys}) > 1 for part in (1, 2) for run in (base, candidate)]
    by_model, by_prompt = apart[0] or apart[1], apart[2] or apart[3]

    def shared(key: SampleKey) -> SampleKey:
        return key[0], key[1] if by_model else "", key[2] if by_prompt else ""

    decisive = _decisive(base, candidate)
    waiting: defaultdict[SampleKey, list[int]] = defaultdict(list)
    for position, key in enumerate(candidate.keys):
        waiting[shared(key)].append(position)
    paired = []
    for position, key in enumerate(base.keys):
        partners = waiting.get(shared(key))
        partner = partners.pop(0) if partners else None
        paired.append(
            PairedSample(
                position,
                partner,
                partner is not None and _flipped(base.means[position], candidate.means[partner], decisive),
            )
        )
    alone = sorted(position for positions in waiting.values() for position in positions)
    return paired + [PairedSample(None, position, False) for position in alone]


def choose_pairs(
    pairs: list[PairedSample], base: ScannedRun, candidate: ScannedRun, limits: PageLimits
) -> tuple[list[PairedSample], str | None]:
    """The pairs that a page shows, in order, and in words what is left out (None: nothing).

    Beyond the limit: all that flipped or failed in a run, and a seeded draw from the others.
    """
    sizes = [_size(pair, base, candidate) for pair in pairs]
    if sum(sizes) <= limits.samples:
        return pairs, None

    def certain(pair: PairedSample) -> bool:
        failed = pair.base is not None and base.failed[pair.base]
        return pair.flipped or failed or (pair.candidate is not None and candidate.failed[pair.candidate])

    chosen = {index for index, pair in enumerate(pairs) if certain(pair)}
    n_certain, shown = len(chosen), sum(sizes[index] for index in chosen)
    others = (index for index in range(len(pairs)) if index not in chosen)
    for index in sorted(others, key=lambda index: _draw(limits.seed, pairs[index], base, candidate)):
        if shown + sizes[index] > limits.samples:
            break
        chosen.add(index)
        shown += sizes[index]
    statement = (
        f"{numbers.count(len(chosen))} of {numbers.plural(len(pairs), 'pair')} of samples can be looked "
        f"through here: all {numbers.count(n_certain)} that changed or failed, and a random choice of the "
        f"others (seed {limits.seed}). Differences and counts are those of all samples."
    )
    return [pairs[index] for index in sorted(chosen)], statement


def _decisive(base: ScannedRun, candidate: ScannedRun) -> set[str]:
    """The pairs whose change is a flip: those with scores from 0 to 1 only, or all if there are none.

    Every BLEU moves a little when a response does; that says nothing.
    """
    pairs: set[str] = set()
    beyond: set[str] = set()
    for means in chain(base.means, candidate.means):
        pairs |= means.keys()
        beyond |= {pair for pair, mean in means.items() if mean is not None and not 0 <= mean <= 1}
    return pairs - beyond or pairs


def _flipped(before: PairMeans, after: PairMeans, decisive: set[str]) -> bool:
    return any(before[pair] != after[pair] for pair in before.keys() & after.keys() & decisive)


def _size(pair: PairedSample, base: ScannedRun, candidate: ScannedRun) -> int:
    return (0 if pair.base is None else base.responses[pair.base]) + (
        0 if pair.candidate is None else candidate.responses[pair.candidate]
    )


def _draw(seed: int, pair: PairedSample, base: ScannedRun, candidate: ScannedRun) -> bytes:
    key = base.keys[pair.base] if pair.base is not None else candidate.keys[pair.candidate or 0]
    name = "\0".join((str(seed), *key))
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
