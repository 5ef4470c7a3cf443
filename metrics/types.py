"""The vocabulary of metrics: output types, array types, and the records that metrics take and give.

Scorers and stages use the same names; nothing here computes anything.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

OutputType = Literal["generate_until", "multiple_choice", "loglikelihood", "loglikelihood_rolling"]
CutOff = Literal["wrong", "unscored", "text"]
"""What an answer is that was cut off before it began: no prediction, which is wrong; unscored, as if its
request had failed; or the empty text, as lm-evaluation-harness scores it."""

OUTPUT_TYPES: tuple[OutputType, ...] = get_args(OutputType)
Kind = Literal["sums", "values"]
Floats = NDArray[np.float64]
Ints = NDArray[np.signedinteger[Any]]
Bools = NDArray[np.bool_]
Values = Sequence[Any] | Floats
"""Items of kind "values": any objects, or one number each."""

Resolve = Callable[[str], Callable[..., Any]]
"""Turns ``"file.py:fn"`` of a config into the user's function; raises ConfigError where there is none."""

_NUMBERS = (int, float, np.number, np.bool_)
_NOT_REAL = (np.complexfloating, np.timedelta64)


def number_of(value: Any) -> float | None:
    """What a user's code returned as one number; None for what is none: a complex number, a span of time, an
    integer that no float holds."""
    if not isinstance(value, _NUMBERS) or isinstance(value, _NOT_REAL):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


HIGHEST_LOG_PROBABILITY = 1e-4
"""What rounding makes of the 0 of a certain token, at most: a number above it is no log-probability."""
NO_PREDICTION = -1
"""Code of a sample without a prediction, which has no vote in a majority."""
IGNORED_TARGET = -100
"""A gold index that counts for nothing: the convention of lm-evaluation-harness."""


@dataclass(frozen=True)
class Scores:
    """What a metric makes of n samples.

    ``statistics`` is (n, k) for kind "sums", otherwise None. ``values`` holds n JSON-able objects where the
    aggregation takes, or ``process_results`` gave, objects that are not one number each, otherwise None.
    ``score`` is each sample's own number, which reductions act on and people look at: NaN where the metric
    has none.
    """

    statistics: Floats | None
    values: list[Any] | None
    score: Floats
    details: list[dict[str, Any] | None] | None = None

    def __len__(self) -> int:
        return len(self.score)


@dataclass(frozen=True)
class Answer:
    """One sample's whole answer: what a metric is given that has a parameter ``answer``.

    ``text`` is the unfiltered response, ``tool_calls`` the calls beside it, ``{name, arguments}`` with the
    arguments as an object, or as the model's own text where that is none. ``transcript`` holds the messages
    of the chat in OpenAI's form, the answer last; ``tools`` those that could be called. ``metadata`` is what
    a recorded response has beside its own fields.
    """

    text: str | None
    tool_calls: list[dict[str, Any]]
    transcript: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ChoiceBatch:
    """Log-likelihoods of n items in flat arrays; item i owns the choices ``offsets[i]:offsets[i + 1]``.

    ``gold`` lists the acceptable choices of item i at ``gold_offsets[i]:gold_offsets[i + 1]``, as indices
    within the item; -100 is ignored. ``chars``, ``bytes`` and ``words`` are the lengths of the choices (of
    the whole document for a rolling log-likelihood, where an item has one "choice"); all 1 where a benchmark
    has no choices. Log-likelihoods are in nats, ``unconditional`` those of the same choices without context.
    ``greedy_unknown`` are the items whose record has no ``is_greedy``; None: it is known of all.
    ``unconditional_greedy`` is greediness without context, -1 where a record has none.
    """

    lls: Floats  # (m,)
    is_greedy: Bools  # (m,)
    offsets: Ints  # (n + 1,)
    gold: NDArray[np.int32]  # (g,)
    gold_offsets: Ints  # (n + 1,)
    chars: NDArray[np.int32]  # (m,)
    bytes: NDArray[np.int32]  # (m,)
    words: NDArray[np.int32]  # (m,)
    unconditional: Floats | None = None  # (m,)
    unconditional_greedy: NDArray[np.int8] | None = None  # (m,)
    tokens: NDArray[np.int32] | None = None  # (m,), as the server cut them; -1: not known
    texts: Any = None  # an Arrow array (m,) of the choices' texts, where a benchmark has choices
    greedy_unknown: Bools | None = None  # (n,)

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class LikelihoodResult:
    """All that is known of one item's log-likelihoods: what a user's metric is given as ``result``.

    The lists have an entry a choice, in nats where they are log-likelihoods; ``unconditional_lls`` are those
    without the context (mutual information), None where they were not asked for. ``targets`` are the indices
    of the right choices, ``predicted`` that of the likeliest. ``token_lengths`` counts each continuation's
    tokens as the server cut them; it and ``is_greedy`` are None where they are not known (recorded
    responses).
    """

    choices: list[str]
    lls: list[float]
    is_greedy: list[bool] | None
    targets: list[int]
    predicted: int
    char_lengths: list[int]
    byte_lengths: list[int]
    word_lengths: list[int]
    unconditional_lls: list[float] | None = None
    token_lengths: list[int] | None = None


def likelihood_results(batch: ChoiceBatch, predicted: Ints) -> list[LikelihoodResult]:
    """The items of a batch one by one; ``predicted`` (n,) is each item's likeliest choice."""

    def of(column: Any, offsets: Ints, row: int) -> list[Any]:
        entries: list[Any] = column[offsets[row] : offsets[row + 1]].tolist()
        return entries

    found = []
    for row in range(len(batch)):
        start, stop = int(batch.offsets[row]), int(batch.offsets[row + 1])
        found.append(
            LikelihoodResult(
                choices=[] if batch.texts is None else batch.texts[start:stop].to_pylist(),
                lls=of(batch.lls, batch.offsets, row),
                is_greedy=None
                if batch.greedy_unknown is not None and batch.greedy_unknown[row]
                else of(batch.is_greedy, batch.offsets, row),
                targets=of(batch.gold, batch.gold_offsets, row),
                predicted=int(predicted[row]),
                char_lengths=of(batch.chars, batch.offsets, row),
                byte_lengths=of(batch.bytes, batch.offsets, row),
                word_lengths=of(batch.words, batch.offsets, row),
                unconditional_lls=None
                if batch.unconditional is None
                else of(batch.unconditional, batch.offsets, row),
                token_lengths=None
                if batch.tokens is None or -1 in batch.tokens[start:stop]
                else of(batch.tokens, batch.offsets, row),
            )
        )
    return found


@dataclass(frozen=True)
class Estimate:
    """A number with its uncertainty.

    ``value`` is NaN for no items; ``stderr`` and the interval are NaN where nothing can be said (no items,
    one item, standard errors switched off, an aggregation without a sound method) and then ``stderr_method``
    is "none". ``warning`` says in a sentence when the error bar deserves doubt.
    """

    value: float
    stderr: float
    stderr_method: str
    ci_low: float
    ci_high: float
    n_items: int
    warning: str | None = None


def scalar_scores(score: Sequence[float] | Floats) -> Scores:
    """The scores of a metric whose statistic is the number itself."""
    column = np.asarray(score, dtype=np.float64)
    return Scores(statistics=column.reshape(-1, 1), values=None, score=column)
