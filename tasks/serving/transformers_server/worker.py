"""The one thread that runs the model: what waits together is worked on together."""

import queue
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .jobs import Job, Overloaded, Refused, Sampling, SharedPrefix, shared_prefixes
from .loading import last_line
from .passes import ALIKE, KeptRows, Passes, PlainRows

LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")

BATCH_WAIT, BATCH_WAIT_AT_MOST = 0.003, 0.03
"""How long a batch waits for company: after the last that came, and after the first."""

POSITIONS = 16
"""Of how many tokens all probabilities are looked at at once on a CPU: what its cache holds."""

TAIL = 48
"""Tokens of an answer's end in which a stop text is looked for at each step."""


class DecodeBatch:
    """Sequences that go on together, and the logits of their next tokens."""

    def __init__(self, jobs: list[Job], rows: Any, logits: torch.Tensor) -> None:
        self.jobs, self.rows, self.logits = jobs, rows, logits

    def take(self, others: "Sequence[DecodeBatch]") -> None:
        """Goes on with the sequences of others, too; with none of them where that fails."""
        logits = torch.cat([self.logits, *(other.logits for other in others)])
        self.rows.take([other.rows for other in others])
        self.logits, self.jobs = logits, [*self.jobs, *(job for other in others for job in other.jobs)]

    def keep(self, numbers: list[int]) -> None:
        """Goes on with these sequences alone."""
        self.rows.keep(numbers)
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
                running = len(self._batches)
                while self._room and (prompts := [job for job in self._waiting if not job.score]):
                    self._guarded(self._begin, prompts)
                    self._collect()
                self._join(running)
                for batch in list(self._batches):
                    self._go_on(batch)

    @property
    def _room(self) -> int:
        """How many more sequences may be generated at once."""
        return max(0, self._rows - sum(len(batch.jobs) for batch in self._batches))

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

    def _guarded(self, work: Callable[[list[Job]], None], jobs: list[Job]) -> None:
        """Runs a pass over jobs, of which it leaves those in the list that it takes. One that fails is made
        again with each half of them, so that what is at fault is refused alone."""
        try:
            work(jobs)
        except Exception as error:
            self._failed(work, jobs, error)

    def _failed(self, work: Callable[[list[Job]], None], jobs: list[Job], error: Exception) -> None:
        """Sees to the jobs of a pass that failed; of a lone one the error is the answer."""
        said = self._tell_once(error)
        if "out of memory" in str(error).lower():
            self.passes.cells = max(1, self.passes.cells // 2)
            if self.passes.device.type == "cuda":
                torch.cuda.empty_cache()
            self._end(jobs, Overloaded(f"{said}; from now on fewer sequences go into a pass"))
        elif len(jobs) > 1:
            for half in (jobs[: len(jobs) // 2], jobs[len(jobs) // 2 :]):
                self._guarded(work, half)
        else:
            self._end(jobs, Refused(f"a fault of the server, the same at every attempt: {said}"))

    def _tell_once(self, error: Exception) -> str:
        """An error's last line; the first of its kind is printed with its trace."""
        said = last_line(error)
        if said not in self._told:
            self._told.add(said)
            traceback.print_exception(error)
        return said

    def _end(self, jobs: list[Job], failure: Exception) -> None:
        for job in jobs:
            job.error = failure
        self._finish(jobs)

    def _finish(self, jobs: list[Job]) -> None:
        """Tells those who asked for the jobs that they are done."""
        numbers = set(map(id, jobs))
        self._waiting = [job for job in self._waiting if id(job) not in numbers]
        for job in jobs:
            job.done.set()

    def _score_batch(self, jobs: list[Job]) -> None:
        """Scores the longest sequences that wait, as many as fit; a common beginning is worked on once."""
        tokens = self.passes.cells // self.vocabulary
        prefixes = self._fitting(shared_prefixes(jobs, self._rows if self.passes.keeps else 0, tokens))
        jobs[:] = [job for shared in prefixes for job in shared.jobs]
        rows = [(shared.common, same) for shared in prefixes for same in shared.rows]
        tails = [list(same[0].inputs[common:]) or [self._pad] for common, same in rows]
        if not prefixes[0].common:
            logits = self.passes.whole(tails)
        else:
            begun = KeptRows(self.passes, [one.rows[0][0].inputs[: one.common] for one in prefixes])
            first = begun.begin(last=False)
            for number, shared in enumerate(prefixes):
                self._tell(shared.jobs, first[number, -shared.common :], 0)
            logits = begun.behind(
                [number for number, shared in enumerate(prefixes) for _ in shared.rows], tails
            )
        for number, (common, same) in enumerate(rows):
            self._tell(same, logits[number], common)
        self._finish(jobs)

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
        """Begins the longest prompts that wait, as many of like length as fit."""
        longest = sorted(jobs, key=lambda job: -len(job.ids))[: self._room]
        width = len(longest[0].ids)
        most = max(1, self.passes.cells // (width * self.vocabulary))
        jobs[:] = [job for job in longest if len(job.ids) >= ALIKE * width][:most]
        self._batches.append(self._begun(jobs))
        numbers = set(map(id, jobs))
        self._waiting = [job for job in self._waiting if id(job) not in numbers]

    def _join(self, running: int) -> None:
        """Makes one of the last batch that was ``running`` and those begun since, which copies what is kept
        once; they go on apart where that fails."""
        first, others = max(running - 1, 0), slice(max(running, 1), None)
        if self._batches[others]:
            try:
                self._batches[first].take(self._batches[others])
            except Exception as error:
                self._tell_once(error)
            else:
                del self._batches[others]

    def _begun(self, jobs: list[Job]) -> DecodeBatch:
        """Sequences as far as they are, and the logits of their next tokens."""
        kind: Any = KeptRows if self.passes.keeps else PlainRows
        rows = kind(self.passes, [[*job.ids, *job.new_ids] for job in jobs])
        logits = rows.begin()
        for job in jobs:
            job.generator = job.generator or _generator(job, logits.device)
        return DecodeBatch(list(jobs), rows, logits)

    def _go_on(self, batch: DecodeBatch) -> None:
        """A step of a batch; after one that fails, its halves are begun again from where they are, apart."""
        try:
            self._step(batch)
        except Exception as error:
            batch.jobs = [job for job in batch.jobs if not job.done.is_set()]
            self._failed(lambda jobs: self._batches.append(self._begun(jobs)), batch.jobs, error)
            batch.jobs = []
        if not batch.jobs:
            self._batches.remove(batch)

    def _step(self, batch: DecodeBatch) -> None:
        """Adds one token to every sequence; those that end with it leave."""
        likeliest = batch.logits.argmax(dim=-1).tolist()
        stay = [number for number, token in enumerate(likeliest) if self._add(batch, number, token)]
        if not stay:
            batch.jobs = []
            return
        if len(stay) < len(batch.jobs):
            batch.keep(stay)
        batch.logits = batch.rows.step([job.new_ids[-1] for job in batch.jobs])

    def _add(self, batch: DecodeBatch, number: int, likeliest: int) -> bool:
        """Adds a token to a sequence; whether it goes on. What fails for its settings alone ends it alone."""
        job = batch.jobs[number]
        try:
            job.new_ids.append(self._choose(batch, number, likeliest))
            goes_on = not self._ended(job)
        except Exception as error:
            self._failed(lambda _: None, [job], error)
            return False
        if not goes_on:
            job.done.set()
        return goes_on

    def _choose(self, batch: DecodeBatch, number: int, likeliest: int) -> int:
        """The next token of a sequence; ``likeliest`` is the one of its logits as they are."""
        job, logits = batch.jobs[number], batch.logits[number]
        how, token = job.sampling, likeliest
        penalised = how.repetition != 1.0 or how.presence or how.frequency
        if penalised:
            logits = _penalised(logits.clone(), job)
        generator = job.generator
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
