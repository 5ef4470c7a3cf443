"""``ChoiceBatch`` from Arrow columns, and what scorers do with one: flat arrays throughout, no object per
row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metrics.types import IGNORED_TARGET, ChoiceBatch, Ints
from scorers.base import ScorerError

if TYPE_CHECKING:
    import pyarrow as pa


# What Python's ``\s`` matches in text, spelled out: Arrow's engine knows only the ASCII part by that name.
_WHITE_SPACE = (
    r"[\t-\r\x{1c}-\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]+"
)


@dataclass(frozen=True)
class ListColumn:
    """A list column in two flat parts: item i owns ``values[offsets[i]:offsets[i + 1]]``; a null list is
    empty."""

    values: "pa.Array"
    offsets: Ints

    @classmethod
    def of(cls, column: "pa.Array | pa.ChunkedArray") -> "ListColumn":
        """The parts of an Arrow list column, whatever its slicing, chunks and nulls."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        offsets = np.zeros(len(column) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(column.flatten(), offsets)  # flatten leaves null lists out, and minds the slice

    @property
    def lengths(self) -> Ints:
        """Entries of each item (n,)."""
        return np.diff(self.offsets)

    def numbers(self, dtype: Any) -> NDArray[Any]:
        """The flat values as an array."""
        return np.ascontiguousarray(self.values.to_numpy(zero_copy_only=False).astype(dtype, copy=False))


@dataclass(frozen=True)
class ChoiceColumns:
    """The Arrow columns of a batch of items with log-likelihoods, one row per sample.

    ``lls``, ``is_greedy``, ``unconditional_lls``, ``unconditional_greedy`` and ``token_lengths`` (None: never
    asked for, not known) are the model's; ``continuations`` and ``unconditional`` the texts that were asked
    about, ``choices`` the choices' texts without delimiter, ``gold`` the indices of the right ones.
    ``scored`` is False where the request failed.
    """

    item_ids: Sequence[str]
    scored: NDArray[np.bool_]
    lls: "pa.Array"
    is_greedy: "pa.Array"
    gold: "pa.Array"
    continuations: "pa.Array"
    choices: "pa.Array"
    unconditional: "pa.Array | None" = None
    unconditional_lls: "pa.Array | None" = None
    unconditional_greedy: "pa.Array | None" = None
    token_lengths: "pa.Array | None" = None


def choice_batch(columns: ChoiceColumns, *, rolling: bool = False) -> ChoiceBatch:
    """The columns as one ``ChoiceBatch`` of as many items; items that are not scored have no choices.

    Lengths are lm-evaluation-harness's: characters and UTF-8 bytes of the choice without its delimiter; words
    are what ``re.split(r"\\s+", text)`` gives. Without choices they are 1, but for a ``rolling``
    log-likelihood they are the document's. A gold index that no choice has becomes -100. Raises ScorerError
    naming the item whose log-likelihoods, choices or unconditional log-likelihoods do not match each other.
    """
    scored = columns.scored
    lls, greedy = (
        _of_scored(ListColumn.of(columns.lls), scored),
        _of_scored(ListColumn.of(columns.is_greedy), scored),
    )
    continuations = _of_scored(ListColumn.of(columns.continuations), scored)
    texts = continuations if rolling else _of_scored(ListColumn.of(columns.choices), scored)
    _require_equal_lengths(columns, lls, continuations, "log-likelihoods", "requests")
    unknown = (greedy.lengths == 0) & (lls.lengths > 0)
    if not rolling:  # greediness says nothing about a document
        _require_equal_lengths(columns, greedy, lls, "greedy flags", "log-likelihoods", unknown)
    if len(texts.values):
        _require_equal_lengths(columns, texts, lls, "choices", "log-likelihoods")
    m = len(lls.values)
    chars, byte_counts, words = (
        _lengths(texts.values) if len(texts.values) else (_ones(m), _ones(m), _ones(m))
    )
    gold = ListColumn.of(columns.gold)
    return ChoiceBatch(
        lls=lls.numbers(np.float64),
        is_greedy=_greedy(greedy, lls, m),
        offsets=lls.offsets,
        gold=_valid_gold(gold, lls),
        gold_offsets=gold.offsets,
        chars=chars,
        bytes=byte_counts,
        words=words,
        unconditional=_unconditional(columns, lls),
        unconditional_greedy=_where_known(columns, columns.unconditional_greedy, lls, np.int8),
        texts=texts.values if len(texts.values) else None,
        tokens=_where_known(columns, columns.token_lengths, lls, np.int32),
        greedy_unknown=unknown if unknown.any() and not rolling else None,
    )


def _greedy(greedy: ListColumn, lls: ListColumn, m: int) -> NDArray[np.bool_]:
    """Beside each log-likelihood; False where it is not known."""
    found = np.zeros(m, dtype=np.bool_)
    known = greedy.lengths == lls.lengths
    found[np.repeat(known, lls.lengths)] = greedy.numbers(np.bool_)[np.repeat(known, greedy.lengths)]
    return found


def take_items(batch: ChoiceBatch, rows: NDArray[np.intp]) -> ChoiceBatch:
    """The batch of the given items, in that order."""
    choices, offsets = _flat_positions(batch.offsets, rows)
    gold, gold_offsets = _flat_positions(batch.gold_offsets, rows)
    return ChoiceBatch(
        lls=batch.lls[choices],
        is_greedy=batch.is_greedy[choices],
        offsets=offsets,
        gold=batch.gold[gold],
        gold_offsets=gold_offsets,
        chars=batch.chars[choices],
        bytes=batch.bytes[choices],
        words=batch.words[choices],
        unconditional=None if batch.unconditional is None else batch.unconditional[choices],
        unconditional_greedy=None
        if batch.unconditional_greedy is None
        else batch.unconditional_greedy[choices],
        texts=None if batch.texts is None else batch.texts.take(choices),
        tokens=None if batch.tokens is None else batch.tokens[choices],
        greedy_unknown=None if batch.greedy_unknown is None else batch.greedy_unknown[rows],
    )


def _of_scored(lists: ListColumn, scored: NDArray[np.bool_]) -> ListColumn:
    """The lists with those of unscored items emptied."""
    if scored.all() or not lists.lengths[~scored].any():
        return lists
    import pyarrow as pa

    keep = np.repeat(scored, lists.lengths)
    offsets = np.zeros_like(lists.offsets)
    np.cumsum(np.where(scored, lists.lengths, 0), out=offsets[1:])
    return ListColumn(lists.values.filter(pa.array(keep)), offsets)


def _require_equal_lengths(
    columns: ChoiceColumns,
    one: ListColumn,
    other: ListColumn,
    what: str,
    than: str,
    lacking: NDArray[np.bool_] | None = None,
) -> None:
    """Raises naming the first item whose lists differ in length; not of those that are ``lacking`` one."""
    unequal = one.lengths != other.lengths
    wrong = np.flatnonzero(unequal if lacking is None else unequal & ~lacking)
    if len(wrong):
        row = int(wrong[0])
        raise ScorerError(
            f"item {columns.item_ids[row]!r} has {one.lengths[row]} {what} for {other.lengths[row]} {than}; "
            "expected as many"
        )


def _unconditional(columns: ChoiceColumns, lls: ListColumn) -> NDArray[np.float64] | None:
    """Mutual information subtracts choice by choice: as many, the same, in the same order."""
    if columns.unconditional_lls is None:
        return None
    answers = _of_scored(ListColumn.of(columns.unconditional_lls), columns.scored)
    if not len(answers.values):
        return None
    _require_equal_lengths(columns, answers, lls, "unconditional log-likelihoods", "conditional ones")
    if columns.unconditional is not None:
        continuations = _of_scored(ListColumn.of(columns.continuations), columns.scored)
        without_context = _of_scored(ListColumn.of(columns.unconditional), columns.scored)
        _require_equal_lengths(
            columns, without_context, continuations, "unconditional requests", "conditional ones"
        )
        _same_texts(columns, without_context, continuations)
    return answers.numbers(np.float64)


def _where_known(
    columns: ChoiceColumns, column: "pa.Array | None", lls: ListColumn, dtype: Any
) -> NDArray[Any] | None:
    """A number for each choice, -1 for those of an item of which they are not known; None where they are of
    no item.
    """
    if column is None:
        return None
    given = _of_scored(ListColumn.of(column), columns.scored)
    if not len(given.values):
        return None
    found = np.full(len(lls.values), -1, dtype=dtype)
    known = given.lengths == lls.lengths
    found[np.repeat(known, lls.lengths)] = given.numbers(dtype)[np.repeat(known, given.lengths)]
    return found


def _same_texts(columns: ChoiceColumns, without_context: ListColumn, continuations: ListColumn) -> None:
    """Raises for an unconditional request about something else than its choice. Where the choices are
    contexts, all conditional requests are about one and the same text, and the choice itself is asked alone.
    """
    import pyarrow.compute as pc

    equal = pc.equal(without_context.values, continuations.values).to_numpy(zero_copy_only=False)
    choices = _of_scored(ListColumn.of(columns.choices), columns.scored).values
    wrong = [
        place
        for place in np.flatnonzero(~equal.astype(np.bool_)).tolist()
        if len(choices) != len(continuations.values)
        or not without_context.values[place].as_py().endswith(choices[place].as_py())
    ]
    if wrong:
        place = wrong[0]
        row = int(np.searchsorted(continuations.offsets, place, side="right")) - 1
        alone, conditional = without_context.values[place].as_py(), continuations.values[place].as_py()
        raise ScorerError(
            f"item {columns.item_ids[row]!r}: unconditional request {place - continuations.offsets[row]} is "
            f"about {alone!r}, the conditional one about {conditional!r}; mutual information needs the same "
            "choices in the same order"
        )


def _valid_gold(gold: ListColumn, lls: ListColumn) -> NDArray[np.int32]:
    indices = gold.numbers(np.int32)
    counts = np.repeat(lls.lengths, gold.lengths)
    # Where there are no choices to count (failed items) the index stays: nobody looks at it.
    outside = ((indices < 0) | (indices >= counts)) & (counts > 0)
    return np.where(outside, np.int32(IGNORED_TARGET), indices)


def _lengths(texts: "pa.Array") -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    import pyarrow.compute as pc

    def array(lengths: "pa.Array") -> NDArray[np.int32]:
        return lengths.to_numpy(zero_copy_only=False).astype(np.int32)  # type: ignore[no-any-return]

    return (
        array(pc.utf8_length(texts)),
        array(pc.binary_length(texts)),
        array(pc.count_substring_regex(texts, _WHITE_SPACE)) + np.int32(1),
    )


def _ones(m: int) -> NDArray[np.int32]:
    return np.ones(m, dtype=np.int32)


def _flat_positions(offsets: Ints, rows: NDArray[np.intp]) -> tuple[Ints, Ints]:
    """Flat positions of the given items' entries, and the offsets of these."""
    lengths = np.diff(offsets)[rows]
    new_offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=new_offsets[1:])
    within = np.arange(new_offsets[-1]) - np.repeat(new_offsets[:-1], lengths)
    return np.repeat(offsets[:-1][rows], lengths) + within, new_offsets
