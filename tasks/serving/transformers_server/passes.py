"""Passes through the model; keys and values are kept where a comparison proves that this changes nothing."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from .loading import last_line

ALIKE = 0.75
"""How long the shortest row of a pass is, as a share of the longest: the difference is work for nothing."""

SAME, SAME_ROUNDED = 1e-3, 16
"""How far log-probabilities with kept keys and values may be from those without: in nats, and for coarse
types in rounding errors of a usual logit."""

TRIED = (7, 12, 22)
"""Tokens of the sequences that are compared."""


class PlainRows:
    """Whole sequences, which go through the model at every step."""

    def __init__(self, passes: "Passes", rows: Sequence[Sequence[int]]) -> None:
        self._passes, self._rows = passes, [list(row) for row in rows]

    def begin(self) -> torch.Tensor:
        """The logits of the first tokens."""
        return self._passes.last(self._rows)

    def take(self, others: Sequence["PlainRows"]) -> None:
        """Goes on with the rows of others, too."""
        self._rows = [row for one in (self, *others) for row in one._rows]

    def keep(self, numbers: Sequence[int]) -> None:
        """Goes on with these rows alone."""
        self._rows = [self._rows[number] for number in numbers]

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Adds a token to each row, and gives the logits of the next ones."""
        for row, token in zip(self._rows, tokens, strict=True):
            row.append(token)
        return self._passes.last(self._rows)


class KeptRows:
    """Keys and values of all tokens but the next, and the mask over them; shorter rows have room on their
    left."""

    def __init__(self, passes: "Passes", rows: Sequence[Sequence[int]]) -> None:
        self._passes = passes
        self._ids, self._mask = passes.padded(rows, left=True)
        self._cache: Any = DynamicCache()

    def begin(self, *, last: bool = True) -> torch.Tensor:
        """The logits of the first tokens; without ``last`` those of all tokens, in the weights' type."""
        out = self._passes.kept(self._ids, self._mask, self._cache, last=last)
        self._cache = out.past_key_values
        return torch.as_tensor(out.logits[:, -1].float() if last else out.logits)

    def behind(self, numbers: Sequence[int], tails: Sequence[Sequence[int]]) -> torch.Tensor:
        """The logits of what may stand behind the rows: each of ``tails`` behind the row of its number."""
        chosen = torch.tensor(numbers, device=self._mask.device)
        ids, mask = self._passes.padded(tails)
        mask = torch.cat([self._mask[chosen], mask], dim=1)
        return torch.as_tensor(self._passes.kept(ids, mask, chosen_rows(self._cache, chosen)).logits)

    def take(self, others: Sequence["KeptRows"]) -> None:
        """Goes on with the rows of others, too."""
        masks = [one._mask for one in (self, *others)]
        width = max(mask.shape[1] for mask in masks)
        rooms = [width - mask.shape[1] for mask in masks]
        mask = torch.cat([pad(one, (room, 0)) for one, room in zip(masks, rooms, strict=True)])

        def joined(*tensors: torch.Tensor) -> torch.Tensor:
            return torch.cat([pad(one, (0, 0, room, 0)) for one, room in zip(tensors, rooms, strict=True)])

        layers = zip(*(kept_tensors(one._cache) for one in (self, *others)), strict=True)
        self._cache = DynamicCache([tuple(map(joined, *layer)) for layer in layers])
        self._mask = mask

    def keep(self, numbers: Sequence[int]) -> None:
        """Goes on with these rows alone."""
        kept = torch.tensor(numbers, device=self._mask.device)
        self._mask = self._mask[kept]
        self._cache = chosen_rows(self._cache, kept)

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Adds a token to each row, and gives the logits of the next ones."""
        ids = torch.tensor(tokens, device=self._mask.device)[:, None]
        self._mask = torch.cat([self._mask, self._mask.new_ones((len(tokens), 1))], dim=1)
        out = self._passes.kept(ids, self._mask, self._cache)
        self._cache = out.past_key_values
        return out.logits[:, -1].float()


def kept_tensors(cache: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of every layer."""
    return [(keys, values) for keys, values, *_ in cache]


def chosen_rows(cache: Any, rows: torch.Tensor) -> Any:
    """A cache with these rows of another; a row may be there several times."""
    return DynamicCache([(keys[rows], values[rows]) for keys, values in kept_tensors(cache)])


class Passes:
    """The model's forward passes, plain and with keys and values that are kept.

    ``cells`` is how many logits a pass may have; ``keeps`` whether kept keys and values change nothing, and
    ``why_not``.
    """

    def __init__(self, model: Any, pad_id: int, cells: int) -> None:
        self._model, self._pad, self.cells = model, pad_id, cells
        self.device = next(model.parameters()).device
        self.vocabulary = model.get_output_embeddings().weight.shape[0]
        self._named = inspect.signature(model.forward).parameters
        self.keeps, self.why_not = False, "was not compared"
        self._states, self._alone = False, False

    def padded(
        self, rows: Sequence[Sequence[int]], *, left: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids as rows of one width, and where they are."""
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), self._pad, dtype=torch.long)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for number, row in enumerate(rows):
            place = slice(width - len(row), width) if left else slice(0, len(row))
            ids[number, place] = torch.tensor(row)
            mask[number, place] = 1
        return ids.to(self.device), mask.to(self.device)

    def whole(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Logits of rows in one plain pass; no token looks at what stands behind its row's end, so that no
        mask is needed."""
        if self._alone and len(rows) > 1:
            return pad_sequence([self.whole([row])[0] for row in rows], batch_first=True)
        ids, _ = self.padded(rows)
        ids = pad(ids, (0, max(0, 2 - ids.shape[1])), value=self._pad)  # of one token some take it for a step
        return torch.as_tensor(self._model(input_ids=ids, use_cache=self._states).logits)

    def last(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Logits of the tokens behind the rows' last ones, by plain passes over rows of like length."""
        found = torch.empty((len(rows), 0))
        order = sorted(range(len(rows)), key=lambda number: -len(rows[number]))
        while order:
            width = len(rows[order[0]])
            most = max(1, self.cells // (width * self.vocabulary))
            alike = [number for number in order if len(rows[number]) >= ALIKE * width][:most]
            order = order[len(alike) :]
            logits = self.whole([rows[number] for number in alike])
            ends = torch.tensor([len(rows[number]) - 1 for number in alike], device=logits.device)
            made = logits[torch.arange(len(alike), device=logits.device), ends].float()
            if not found.shape[1]:
                found = made.new_empty((len(rows), made.shape[1]))
            found[torch.tensor(alike, device=made.device)] = made
        return found

    def kept(self, ids: torch.Tensor, mask: torch.Tensor, cache: Any, *, last: bool = False) -> Any:
        """A pass over tokens behind those that the cache keeps; the mask is over all of them."""
        told: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "past_key_values": cache}
        if "position_ids" in self._named:
            told["position_ids"] = _positions(mask)[:, -ids.shape[1] :]
        if last and "logits_to_keep" in self._named:
            told["logits_to_keep"] = 1
        return self._model(**told, use_cache=True)

    def compare(self) -> None:
        """Decides how passes are made, by comparing what is done with them, on rows of several lengths."""
        draw = torch.Generator().manual_seed(0)
        rows = [torch.randint(self.vocabulary, (size,), generator=draw).tolist() for size in TRIED]
        # Some models keep a state between passes, which they make again where a cache is asked for alone.
        for self._states in (False, True):
            wrong = self._differs(lambda: self._plain(rows[:2]) + self._plain(rows), lambda: self._each(rows))
            if not wrong:
                break
        else:
            self._states, self._alone = False, True
            self.why_not = f"sequences in a pass disturb each other ({wrong}), so each has a pass of its own"
            return
        if "past_key_values" not in self._named:
            self.why_not = "this model takes no past_key_values"
            return
        self.why_not = self._differs(
            lambda: [*self._generated(KeptRows, rows), *self._behind(rows)],
            lambda: [*self._generated(PlainRows, rows), *self._halves(rows)],
        )
        self.keeps = not self.why_not

    def _differs(
        self, tried: Callable[[], list[torch.Tensor]], plain: Callable[[], list[torch.Tensor]]
    ) -> str:
        """Why what is tried is not used: an error, or other log-probabilities; empty where it is."""
        try:
            found, wanted = tried(), plain()
        except Exception as error:  # of whatever kind: a model is served without what it can't do
            return last_line(error)
        away = max(_away(one, other) for one, other in zip(found, wanted, strict=True))
        usual = max(float(one.float().std(dim=-1).max()) for one in wanted)
        bound = max(SAME, SAME_ROUNDED * torch.finfo(self._model.dtype).eps * usual)
        return "" if away <= bound else f"log-probabilities would be {away:.2g} away"

    def _plain(self, rows: Sequence[list[int]]) -> list[torch.Tensor]:
        logits = self.whole(rows)
        return [logits[number, : len(row)] for number, row in enumerate(rows)]

    def _each(self, rows: Sequence[list[int]]) -> list[torch.Tensor]:
        alone = [self.whole([row])[0] for row in rows]
        return [*alone[:2], *alone]

    def _generated(self, kind: Any, rows: Sequence[list[int]]) -> Iterator[torch.Tensor]:
        first, second, third, *_ = rows
        both, more = kind(self, [first, second]), kind(self, [third])
        yield both.begin()
        yield both.step([first[0], second[0]])
        yield more.begin()
        both.take([more])
        yield both.step([third[0], first[1], second[1]])
        both.keep([2, 1])
        yield both.step([third[2], first[2]])

    def _behind(self, rows: Sequence[list[int]]) -> Iterator[torch.Tensor]:
        begun = KeptRows(self, [row[: len(row) // 2] for row in rows])
        all_of_them = begun.begin(last=False)
        tails = begun.behind(
            [0, 0, 1, 2], [rows[0][len(rows[0]) // 2 :], *(row[len(row) // 2 :] for row in rows)]
        )
        for number, row in enumerate(rows):
            yield all_of_them[number, -(len(row) // 2) :]
            yield tails[number + 1, : len(row) - len(row) // 2]

    def _halves(self, rows: Sequence[list[int]]) -> Iterator[torch.Tensor]:
        for row, logits in zip(rows, self._plain(rows), strict=True):
            yield logits[: len(row) // 2]
            yield logits[len(row) // 2 :]


def _away(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference of two log-probabilities; more than any where one is none."""
    found = float((one.float().log_softmax(-1) - other.float().log_softmax(-1)).abs().max())
    return found if found == found else float("inf")


def _positions(mask: torch.Tensor) -> torch.Tensor:
    return (mask.cumsum(dim=-1) - 1).clamp(min=0)
