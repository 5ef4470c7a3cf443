"""A server for folders of Hugging Face weights: OpenAI's chat and completions, and prompts' log-likelihoods.

A program of its own, run by an interpreter that has torch and transformers; beyond these it needs the
standard library alone, and imports nothing of this project::

    python transformers_server.py --model ./checkpoint --port 8000 [--dtype float32] [--device cuda]

Requests that wait together are worked on together, those of like length beside each other. A prompt's log-
probabilities are those of a forward pass in the weights' type, normalised in float32; what several prompts
begin with, as the choices of a question do, is worked on once. Generation keeps keys and values; a sequence
leaves its batch when it ends, and new ones join those that run: a step is one pass for all. At temperature 0
the likeliest token is taken.
"""

import argparse
import inspect
import json
import queue
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.cache_utils import DynamicLayer

TOP_AT_MOST = 20
LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
LINGER_SECONDS, LINGER_AT_MOST = 0.003, 0.03
"""How long a batch waits for company: after the last that came, and after the first."""
ALIKE = 0.75
"""How long the shortest row of a pass is, as a share of the longest: the difference is work for nothing."""
LEAST_COMMON = 0.25
"""What share of a sequence it has to have in common with others to be worked on together with them."""
POSITIONS = 16
"""Of how many tokens all probabilities are looked at at once on a CPU: what its cache holds."""
ROOM = 64
"""Tokens that keys and values have room for beyond those that are there."""
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
    error: str | None = None
    done: threading.Event = field(default_factory=threading.Event)


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values with room for more tokens: a step writes its own behind them, and copies all only where
    the room is used up."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.lazy_initialization(layer.keys)
        self.keys, self.values = layer.keys, layer.values
        self._rooms: tuple[torch.Tensor, torch.Tensor] | None = None
        self._shown: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As a plain layer's: everything with what is new behind it."""
        before = self.keys.shape[-2]
        size = before + key_states.shape[-2]
        # Whoever chose rows or gave them room on the left has put other tensors here.
        own = self._shown is not None and self.keys is self._shown[0] and self.values is self._shown[1]
        if self._rooms is None or not own or self._rooms[0].shape[-2] < size:
            self._rooms = (_with_room(self.keys, size), _with_room(self.values, size))
        for room, new in zip(self._rooms, (key_states, value_states), strict=True):
            room[..., before:size, :] = new
        self._shown = (self._rooms[0][..., :size, :], self._rooms[1][..., :size, :])
        self.keys, self.values = self._shown
        return self._shown


def _with_room(there: torch.Tensor, size: int) -> torch.Tensor:
    *outer, length, width = there.shape
    room = there.new_empty((*outer, size + ROOM, width))
    room[..., :length, :] = there
    return room


class Cohort:
    """Sequences that go on together: their keys and values, and the mask over them."""

    def __init__(self, jobs: list[Job], cache: Any, mask: torch.Tensor, logits: torch.Tensor) -> None:
        self.jobs, self.cache, self.mask, self.logits = jobs, cache, mask, logits
        layers = getattr(cache, "layers", ())
        if layers and all(type(layer) is DynamicLayer for layer in layers):
            cache.layers = [RoomyLayer(layer) for layer in layers]
        self.generators = [_generator(job, logits.device) for job in jobs]

    def takes(self, other: "Cohort") -> bool:
        """Whether both keep a plain layer of keys and values for every layer of the model."""
        layers = [*getattr(self.cache, "layers", ()), *getattr(other.cache, "layers", ())]
        return bool(layers) and all(type(layer) is RoomyLayer for layer in layers)

    def take(self, other: "Cohort") -> None:
        """Goes on with another's sequences, too; the shorter ones get room on their left."""
        width = max(self.mask.shape[1], other.mask.shape[1])
        room, others = width - self.mask.shape[1], width - other.mask.shape[1]
        self.mask = torch.cat([pad(self.mask, (room, 0)), pad(other.mask, (others, 0))])
        for layer, more in zip(self.cache.layers, other.cache.layers, strict=True):
            before, behind = (0, 0, room, 0), (0, 0, others, 0)
            layer.keys = torch.cat([pad(layer.keys, before), pad(more.keys, behind)])
            layer.values = torch.cat([pad(layer.values, before), pad(more.values, behind)])
        self.logits = torch.cat([self.logits, other.logits])
        self.jobs = [*self.jobs, *other.jobs]
        self.generators += other.generators


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
class Family:
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


def families_of(jobs: list[Job], at_most: int, tokens: int) -> list[Family]:
    """Jobs by what they begin with, where that saves work: families of ``at_most`` rows (below two: of one),
    which beyond their beginning have ``tokens`` tokens together at most."""
    rows: dict[tuple[int, ...], list[Job]] = {}
    for job in jobs:
        rows.setdefault(_inputs(job), []).append(job)
    families: list[Family] = []
    before: tuple[int, ...] = ()
    longest = 0
    for inputs in sorted(rows):
        family = families[-1] if families else Family(0, [])
        count, common = len(family.rows), min(family.common, _alike(before, inputs))
        longest = max(longest, len(inputs))
        fits = 0 < count < at_most and (count + 1) * (longest - common) <= tokens
        # A row that shares less than those before may cost them more than it brings.
        saves = count * common >= (count - 1) * family.common and common >= len(inputs) * LEAST_COMMON
        if fits and saves:
            family.rows.append(rows[inputs])
            family.common = common
        else:
            families.append(Family(len(inputs), [rows[inputs]]))
            longest = len(inputs)
        before = inputs
    for family in families:
        if len(family.rows) == 1:
            family.common = 0
    return families


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
        self.model, self.tokenizer = model, tokenizer
        self.device = next(model.parameters()).device
        self.vocabulary = model.get_output_embeddings().weight.shape[0]
        self.limit = context_length(model.config)
        self.ends = _ends(model, tokenizer)
        self.pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else next(iter(self.ends), 0)
        self._cells, self._rows, self._shares = cells, rows, True
        named = inspect.signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in named else {}
        self._queue: queue.Queue[Job] = queue.Queue()
        self._waiting: list[Job] = []
        self._cohorts: list[Cohort] = []

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
                if begun and sum(len(cohort.jobs) for cohort in self._cohorts) < self._rows:
                    self._guarded(self._begin, begun)
                for cohort in list(self._cohorts):
                    self._guarded(lambda jobs, cohort=cohort: self._step(cohort), cohort.jobs)
                    if not cohort.jobs:
                        self._cohorts.remove(cohort)

    def _collect(self) -> None:
        """Takes what waits in the queue; waits where there is nothing else to do."""
        busy = bool(self._waiting or self._cohorts)
        try:
            self._waiting.append(
                self._queue.get(timeout=0 if busy else None) if not busy else self._queue.get_nowait()
            )
            first = time.monotonic()
            while True:
                now = time.monotonic()
                left = 0.0 if busy else min(LINGER_SECONDS, first + LINGER_AT_MOST - now)
                self._waiting.append(self._queue.get(timeout=left) if left > 0 else self._queue.get_nowait())
        except queue.Empty:
            return

    def _guarded(self, work: Any, jobs: list[Job]) -> None:
        """Runs a piece of work; what it raises is the answer of its jobs, and no end of the server."""
        named = list(jobs)
        try:
            work(jobs)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            if "out of memory" in str(error).lower():
                self._cells = max(1, self._cells // 2)
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()
            for job in named:
                job.error = f"{type(error).__name__}: {error}"
                job.done.set()
            self._waiting = [job for job in self._waiting if job not in named]
            jobs[:] = [] if jobs is not self._waiting else jobs

    def _score_batch(self, jobs: list[Job]) -> None:
        """Scores the longest sequences that wait, as many as fit; a common beginning is worked on once."""
        tokens = self._cells // self.vocabulary
        families = self._fitting(families_of(jobs, self._rows if self._shares else 0, tokens))
        rows = [(family.common, same) for family in families for same in family.rows]
        ids, mask = self._padded([list(_inputs(same[0])[common:]) or [self.pad] for common, same in rows])
        if not families[0].common:
            logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        else:
            begun, before = self._beginnings(families)
            layers = getattr(begun.past_key_values, "layers", ())
            if not layers or any(type(layer) is not DynamicLayer for layer in layers):
                self._shares = False  # keys and values of this model can't be handed to several rows
                return
            for number, family in enumerate(families):
                self._tell(family.jobs, begun.logits[number, -family.common :], 0)
            of_rows = [number for number, family in enumerate(families) for _ in family.rows]
            begun.past_key_values.batch_select_indices(torch.tensor(of_rows, device=self.device))
            mask = torch.cat([before[of_rows], mask], dim=1)
            logits = self.model(
                input_ids=ids, attention_mask=mask, position_ids=_positions(mask)[:, before.shape[1] :],
                past_key_values=begun.past_key_values, use_cache=True,
            ).logits  # fmt: skip
        for number, (common, same) in enumerate(rows):
            self._tell(same, logits[number], common)
        finished = [job for family in families for job in family.jobs]
        numbers = set(map(id, finished))
        self._waiting = [job for job in self._waiting if id(job) not in numbers]
        for job in finished:
            job.done.set()

    def _fitting(self, families: list["Family"]) -> list["Family"]:
        """Those of the longest beginnings, or else the longest sequences, that fit into one pass."""
        families = sorted(families, key=lambda family: (family.common, family.length), reverse=True)
        first, rows, width = families[0], 0, 0
        for taken, family in enumerate(families):
            rows += len(family.rows)
            width = max(width, family.length - family.common)
            tokens = max((taken + 1) * first.common, rows * width)
            alike = family.common >= ALIKE * first.common and (
                first.common > 0 or family.length >= ALIKE * first.length
            )
            if taken and not (alike and tokens * self.vocabulary <= self._cells):
                return families[:taken]
        return families

    def _beginnings(self, families: list["Family"]) -> tuple[Any, torch.Tensor]:
        """What the model makes of the tokens that each family begins with, and where these are."""
        own = [list(_inputs(family.rows[0][0])[: family.common]) for family in families]
        ids, mask = self._padded(own, left=True)
        made = self.model(
            input_ids=ids, attention_mask=mask, position_ids=_positions(mask),
            past_key_values=DynamicCache(), use_cache=True,
        )  # fmt: skip
        return made, mask

    def _padded(self, rows: list[list[int]], *, left: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids as rows of one width, and where they are."""
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), self.pad, dtype=torch.long)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for number, row in enumerate(rows):
            place = slice(width - len(row), width) if left else slice(0, len(row))
            ids[number, place] = torch.tensor(row)
            mask[number, place] = 1
        return ids.to(self.device), mask.to(self.device)

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
        room = self._rows - sum(len(cohort.jobs) for cohort in self._cohorts)
        chosen = sorted(jobs, key=lambda job: -len(job.ids))[:room]
        numbers = set(map(id, chosen))
        self._waiting = [job for job in self._waiting if id(job) not in numbers]
        jobs[:] = chosen
        while chosen:
            width = len(chosen[0].ids)
            most = max(1, self._cells // (width * self.vocabulary))
            alike = [job for job in chosen if len(job.ids) >= ALIKE * width][:most]
            chosen = chosen[len(alike) :]
            ids, mask = self._padded([job.ids for job in alike], left=True)
            out = self.model(
                input_ids=ids, attention_mask=mask, position_ids=_positions(mask),
                past_key_values=DynamicCache(), use_cache=True, **self._last_only,
            )  # fmt: skip
            begun = Cohort(alike, out.past_key_values, mask, out.logits[:, -1].float())
            if self._cohorts and self._cohorts[-1].takes(begun):
                self._cohorts[-1].take(begun)
            else:
                self._cohorts.append(begun)

    def _step(self, cohort: Cohort) -> None:
        """Adds one token to every sequence; those that end with it leave."""
        likeliest = cohort.logits.argmax(dim=-1).tolist()
        tokens = [self._choose(cohort, number, token) for number, token in enumerate(likeliest)]
        stay = []
        for number, (job, token) in enumerate(zip(cohort.jobs, tokens, strict=True)):
            job.new_ids.append(token)
            if self._ended(job):
                job.done.set()
            else:
                stay.append(number)
        if not stay:
            cohort.jobs = []
            return
        if len(stay) < len(cohort.jobs):
            kept = torch.tensor(stay, device=self.device)
            cohort.cache.batch_select_indices(kept)
            cohort.mask = cohort.mask[kept]
            cohort.generators = [cohort.generators[number] for number in stay]
            cohort.jobs = [cohort.jobs[number] for number in stay]
            tokens = [tokens[number] for number in stay]
        cohort.mask = torch.cat([cohort.mask, cohort.mask.new_ones((len(stay), 1))], dim=1)
        out = self.model(
            input_ids=torch.tensor(tokens, device=self.device)[:, None], attention_mask=cohort.mask,
            position_ids=_positions(cohort.mask)[:, -1:], past_key_values=cohort.cache, use_cache=True,
        )  # fmt: skip
        cohort.cache, cohort.logits = out.past_key_values, out.logits[:, -1].float()

    def _choose(self, cohort: Cohort, number: int, likeliest: int) -> int:
        """The next token of a sequence; ``likeliest`` is the one of its logits as they are."""
        job, logits = cohort.jobs[number], cohort.logits[number]
        how, token = job.sampling, likeliest
        penalised = how.repetition != 1.0 or how.presence or how.frequency
        if penalised:
            logits = _penalised(logits.clone(), job)
        generator = cohort.generators[number]
        if generator is None and penalised:
            token = int(logits.argmax())
        elif generator is not None:
            shares = _narrowed(torch.softmax(logits / how.temperature, dim=-1), how)
            token = int(torch.multinomial(shares, 1, generator=generator))
        if job.top:
            found = torch.log_softmax(cohort.logits[number], dim=-1)
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
                raise RuntimeError(job.error)

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
        except Exception as error:
            self._send(500, _error(f"{type(error).__name__}: {error}"))
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
    threading.Thread(target=worker.run, name="model", daemon=True).start()
    print(f"serving {told.model} on {device} in {model.dtype} at {told.host}:{told.port}", flush=True)
    Server((told.host, told.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
