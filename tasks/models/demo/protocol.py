"""OpenAI's wire format, on the server's side: reads request bodies and makes answer bodies.

``DemoModel`` completes chats and texts as the options say; the server hands it every body.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.messages.chat import content_text
from tasks.models.demo.answering import (
    BOS,
    ORDER,
    Draw,
    called,
    described,
    images_of,
    log_distribution,
    respond,
    score,
)
from tasks.models.demo.options import DemoOptions

BYTES_A_TOKEN = 4
"""A generated token is counted for each four bytes; prompts of log-likelihoods have one token a byte."""
FINGERPRINT = "nightjar-demo-1"


class Unacceptable(Exception):
    """A request that is answered 400, with the code OpenAI uses for it."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Completion:
    """One choice: its text, why it ended, and its tokens."""

    text: str
    finish_reason: str
    tokens: int


def prompt_of(messages: Any) -> str:
    """The text of a chat: its messages' contents, one paragraph each."""
    if not isinstance(messages, list) or not messages:
        raise Unacceptable("messages must be a list with at least one message")
    parts = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if content is None and isinstance(message, dict) and message.get("tool_calls"):
            content = ""
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
        if not isinstance(content, str):
            raise Unacceptable("each message needs a role and a content of text")
        parts.append(content)
    return "\n\n".join(parts)


def prompts_of(prompt: Any) -> list[list[int]]:
    """The prompts of a completion as token ids (bytes, BOS = 256): a text, texts, ids or lists of ids."""
    if isinstance(prompt, str):
        return [list(prompt.encode("utf-8", "surrogatepass"))]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(token, int) for token in prompt):
            prompt = [prompt]
        if all(isinstance(text, str) for text in prompt):
            return [list(text.encode("utf-8", "surrogatepass")) for text in prompt]
        if all(
            isinstance(ids, list) and all(isinstance(t, int) and 0 <= t <= BOS for t in ids) for ids in prompt
        ):
            return [list(ids) for ids in prompt]
    raise Unacceptable("prompt must be a text, a list of texts, or lists of token ids between 0 and 256")


def text_of(tokens: Sequence[int]) -> str:
    """The text that token ids stand for, BOS left out."""
    return bytes(token for token in tokens if token != BOS).decode("utf-8", "replace")


def generate(prompt: str, body: Mapping[str, Any], index: int, error_rate: float) -> Completion:
    """The answer to a prompt, cut at the first stop sequence and at ``max_tokens``."""
    draw = Draw(seed=body.get("seed"), temperature=body.get("temperature"), index=index)
    text, reason = respond(prompt, draw, error_rate), "stop"
    stop = body.get("stop") or ()
    for sequence in (stop,) if isinstance(stop, str) else stop:
        if sequence:
            text = text.partition(sequence)[0]
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    content = text.encode()
    if limit is not None and len(content) > BYTES_A_TOKEN * limit:
        text, reason = content[: BYTES_A_TOKEN * limit].decode("utf-8", "ignore"), "length"
    return Completion(text, reason, -(-len(text.encode()) // BYTES_A_TOKEN))


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """The usage object of an answer."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def prompt_logprobs(tokens: list[int]) -> dict[str, list[Any]]:
    """The four lists of ``logprobs`` over a prompt: the first token has no log-probability."""
    texts = [_token_text(token) for token in tokens]
    offsets, position = [], 0
    for token in tokens:
        starts = token != BOS and token & 0xC0 != 0x80
        offsets.append(position if starts or token == BOS else max(0, position - 1))
        position += starts
    logprobs: list[float | None] = [None]
    tops: list[dict[str, float] | None] = [None]
    for token, (value, best, best_value) in zip(tokens[1:], score(tokens), strict=True):
        logprobs.append(value)
        tops.append({_token_text(best): best_value, _token_text(token): value})
    return {"tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}


def chat_logprobs(text: str) -> dict[str, Any]:
    """The ``logprobs`` object of a chat answer, one entry a byte."""
    tokens = [0x0A, *text.encode()]
    return {
        "content": [
            {"token": _token_text(token), "logprob": value, "bytes": [token], "top_logprobs": []}
            for token, (value, _, _) in zip(tokens[1:], score(tokens), strict=True)
        ]
    }


def first_token_logprobs(prompt: str, text: str, alternatives: int) -> dict[str, Any]:
    """The ``logprobs`` object of a chat answer's first token with its likeliest ``alternatives``: as
    the model has them behind the prompt, where a completion would go on."""
    context = b"\n" + prompt.encode("utf-8", "surrogatepass")
    logs = log_distribution(context[-ORDER:])
    best = np.argsort(-logs, kind="stable")[:alternatives].tolist()
    token = text.encode()[0] if text else best[0]
    entries = [
        {"token": _token_text(each), "logprob": float(logs[each]), "bytes": [each]} for each in (token, *best)
    ]
    return {"content": [{**entries[0], "top_logprobs": entries[1:]}]}


def greedy_token(tokens: list[int]) -> tuple[int, float]:
    """The likeliest token after a prompt, and its log-probability."""
    _, best, value = score([*tokens, 0])[-1] if tokens else (0, 0x0A, 0.0)
    return best, value


def _token_text(token: int) -> str:
    if token == BOS:
        return "<s>"
    return chr(token) if token < 0x80 else f"bytes:\\x{token:02x}"


def _seen(messages: Any, question: str) -> str | None:
    """What is said of the pictures; None where there are none."""
    try:
        return described(images_of(messages), question)
    except (ValueError, LookupError, TypeError) as error:
        raise Unacceptable(f"an image can't be read: {error}", "invalid_image") from error


class DemoModel:
    """Completes chats and texts as the options say."""

    def __init__(self, options: DemoOptions) -> None:
        self.options = options
        self._ids = itertools.count(1)

    def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a chat; raises Unacceptable."""
        prompt = prompt_of(body.get("messages"))
        size = -(-len(prompt.encode("utf-8", "surrogatepass")) // BYTES_A_TOKEN)
        self._fits(size)
        null = self.options.faults.null_prompts
        choices, tokens = [], 0
        asked = content_text(body["messages"][-1].get("content"))
        seen = _seen(body["messages"], asked)
        calls = called(asked, body.get("tools") or []) if body.get("tool_choice") != "none" else []
        for index in range(body.get("n") or 1):
            answer = generate(prompt, body, index, self.options.error_rate)
            if seen is not None:
                answer = Completion(seen, "stop", 1)
            tokens += answer.tokens
            message: dict[str, Any] = {
                "role": "assistant",
                "content": None if null is not None and null in prompt else answer.text,
            }
            if calls:
                message |= {"content": None, "tool_calls": calls}
                answer = Completion("", "tool_calls", answer.tokens)
            choice = {"index": index, "message": message, "finish_reason": answer.finish_reason}
            if body.get("logprobs"):
                count = body.get("top_logprobs") or 0
                choice["logprobs"] = (
                    first_token_logprobs(prompt, answer.text, count)
                    if count and body.get("max_tokens") == 1
                    else chat_logprobs(answer.text)
                )
            choices.append(choice)
        return self._envelope("chat.completion", choices, usage(size, tokens))

    def completion(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one or several texts, said back where ``echo`` asks for it; raises Unacceptable."""
        choices: list[dict[str, Any]] = []
        prompt_tokens = completion_tokens = 0
        for tokens in prompts_of(body.get("prompt")):
            self._fits(len(tokens))
            prompt_tokens += len(tokens)
            if body.get("echo") and not self.options.faults.ignore_echo:
                answer, count = self._echoed(tokens, body)
                choices.append({"index": len(choices), **answer})
                completion_tokens += count
                continue
            for index in range(body.get("n") or 1):
                generated = generate(text_of(tokens), body, index, self.options.error_rate)
                choice: dict[str, Any] = {"text": generated.text, "finish_reason": generated.finish_reason}
                if body.get("logprobs") is not None:
                    choice["logprobs"] = prompt_logprobs(list(generated.text.encode()))
                choices.append({"index": len(choices), **choice})
                completion_tokens += generated.tokens
        return self._envelope("text_completion", choices, usage(prompt_tokens, completion_tokens))

    def _echoed(self, tokens: list[int], body: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """A prompt said back, with at most one generated token after it."""
        limit = body.get("max_tokens", 16)
        count = min(1, 16 if limit is None else limit)
        said = list(tokens) + ([greedy_token(tokens)[0]] if count else [])
        answer: dict[str, Any] = {"text": text_of(said), "finish_reason": "length"}
        if body.get("logprobs") is not None:
            lists = prompt_logprobs(said)
            if self.options.faults.drop_bos and said[:1] == [BOS]:
                lists = {name: values[1:] for name, values in lists.items()}
            if self.options.faults.no_text_offset:
                del lists["text_offset"]
            answer["logprobs"] = lists
        return answer, count

    def _fits(self, size: int) -> None:
        if size > self.options.context:
            message = (
                f"This model's maximum context length is {self.options.context} tokens; the prompt has {size}"
            )
            raise Unacceptable(message, "context_length_exceeded")

    def _envelope(self, kind: str, choices: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": f"demo-{next(self._ids)}",
            "object": kind,
            "created": int(time.time()),
            "model": self.options.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
            "usage": usage,
        }
