"""What the requests of one model came to: counts, tokens, cost, and which answers were given."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.models.config import Price
from tasks.models.limits.spending import Used, cost_of, estimated
from tasks.models.records import KeptAnswer, Request
from tasks.models.usage import COUNTED

NOT_RECORDED: Final = "not recorded"
"""The reason of requests that a recording does not hold."""
MOST_REASONS: Final = 100
"""Reasons that are counted apart: those that name their request are all distinct."""


def counts_in(answer: KeptAnswer) -> dict[str, int | None]:
    """The token counts of an answer, by their names."""
    return {name: getattr(answer, name) for name in COUNTED}


def exchanged(answer: KeptAnswer, asked: int) -> tuple[int, int] | None:
    """The characters that were asked, and those that the model wrote: its answer, its thought and its calls;
    None where no reply came."""
    if answer.reply_json is None:
        return None
    return asked, sum(len(getattr(answer, name) or "") for name in SAID)


def asked_characters(requests: Sequence[Request]) -> list[int]:
    """How much each of the requests of a group has of what is asked in one call; samples of one prompt share
    it."""
    together = len(requests) if requests and requests[0].kind == "generate" else 1
    return [(len(request.prompt) + len(request.continuation)) // together for request in requests]


@dataclass
class RequestTally:
    """Counts of one model in one stage; ``cached`` requests were answered before, and ``saved_*`` is what
    that spared.

    ``sent`` counts requests that went to the endpoint, ``attempts`` their HTTP attempts, ``answered`` those
    with an answer; ``failed`` are those without, of which ``retryable`` are worth asking again.
    ``refused`` are answers by which model or provider refused. ``same_night`` are the cached requests that
    this night asked: in an earlier attempt, in another evaluation, or once for several of them. ``absent``
    are the failed ones that a recording does not hold. ``batched`` are those of ``sent`` that a batch
    asked. ``uncounted`` are replies that do not say their tokens: they are in no count of tokens, and in no
    cost. ``seconds`` is the sum over requests. ``served`` counts answers by the model name that the server
    gave. ``cache_saved`` is what prompt tokens that the provider had cached cost less.
    """

    requests: int = 0
    sent: int = 0
    answered: int = 0
    cached: int = 0
    same_night: int = 0
    failed: int = 0
    retryable: int = 0
    refused: int = 0
    absent: int = 0
    attempts: int = 0
    retries: int = 0
    batched: int = 0
    uncounted: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    seconds: float = 0.0
    wall_seconds: float = 0.0
    cost: float = 0.0
    saved_tokens: int = 0
    saved_cost: float = 0.0
    saved_seconds: float = 0.0
    cache_saved: float = 0.0
    stopped: str | None = None
    served: dict[str, int] = field(default_factory=dict)
    fingerprints: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def total_tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def error_rate(self) -> float:
        """Share of the requests without an answer, between 0 and 1: what is compared with the error budget. A
        refusal is an answer."""
        return self.failed / self.requests if self.requests else 0.0

    def count_error(self, reason: str) -> None:
        """Counts one more failed request by its reason; a reason beyond ``MOST_REASONS`` has no count of its
        own, and ``failed`` has all.

        >>> tally = RequestTally()
        >>> for number in range(400):
        ...     tally.count_error(f"item {number % 200}")
        >>> len(tally.errors), tally.errors["item 99"], "item 100" in tally.errors
        (100, 2, False)
        """
        if reason in self.errors or len(self.errors) < MOST_REASONS:
            self.errors[reason] = self.errors.get(reason, 0) + 1

    def without_absent(self) -> "RequestTally":
        """The counts without what a recording does not hold; as they are where it holds nothing."""
        if self.absent == self.requests:
            return self
        requests, failed = self.requests - self.absent, self.failed - self.absent
        errors = {reason: count for reason, count in self.errors.items() if reason != NOT_RECORDED}
        return replace(self, requests=requests, failed=failed, absent=0, errors=errors)

    def add(self, answer: KeptAnswer, price: Price | None, asked: int = 0) -> Used:
        """Counts an answer that was just given to so many characters; gives what it used."""
        self._count_answer(answer.status, answer.served_model, answer.system_fingerprint)
        self.seconds += answer.inference_time or 0.0
        return self.use(counts_in(answer), price, exchanged(answer, asked))

    def _count_answer(self, status: str, served: str | None, fingerprint: str | None) -> None:
        self.answered += 1
        self.refused += status == "refused"
        if served is not None:
            self.served[served] = self.served.get(served, 0) + 1
        if fingerprint is not None:
            self.fingerprints[fingerprint] = self.fingerprints.get(fingerprint, 0) + 1

    def recognise(self, answer: pa.Table) -> None:
        """Takes an answer for no reused one: what it took is in the counts of an earlier attempt, which
        ``after`` adds."""
        (row,) = answer.select(["status", "served_model", "system_fingerprint"]).to_pylist()
        self.cached -= 1
        self._count_answer(*row.values())

    def use(
        self, counts: Mapping[str, int | None], price: Price | None, characters: tuple[int, int] | None
    ) -> Used:
        """Counts what a reply used, whether or not an answer was in it; gives that. Where the reply leaves it
        out, what it gives is its total, else estimated by the characters that were asked and said; None: no
        answer came."""
        told, said, total, hit, thought = (counts[name] for name in COUNTED)
        prompt, completion, hit, thought = told or 0, said or 0, hit or 0, thought or 0
        expected = None
        if None in (told, said) and (characters, total) != (None, None):
            expected = estimated(told, said, total, *(characters or (0, 0)))
            if (told, said, total).count(None) == 1:  # the other two say it
                (prompt, completion), expected = expected, None
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        self.cached_tokens += hit
        self.reasoning_tokens += thought
        cost = cost_of(prompt, completion, hit, price)
        self.cost += cost
        self.cache_saved += cost_of(prompt, completion, 0, price) - cost
        if expected is None:
            return Used(prompt + completion, cost)
        self.uncounted += 1
        return Used(sum(expected), cost_of(*expected, hit, price))

    def take_over(self, answer: pa.Table, price: Price | None, asked: int) -> Used:
        """Counts what a process that was killed had asked for a request of so many characters, as if this one
        had; gives what that used."""
        (row,) = answer.select([*COUNTED_AGAIN, *SAID, "reply_json"]).to_pylist()
        # An answer of a batch took no seconds of its own; a refusal without a reply took none either.
        replied = row["status"] != "refused" or row["prompt_tokens"] is not None
        batched = row["inference_time"] is None and replied
        self.batched += batched
        self.sent += 1
        self.cached -= 1
        self.attempts += row["attempts"]
        self.retries += row["attempts"] - 1
        price = price.of_batches() if batched and price else price
        return self.add(KeptAnswer(key=b"", **row), price, asked)

    def count_reused(self, answers: pa.Table, price: Price | None) -> None:
        """Counts what kept answers (rows of ANSWERS) spared."""
        self.refused += answers.column("status").to_pylist().count("refused")
        counts, by_batch = answers.select(SAVED), answers.column("inference_time").is_null()
        for chosen, paid in ((pc.invert(by_batch), price), (by_batch, price and price.of_batches())):
            columns = counts.filter(chosen).columns
            prompt, completion, hit, seconds = (sum(filter(None, one.to_pylist())) for one in columns)
            self.saved_tokens += prompt + completion
            self.saved_seconds += seconds
            self.saved_cost += cost_of(prompt, completion, hit, paid)

    def merged(self, other: "RequestTally") -> "RequestTally":
        """Both together: numbers add up, wall time is the longer one's."""
        mine, theirs = asdict(self), asdict(other)
        both: dict[str, Any] = {}
        for name, value in mine.items():
            if isinstance(value, dict):
                both[name] = {
                    key: value.get(key, 0) + theirs[name].get(key, 0) for key in value | theirs[name]
                }
            elif name == "stopped":
                both[name] = value or theirs[name]
            else:
                both[name] = max(value, theirs[name]) if name == "wall_seconds" else value + theirs[name]
        return RequestTally(**both)

    def after(self, spent: Sequence["RequestTally"]) -> "RequestTally":
        """The counts with what earlier attempts at the same requests took: their requests are these, and what
        was answered then is ``recognise``d now."""
        took = (
            "sent",
            "batched",
            "attempts",
            "retries",
            "uncounted",
            "prompt_tokens",
            "completion_tokens",
            "cached_tokens",
        )
        more = {
            name: sum((getattr(tally, name) for tally in spent), getattr(self, name))
            for name in (*took, "reasoning_tokens", "seconds", "wall_seconds", "cost", "cache_saved")
        }
        return replace(self, **more)

    def as_dict(self) -> dict[str, Any]:
        """The counts as a JSON object, for manifests."""
        return {**asdict(self), "total_tokens": self.total_tokens}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "RequestTally":
        """The inverse of ``as_dict``, in stores of before 2026-11-23 too."""
        named = {("refused" if name == "model_errors" else name): part for name, part in value.items()}
        return cls(**{name: part for name, part in named.items() if name != "total_tokens"})


def note_spent(error: BaseException, tally: RequestTally) -> None:
    """Says with an error what had been asked before it: it was paid, whatever became of the answers. The
    error may go to another process."""
    vars(error)[_SPENT] = tally.as_dict()


def spent_before(error: object) -> RequestTally | None:
    """What an error says of what had been asked before it; None: nothing."""
    said = getattr(error, _SPENT, None)
    return None if said is None else RequestTally.from_dict(said)


_SPENT: Final = "spent_before"

SAID: Final = ("response", "reasoning", "tool_calls_json")
"""What a model wrote."""
COUNTED_AGAIN = ["status", "attempts", "served_model", "system_fingerprint", "inference_time", *COUNTED]
SAVED = ("prompt_tokens", "completion_tokens", "cached_tokens", "inference_time")


@dataclass(frozen=True)
class AnswerCounts:
    """Where the answers of a run or a night came from; ``kept`` are from an earlier attempt of the night."""

    asked: int
    reused: int
    kept: int = 0
    by_batch: int = 0

    @classmethod
    def of(cls, requests: Mapping[str, Any], retried: bool = False) -> "AnswerCounts":
        """From the counts of a tally or of a manifest; those of a night that is ``retried`` are of its last
        attempt. Else an answer of the same night was asked for by another request that is equal."""
        names = ("sent", "cached", "same_night", "batched")
        sent, cached, same_night, batched = (requests.get(name) or 0 for name in names)
        if retried:
            return cls(sent, cached - same_night, same_night, batched)
        return cls(sent + same_night, cached - same_night, by_batch=batched)


def asked_and_reused(requests: Mapping[str, Any], retried: bool = False) -> str:
    """``AnswerCounts`` in words.

    >>> asked_and_reused({"sent": 1300, "cached": 19, "same_night": 19})
    'asked 1,319, reused 0'
    >>> asked_and_reused({"sent": 0, "cached": 300, "same_night": 300}, retried=True)
    'asked 0, kept 300 from earlier in this night, reused 0'
    >>> asked_and_reused({"sent": 1319, "cached": 0, "batched": 1300})
    'asked 1,319 (1,300 by batch), reused 0'
    """
    counts = AnswerCounts.of(requests, retried)
    by_batch = f" ({counts.by_batch:,} by batch)" if counts.by_batch else ""
    kept = f"kept {counts.kept:,} from earlier in this night, " if counts.kept else ""
    return f"asked {counts.asked:,}{by_batch}, {kept}reused {counts.reused:,}"


class GivenAnswers:
    """Digest of which answers were given: of when each was asked for, in the order of the requests."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, asked_at: NDArray[np.float64]) -> None:
        """Takes the next answers, in seconds since 1970, NaN where there is none."""
        self._digest.update(np.where(np.isnan(asked_at), -1.0, asked_at).tobytes())

    def hexdigest(self) -> str:
        """64 hexadecimal digits."""
        return self._digest.hexdigest()


@dataclass(frozen=True)
class PartitionResponses:
    """A partition's responses: RESPONSES batches in request order, to be read once, and what they came to.

    ``given`` is the digest of when the answers were asked for, request by request: what tells them from
    others to the same requests. It is complete once the batches are read.
    """

    batches: Iterator[pa.RecordBatch]
    tally: RequestTally
    given: GivenAnswers = field(default_factory=GivenAnswers)
