"""Requests of OpenAI's interface as jobs, and jobs as replies."""

import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from .jobs import Job, Refused, Sampling
from .worker import Worker

TOP_AT_MOST = 20


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
