"""A server for folders of Hugging Face weights: OpenAI's chat and completions, and prompts' log-likelihoods.

A program of its own, run by an interpreter that has torch and transformers; beyond these it needs the
standard library alone, and imports nothing of this project::

    python transformers_server.py --model ./checkpoint --port 8000 [--dtype float32] [--device cuda]

Requests that wait together are worked on together, those of like length beside each other. A prompt's log-
probabilities are those of a forward pass in the weights' type, normalised in float32. A sequence that is
generated leaves its batch when it ends, and new ones join those that run: a step is one pass for all. At
temperature 0 the likeliest token is taken.

Keys and values are kept where that is proved to change nothing: when the server starts, one comparison says
whether this model gives the same log-probabilities with transformers' ``DynamicCache`` as without. Then what
several prompts begin with, as the choices of a question do, is worked on once, and a step of generation is a
pass over one token. Otherwise every pass is a plain one over whole sequences, which is right for any model
that looks back only.
"""

import argparse
import inspect
import json
import queue
import signal
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

TOP_AT_MOST = 20
LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
BATCH_WAIT, BATCH_WAIT_AT_MOST = 0.003, 0.03
"""How long a batch waits for company: after the last that came, and after the first."""
ALIKE = 0.75
"""How long the shortest row of a pass is, as a share of the longest: the difference is work for nothing."""
LEAST_COMMON = 0.25
"""What share of a sequence it has to have in common with others to be worked on together with them."""
POSITIONS = 16
"""Of how many tokens all probabilities are looked at at once on a CPU: what its cache holds."""
SAME, SAME_ROUNDED = 1e-3, 16
"""How far log-probabilities with kept keys and values may be from those without: in nats, and for coarse
types in rounding errors of a usual logit."""
TRIED = (7, 12, 22)
"""Tokens of the sequences that are compared."""
TAIL = 48
"""Tokens of an answer's end in which a stop text is looked for at each step."""
KNOWN = {
    "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k",
    "min_p", "n", "seed", "stop", "echo", "logprobs", "top_logprobs", "prompt_logprobs", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "stream", "stream_options", "user", "chat_template_kwargs",
    "add_special_tokens",
}  # fmt: skip
"""Fields that a request may have; any other is refused, and not left out silently."""


class Refused(Exception):
    """A request that can't be served: status 400 and the reason."""


class Overloaded(Exception):
    """A request that may be served later: status 503 and the reason."""


@dataclass
class Sampling:
    """How tokens of an answer are chosen."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0


@dataclass
class Job:
    """One sequence to score or to go on with; ``done`` is set when ``error`` or the results are there."""

    ids: list[int]
    score: bool
    top: int = 1
    max_tokens: int = 0
    stops: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    logprobs: list[float | None] = field(default_factory=list)
    tops: list[list[tuple[int, float]]] = field(default_factory=list)
    new_ids: list[int] = field(default_factory=list)
    new_logprobs: list[float] = field(default_factory=list)
    new_tops: list[list[tuple[int, float]]] = field(default_factory=list)
    finish: str = "length"
    error: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)


class PlainRows:
    """Whole sequences, which go through the model at every step."""

    def __init__(self, passes: "Passes", rows: Sequence[Sequence[int]]) -> None:
        self._passes, self._rows = passes, [list(row) for row in rows]

    def begin(self) -> torch.Tensor:
        """The logits of the first tokens."""
        return self._passes.last(self._rows)

    def take(self, other: "PlainRows") -> None:
        """Goes on with another's rows, too."""
        self._rows += other._rows

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

    def take(self, other: "KeptRows") -> None:
        """Goes on with another's rows, too."""
        width = max(self._mask.shape[1], other._mask.shape[1])
        room, others = width - self._mask.shape[1], width - other._mask.shape[1]
        self._mask = torch.cat([pad(self._mask, (room, 0)), pad(other._mask, (others, 0))])

        def joined(own: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
            return torch.cat([pad(own, (0, 0, room, 0)), pad(new, (0, 0, others, 0))])

        pairs = zip(kept_tensors(self._cache), kept_tensors(other._cache), strict=True)
        self._cache = DynamicCache([tuple(map(joined, own, new)) for own, new in pairs])

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
        # Some models keep a state between passes, which they make anew where a cache is asked for alone.
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
        both.take(more)
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


class DecodeBatch:
    """Sequences that go on together, and the logits of their next tokens."""

    def __init__(self, jobs: list[Job], rows: Any, logits: torch.Tensor) -> None:
        self.jobs, self.rows, self.logits = jobs, rows, logits
        self.generators = [_generator(job, logits.device) for job in jobs]

    def take(self, other: "DecodeBatch") -> None:
        """Goes on with another's sequences, too."""
        self.rows.take(other.rows)
        self.logits = torch.cat([self.logits, other.logits])
        self.jobs = [*self.jobs, *other.jobs]
        self.generators += other.generators

    def keep(self, numbers: list[int]) -> None:
        """Goes on with these sequences alone."""
        self.rows.keep(numbers)
        self.generators = [self.generators[number] for number in numbers]
        self.jobs = [self.jobs[number] for number in numbers]


def _generator(job: Job, device: torch.device) -> torch.Generator | None:
    if job.sampling.temperature == 0:
        return None
    made = torch.Generator(device=device)
    if job.sampling.seed is None:
        made.seed()
    else:
        made.manual_seed(job.sampling.seed % (1 << 63))
    return made


@dataclass
class SharedPrefix:
    """Sequences to score that begin with the same ``common`` tokens; those of a row differ in their last one
    alone."""

    common: int
    rows: list[list[Job]]

    @property
    def jobs(self) -> list[Job]:
        """All of them."""
        return [job for row in self.rows for job in row]

    @property
    def length(self) -> int:
        """Tokens that go into the model for its longest sequence."""
        return max(len(_inputs(row[0])) for row in self.rows)


def shared_prefixes(jobs: list[Job], at_most: int, tokens: int) -> list[SharedPrefix]:
    """Jobs by what they begin with, where that saves work: prefixes of ``at_most`` rows (below two: of one),
    which beyond their beginning have ``tokens`` tokens together at most."""
    rows: dict[tuple[int, ...], list[Job]] = {}
    for job in jobs:
        rows.setdefault(_inputs(job), []).append(job)
    prefixes: list[SharedPrefix] = []
    before: tuple[int, ...] = ()
    longest = 0
    for inputs in sorted(rows):
        shared = prefixes[-1] if prefixes else SharedPrefix(0, [])
        count, common = len(shared.rows), min(shared.common, _alike(before, inputs))
        longest = max(longest, len(inputs))
        fits = 0 < count < at_most and (count + 1) * (longest - common) <= tokens
        # A row that shares less than those before may cost them more than it brings.
        saves = count * common >= (count - 1) * shared.common and common >= len(inputs) * LEAST_COMMON
        if fits and saves:
            shared.rows.append(rows[inputs])
            shared.common = common
        else:
            prefixes.append(SharedPrefix(len(inputs), [rows[inputs]]))
            longest = len(inputs)
        before = inputs
    for shared in prefixes:
        if len(shared.rows) == 1:
            shared.common = 0
    return prefixes


def _inputs(job: Job) -> tuple[int, ...]:
    """What goes into the model for a sequence to score; of the last token only the probability is asked."""
    return tuple(job.ids[:-1])


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


class Worker:
    """The one thread that runs the model."""

    def __init__(self, model: Any, tokenizer: Any, cells: int, rows: int) -> None:
        self.tokenizer = tokenizer
        self.limit = context_length(model.config)
        self.ends = _ends(model, tokenizer)
        pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else next(iter(self.ends), 0)
        self.passes = Passes(model, pad_id, cells)
        self._pad, self._rows = pad_id, rows
        self._queue: queue.Queue[Job] = queue.Queue()
        self._waiting: list[Job] = []
        self._batches: list[DecodeBatch] = []
        self._told: set[str] = set()

    @property
    def vocabulary(self) -> int:
        """Tokens that the model knows."""
        return int(self.passes.vocabulary)

    def add(self, job: Job) -> None:
        """Takes a job in."""
        self._queue.put(job)

    def run(self) -> None:
        """Works until the process ends."""
        with torch.inference_mode():
            while True:
                self._collect()
                scores = [job for job in self._waiting if job.score]
                if scores:
                    self._guarded(self._score_batch, scores)
                begun = [job for job in self._waiting if not job.score]
                if begun and sum(len(batch.jobs) for batch in self._batches) < self._rows:
                    self._guarded(self._begin, begun)
                for batch in list(self._batches):
                    self._guarded(lambda jobs, batch=batch: self._step(batch), batch.jobs)
                    if not batch.jobs:
                        self._batches.remove(batch)

    def _collect(self) -> None:
        """Takes what waits in the queue; waits where there is nothing else to do."""
        busy = bool(self._waiting or self._batches)
        try:
            self._waiting.append(
                self._queue.get(timeout=0 if busy else None) if not busy else self._queue.get_nowait()
            )
            first = time.monotonic()
            while True:
                now = time.monotonic()
                left = 0.0 if busy else min(BATCH_WAIT, first + BATCH_WAIT_AT_MOST - now)
                self._waiting.append(self._queue.get(timeout=left) if left > 0 else self._queue.get_nowait())
        except queue.Empty:
            return

    def _guarded(self, work: Any, jobs: list[Job]) -> None:
        """Runs a piece of work; what it raises is the answer of its jobs, and no end of the server."""
        named = list(jobs)
        try:
            work(jobs)
        except Exception as error:
            said = last_line(error)
            if said not in self._told:
                self._told.add(said)
                traceback.print_exc()
            failure: Exception = Refused(f"a fault of the server, the same at every attempt: {said}")
            if "out of memory" in str(error).lower():
                failure = Overloaded(f"{said}; from now on fewer sequences go into a pass")
                self.passes.cells = max(1, self.passes.cells // 2)
                if self.passes.device.type == "cuda":
                    torch.cuda.empty_cache()
            for job in named:
                job.error = failure
                job.done.set()
            failed = set(map(id, named))
            self._waiting = [job for job in self._waiting if id(job) not in failed]
            jobs[:] = [] if jobs is not self._waiting else jobs

    def _score_batch(self, jobs: list[Job]) -> None:
        """Scores the longest sequences that wait, as many as fit; a common beginning is worked on once."""
        tokens = self.passes.cells // self.vocabulary
        prefixes = self._fitting(shared_prefixes(jobs, self._rows if self.passes.keeps else 0, tokens))
        rows = [(shared.common, same) for shared in prefixes for same in shared.rows]
        tails = [list(_inputs(same[0])[common:]) or [self._pad] for common, same in rows]
        if not prefixes[0].common:
            logits = self.passes.whole(tails)
        else:
            begun = KeptRows(self.passes, [_inputs(one.rows[0][0])[: one.common] for one in prefixes])
            first = begun.begin(last=False)
            for number, shared in enumerate(prefixes):
                self._tell(shared.jobs, first[number, -shared.common :], 0)
            logits = begun.behind(
                [number for number, shared in enumerate(prefixes) for _ in shared.rows], tails
            )
        for number, (common, same) in enumerate(rows):
            self._tell(same, logits[number], common)
        finished = [job for shared in prefixes for job in shared.jobs]
        numbers = set(map(id, finished))
        self._waiting = [job for job in self._waiting if id(job) not in numbers]
        for job in finished:
            job.done.set()

    def _fitting(self, prefixes: list["SharedPrefix"]) -> list["SharedPrefix"]:
        """Those of the longest beginnings, or else the longest sequences, that fit into one pass."""
        prefixes = sorted(prefixes, key=lambda shared: (shared.common, shared.length), reverse=True)
        first, rows, width = prefixes[0], 0, 0
        for taken, shared in enumerate(prefixes):
            rows += len(shared.rows)
            width = max(width, shared.length - shared.common)
            tokens = max((taken + 1) * first.common, rows * width)
            alike = shared.common >= ALIKE * first.common and (
                first.common > 0 or shared.length >= ALIKE * first.length
            )
            if taken and not (alike and tokens * self.vocabulary <= self.passes.cells):
                return prefixes[:taken]
        return prefixes

    def _tell(self, jobs: list[Job], logits: torch.Tensor, start: int) -> None:
        """Tells jobs the log-probabilities of the tokens behind ``start``, as far as the logits reach."""
        if not start:
            for job in jobs:
                job.logprobs, job.tops = [None], [[]]
        size = min(max(len(job.ids) for job in jobs) - 1 - start, len(logits))
        most = min(max(job.top for job in jobs), logits.shape[-1])
        step = POSITIONS if logits.device.type == "cpu" else max(size, 1)
        for begin in range(0, size, step):
            part = logits[begin : min(begin + step, size)].float()
            whole = part.logsumexp(dim=-1, keepdim=True)
            best = part.topk(most, dim=-1) if most > 1 else part.max(dim=-1, keepdim=True)
            values, indices = (best.values - whole).tolist(), best.indices.tolist()
            for job in jobs:
                targets = torch.tensor(job.ids[start + begin + 1 :][: len(part)], device=part.device)
                found = part[: len(targets)].gather(1, targets[:, None]) - whole[: len(targets)]
                job.logprobs += found[:, 0].tolist()
                job.tops += [
                    list(zip(indices[at][: job.top], values[at][: job.top], strict=True))
                    for at in range(len(targets))
                ]

    def _begin(self, jobs: list[Job]) -> None:
        """Begins the longest prompts that wait, as many as fit, those of like length together."""
        room = self._rows - sum(len(batch.jobs) for batch in self._batches)
        chosen = sorted(jobs, key=lambda job: -len(job.ids))[:room]
        numbers = set(map(id, chosen))
        self._waiting = [job for job in self._waiting if id(job) not in numbers]
        jobs[:] = chosen
        while chosen:
            width = len(chosen[0].ids)
            most = max(1, self.passes.cells // (width * self.vocabulary))
            alike = [job for job in chosen if len(job.ids) >= ALIKE * width][:most]
            chosen = chosen[len(alike) :]
            kind: Any = KeptRows if self.passes.keeps else PlainRows
            rows = kind(self.passes, [job.ids for job in alike])
            begun = DecodeBatch(alike, rows, rows.begin())
            if self._batches:
                self._batches[-1].take(begun)
            else:
                self._batches.append(begun)

    def _step(self, batch: DecodeBatch) -> None:
        """Adds one token to every sequence; those that end with it leave."""
        likeliest = batch.logits.argmax(dim=-1).tolist()
        tokens = [self._choose(batch, number, token) for number, token in enumerate(likeliest)]
        stay = []
        for number, (job, token) in enumerate(zip(batch.jobs, tokens, strict=True)):
            job.new_ids.append(token)
            if self._ended(job):
                job.done.set()
            else:
                stay.append(number)
        if not stay:
            batch.jobs = []
            return
        if len(stay) < len(batch.jobs):
            batch.keep(stay)
            tokens = [tokens[number] for number in stay]
        batch.logits = batch.rows.step(tokens)

    def _choose(self, batch: DecodeBatch, number: int, likeliest: int) -> int:
        """The next token of a sequence; ``likeliest`` is the one of its logits as they are."""
        job, logits = batch.jobs[number], batch.logits[number]
        how, token = job.sampling, likeliest
        penalised = how.repetition != 1.0 or how.presence or how.frequency
        if penalised:
            logits = _penalised(logits.clone(), job)
        generator = batch.generators[number]
        if generator is None and penalised:
            token = int(logits.argmax())
        elif generator is not None:
            shares = _narrowed(torch.softmax(logits / how.temperature, dim=-1), how)
            token = int(torch.multinomial(shares, 1, generator=generator))
        if job.top:
            found = torch.log_softmax(batch.logits[number], dim=-1)
            top = found.topk(min(job.top, found.shape[-1]))
            job.new_logprobs.append(float(found[token]))
            job.new_tops.append(list(zip(top.indices.tolist(), top.values.tolist(), strict=True)))
        return token

    def _ended(self, job: Job) -> bool:
        if job.new_ids[-1] in self.ends:
            job.finish = "stop"
            return True
        if job.stops:
            tail = self.tokenizer.decode(job.new_ids[-TAIL:], skip_special_tokens=False)
            if any(stop in tail for stop in job.stops):
                job.finish = "stop"
                return True
        return len(job.new_ids) >= job.max_tokens

    def text(self, job: Job) -> str:
        """The answer's text, cut where the first stop text begins."""
        said = self.tokenizer.decode(job.new_ids, skip_special_tokens=True)
        for stop in job.stops:
            said = said.partition(stop)[0]
        return str(said)


def last_line(error: Exception) -> str:
    """What an error says, as the last line of its trace does."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


def _positions(mask: torch.Tensor) -> torch.Tensor:
    return (mask.cumsum(dim=-1) - 1).clamp(min=0)


def _penalised(logits: torch.Tensor, job: Job) -> torch.Tensor:
    how = job.sampling
    if how.repetition != 1.0:
        seen = torch.tensor(sorted({*job.ids, *job.new_ids}), device=logits.device)
        there = logits[seen]
        logits[seen] = torch.where(there > 0, there / how.repetition, there * how.repetition)
    if job.new_ids and (how.presence or how.frequency):
        counts = torch.bincount(torch.tensor(job.new_ids, device=logits.device), minlength=logits.shape[-1])[
            : logits.shape[-1]
        ]
        logits -= how.presence * (counts > 0) + how.frequency * counts
    return logits


def _narrowed(shares: torch.Tensor, how: Sampling) -> torch.Tensor:
    if 0 < how.top_k < shares.shape[-1]:
        shares = shares.where(shares >= shares.topk(how.top_k).values[-1], 0)
    if how.min_p > 0:
        shares = shares.where(shares >= how.min_p * shares.max(), 0)
    if how.top_p < 1:
        ordered, order = shares.sort(descending=True)
        # The token that crosses the line is kept; what comes behind it is not.
        ordered[ordered.cumsum(-1) - ordered >= how.top_p * ordered.sum()] = 0
        shares = torch.zeros_like(shares).scatter(-1, order, ordered)
    return shares


def context_length(config: Any) -> int:
    """Tokens that the model takes in."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    told = [getattr(text, name, None) for name in LENGTHS]
    return next((length for length in told if isinstance(length, int) and length > 1), 2048)


def _ends(model: Any, tokenizer: Any) -> frozenset[int]:
    told = [tokenizer.eos_token_id, getattr(model.generation_config, "eos_token_id", None)]
    ids = [one for entry in told for one in (entry if isinstance(entry, list) else [entry])]
    return frozenset(one for one in ids if one is not None)


class Service:
    """Requests as jobs, and jobs as replies."""

    def __init__(self, worker: Worker, name: str) -> None:
        self.worker, self.name = worker, name
        self._tokenizer = worker.tokenizer
        self._lock = threading.Lock()

    def completions(self, body: dict[str, Any]) -> dict[str, Any]:
        """OpenAI's completions: a prompt or several, as text or as token ids."""
        echo, told = bool(body.get("echo")), body.get("prompt_logprobs")
        wanted = body.get("logprobs")
        top = min(int(wanted or 0), TOP_AT_MOST)
        most = int(body.get("max_tokens", 16))
        prompts = [self._encoded(prompt, body) for prompt in _prompts(body.get("prompt"))]
        samples = int(body.get("n") or 1)
        scored = (echo and wanted is not None) or told is not None
        jobs, groups = [], []
        for text, ids, spans in prompts:
            score = self._score(ids, max(1, top, int(told or 0))) if scored else None
            new = [self._generate(ids, body, most, top, n) for n in range(samples)] if most else []
            groups.append((text, ids, spans, score, new))
            jobs += [*([score] if score is not None else []), *new]
        self._done(jobs)
        choices: list[dict[str, Any]] = []
        for text, ids, spans, score, new in groups:
            answers: list[Job | None] = [*new] or [None]
            for job in answers:
                said = self.worker.text(job) if job is not None else ""
                choice: dict[str, Any] = {
                    "index": len(choices),
                    "text": (text if echo else "") + said,
                    "finish_reason": job.finish if job is not None else "length",
                    "logprobs": None,
                }
                if wanted is not None:
                    choice["logprobs"] = self._logprobs(text, ids, spans, score if echo else None, job)
                if told is not None and score is not None:
                    choice["prompt_logprobs"] = self._prompt_logprobs(score)
                choices.append(choice)
        sizes = [len(ids) for _, ids, *_ in prompts], [len(job.new_ids) for job in jobs if not job.score]
        return self._reply("text_completion", choices, *map(sum, sizes))

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """OpenAI's chat completions, by the chat template of the tokenizer."""
        if not self._tokenizer.chat_template:
            raise Refused("the tokenizer has no chat template: ask /v1/completions with the prompt as text")
        try:
            with self._lock:
                text = self._tokenizer.apply_chat_template(
                    _plain(body.get("messages")), tokenize=False, add_generation_prompt=True,
                    **(body.get("chat_template_kwargs") or {}),
                )  # fmt: skip
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"the chat template: {error}") from error
        _, ids, _ = self._encoded(text, {"add_special_tokens": False})
        most = body.get("max_completion_tokens") or body.get("max_tokens") or self.worker.limit
        top = max(1, min(int(body.get("top_logprobs") or 0), TOP_AT_MOST)) if body.get("logprobs") else 0
        jobs = [self._generate(ids, body, int(most), top, n) for n in range(int(body.get("n") or 1))]
        self._done(jobs)
        choices: list[dict[str, Any]] = []
        for job in jobs:
            choice: dict[str, Any] = {
                "index": len(choices),
                "message": {"role": "assistant", "content": self.worker.text(job)},
                "finish_reason": job.finish,
            }
            if top:
                choice["logprobs"] = {"content": self._content_logprobs(job)}
            choices.append(choice)
        return self._reply("chat.completion", choices, len(ids), sum(len(job.new_ids) for job in jobs))

    def _encoded(self, prompt: Any, body: dict[str, Any]) -> tuple[str, list[int], list[tuple[int, int]]]:
        """A prompt's text, its ids, and each token's place in the text."""
        with self._lock:
            if isinstance(prompt, str):
                special = bool(body.get("add_special_tokens", True))
                made = self._tokenizer(
                    prompt, add_special_tokens=special, return_offsets_mapping=self._tokenizer.is_fast
                )
                return prompt, list(made["input_ids"]), list(made.get("offset_mapping") or ())
            ids = list(prompt)
            if not ids or not all(0 <= one < self.worker.vocabulary for one in ids):
                raise Refused("prompt: expected token ids of the model's vocabulary, at least one")
            return self._tokenizer.decode(ids) if body.get("echo") else "", ids, []

    def _score(self, ids: list[int], top: int) -> Job:
        if len(ids) > self.worker.limit + 1:
            raise Refused(_too_long(self.worker.limit, len(ids)))
        return Job(ids, True, top)

    def _generate(self, ids: list[int], body: dict[str, Any], most: int, top: int, number: int) -> Job:
        room = self.worker.limit - len(ids)
        if room < 1 or not ids:
            raise Refused(_too_long(self.worker.limit, len(ids)) if ids else "prompt: is empty")
        stops = body.get("stop") or ()
        seed = body.get("seed")
        how = Sampling(
            temperature=_number(body, "temperature", 1.0), top_p=_number(body, "top_p", 1.0),
            top_k=int(_number(body, "top_k", 0)), min_p=_number(body, "min_p", 0.0),
            seed=None if seed is None else int(seed) + number,
            repetition=_number(body, "repetition_penalty", 1.0),
            presence=_number(body, "presence_penalty", 0.0),
            frequency=_number(body, "frequency_penalty", 0.0),
        )  # fmt: skip
        stops = (stops,) if isinstance(stops, str) else tuple(stops)
        return Job(ids, False, top, max(1, min(most, room)), stops, how)

    def _done(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.worker.add(job)
        for job in jobs:
            job.done.wait()
            if job.error is not None:
                raise job.error

    def _logprobs(
        self, text: str, ids: list[int], spans: list[tuple[int, int]], score: Job | None, job: Job | None
    ) -> dict[str, Any]:
        values: list[float | None] = list(score.logprobs) if score is not None else []
        tops = list(score.tops) if score is not None else []
        shown = list(ids) if score is not None else []
        words = [text[begin:end] for begin, end in spans] if spans else self._words(shown)
        offsets = [begin for begin, _ in spans] if spans else list(_running(words))
        if job is not None:
            values, tops, shown = [*values, *job.new_logprobs], [*tops, *job.new_tops], [*shown, *job.new_ids]
            new = self._words(job.new_ids)
            start = len(text) if score is not None else 0
            words = [*(words if score is not None else ()), *new]
            offsets = [*(offsets if score is not None else ()), *(start + at for at in _running(new))]
        return {
            "tokens": words[: len(values)],
            "token_logprobs": values,
            "top_logprobs": [self._by_word(top) for top in tops],
            "text_offset": offsets[: len(values)],
        }

    def _words(self, ids: Sequence[int]) -> list[str]:
        with self._lock:
            return [str(word) for word in self._tokenizer.convert_ids_to_tokens(list(ids))]

    def _by_word(self, top: Sequence[tuple[int, float]]) -> dict[str, float] | None:
        if not top:
            return None
        return dict(zip(self._words([one for one, _ in top]), (value for _, value in top), strict=True))

    def _prompt_logprobs(self, score: Job) -> list[dict[str, Any] | None]:
        found: list[dict[str, Any] | None] = [None]
        for one, value, top in zip(score.ids[1:], score.logprobs[1:], score.tops[1:], strict=True):
            rank = next((n for n, (other, _) in enumerate(top, 1) if other == one), len(top) + 1)
            entry = {str(one): {"logprob": value, "rank": rank, "decoded_token": self._words([one])[0]}}
            for place, (other, share) in enumerate(top, 1):
                entry.setdefault(
                    str(other),
                    {"logprob": share, "rank": place, "decoded_token": self._words([other])[0]},
                )
            found.append(entry)
        return found

    def _content_logprobs(self, job: Job) -> list[dict[str, Any]]:
        content = []
        for word, value, top in zip(self._words(job.new_ids), job.new_logprobs, job.new_tops, strict=True):
            others = [
                {"token": other, "logprob": share} for other, share in (self._by_word(top) or {}).items()
            ]
            content.append({"token": word, "logprob": value, "top_logprobs": others})
        return content

    def _reply(self, kind: str, choices: list[dict[str, Any]], prompt: int, new: int) -> dict[str, Any]:
        usage = {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
        return {
            "id": uuid.uuid4().hex, "object": kind, "created": int(time.time()), "model": self.name,
            "choices": choices, "usage": usage,
        }  # fmt: skip


def _running(words: Sequence[str]) -> Iterator[int]:
    at = 0
    for word in words:
        yield at
        at += len(word)


def _too_long(limit: int, size: int) -> str:
    return f"This model's maximum context length is {limit} tokens, and the prompt has {size}."


def _number(body: dict[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    try:
        return default if value is None else float(value)
    except (TypeError, ValueError):
        raise Refused(f"{name}: expected a number, got {value!r}") from None


def _prompts(prompt: Any) -> list[Any]:
    """The prompts of a request: one text, texts, token ids, or lists of them."""
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and isinstance(prompt[0], int)):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise Refused("prompt: expected a text, a list of texts, or token ids")
    return prompt


def _plain(messages: Any) -> list[dict[str, Any]]:
    """Messages whose content is text; raises Refused for pictures and the like."""
    if not isinstance(messages, list) or not messages:
        raise Refused("messages: expected a list of messages")
    found = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            if any(part.get("type") != "text" for part in content):
                raise Refused("messages: this server takes text alone")
            content = "".join(part["text"] for part in content)
        found.append({**message, "content": content})
    return found


class Handler(BaseHTTPRequestHandler):
    """HTTP/1.1 with connections that stay."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    service: Service

    def do_GET(self) -> None:
        """Health, and the one model that is served."""
        if self.path.startswith("/health"):
            self._send(200, {"status": "ok"})
        elif self.path.rstrip("/") == "/v1/models":
            length = self.service.worker.limit
            model = {"id": self.service.name, "object": "model", "max_model_len": length}
            self._send(200, {"object": "list", "data": [model]})
        else:
            self._send(404, _error(f"no such path: {self.path}"))

    def do_POST(self) -> None:
        """Completions and chat completions."""
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        ways = {"/v1/completions": self.service.completions, "/v1/chat/completions": self.service.chat}
        answer = ways.get(self.path.rstrip("/"))
        if answer is None:
            self._send(404, _error(f"no such path: {self.path}"))
            return
        try:
            body = json.loads(content)
            unknown = sorted(name for name in body.keys() - KNOWN if body[name] is not None)
            if unknown:
                raise Refused(f"this server does not take {', '.join(unknown)}")
            reply = answer(body)
        except (Refused, ValueError, KeyError, AttributeError, TypeError) as error:
            self._send(400, _error(str(error)))
        except Overloaded as error:
            self._send(503, _error(str(error)))
        except Exception as error:  # a fault of this program, which asking again does not mend
            traceback.print_exc()
            self._send(400, _error(f"a fault of the server, the same at every attempt: {last_line(error)}"))
        else:
            if body.get("stream"):
                self._stream(reply)
            else:
                self._send(200, reply)

    def _send(self, status: int, document: dict[str, Any]) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, reply: dict[str, Any]) -> None:
        """The whole answer as one event: this server has no first words before the last."""
        chunk = {**reply, "object": reply["object"].replace("chat.completion", "chat.completion.chunk")}
        for choice in chunk["choices"]:
            if "message" in choice:
                choice["delta"] = choice.pop("message")
        content = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing of single requests."""


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}


class Server(ThreadingHTTPServer):
    """A thread a connection."""

    daemon_threads = True
    request_queue_size = 512


def chosen_device(said: str) -> str:
    """The device that was asked for, or the best there is."""
    if said != "auto":
        return said
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def main() -> None:
    """Loads the model and serves it until it is ended."""
    parser = argparse.ArgumentParser(description="Serves a folder of Hugging Face weights.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch-bytes", type=int, default=None, help="of logits, in one pass")
    parser.add_argument("--rows", type=int, default=64, help="sequences that are generated at once")
    parser.add_argument("--trust-remote-code", action="store_true")
    told = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    device = chosen_device(told.device)
    dtype = told.dtype if told.dtype == "auto" else getattr(torch, told.dtype)
    tokenizer = AutoTokenizer.from_pretrained(told.model, trust_remote_code=told.trust_remote_code)
    model = AutoModelForCausalLM.from_pretrained(
        told.model, dtype=dtype, trust_remote_code=told.trust_remote_code
    )
    model.to(device).eval()
    size = told.batch_bytes or (4 << 30 if device == "cuda" else 1 << 27)
    worker = Worker(model, tokenizer, size // 4, told.rows)
    Handler.service = Service(worker, told.name or told.model)
    print(f"serving {told.model} on {device} in {model.dtype} at {told.host}:{told.port}", flush=True)
    with torch.inference_mode():
        worker.passes.compare()
    if not worker.passes.keeps:
        print(f"keys and values are not kept, which is slower: {worker.passes.why_not}", flush=True)
    threading.Thread(target=worker.run, name="model", daemon=True).start()
    Server((told.host, told.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
