"""Finds out how a server gives the log-probabilities of a prompt, with one known prompt."""

import threading
from collections.abc import Mapping
from typing import Any

from tasks.models.errors import MalformedBody, ModelError, NotServed, PermanentError
from tasks.models.likelihoods import EchoMode, scored, span_likelihood
from tasks.models.provider import Provider
from tasks.models.records import Call
from tasks.models.windows import Span

KNOWN = "The nightjar sleeps by day and flies by night."
MODES = (EchoMode(1, "echo"), EchoMode(0, "echo"), EchoMode(1, "prompt_logprobs"))

_found: dict[tuple[str, str], EchoMode] = {}
_lock = threading.Lock()


async def find_mode(provider: Provider, endpoint: str, model: str, extra: Mapping[str, Any]) -> EchoMode:
    """The first way of asking for which the number of log-probabilities matches the prompt; asked once a
    process.

    Raises ModelError where none does (chat-only endpoints, echo refused or silently ignored), and what the
    provider raises when the endpoint can't be reached.
    """
    with _lock:
        known = _found.get((endpoint, model))
    if known is not None:
        return known
    reasons = []
    for mode in MODES:
        call = Call("completions", {"model": model, **mode.body(KNOWN), **extra})
        try:
            reply = await provider.send(call, timeout=60)
            check(reply.body, mode)
        except (PermanentError, MalformedBody, NotServed) as error:
            reasons.append(f"{mode.source} with max_tokens {mode.max_tokens}: {error}")
            continue
        with _lock:
            _found[endpoint, model] = mode
        return mode
    raise ModelError(
        f"model {model!r} at {endpoint} gives no log-probabilities of a prompt, which this benchmark needs: "
        f"it takes a completions endpoint with echo and logprobs, not a chat-only one ({'; '.join(reasons)})"
    )


def check(body: Mapping[str, Any], mode: EchoMode) -> None:
    """Raises MalformedBody or BadRequest unless the body holds the log-probabilities of the known prompt's
    tokens.
    """
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        raise MalformedBody("the answer does not have one choice")
    tokens = scored(choices[0], mode)
    usage = body.get("usage")
    counted = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    if (
        counted is not None
        and not 0 <= counted + mode.max_tokens - len(tokens.logprobs) <= 1 + mode.max_tokens
    ):
        raise MalformedBody(
            f"echo is ignored: {len(tokens.logprobs)} log-probabilities for {counted} tokens of prompt"
        )
    if len(tokens.logprobs) < 3:
        raise MalformedBody(f"echo is ignored: only {len(tokens.logprobs)} log-probabilities came back")
    if tokens.offsets is not None or tokens.texts:
        start = KNOWN.index(" by night")
        span_likelihood(tokens, mode.max_tokens, Span(KNOWN, start))
