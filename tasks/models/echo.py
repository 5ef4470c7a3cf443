"""Finds out how a server gives the log-probabilities of a prompt, with one known prompt."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tasks.models.errors import BadRequest, MalformedBody, ModelError, NotServed, PermanentError
from tasks.models.likelihoods import Likelihood
from tasks.models.logprobs import EchoMode, scored
from tasks.models.provider import Provider
from tasks.models.records import Request

PROBE_SECONDS = 60.0
KNOWN, LAST = "The nightjar sleeps by day and flies by", " night"
ASKED: tuple[EchoMode, ...] = (EchoMode(1, "echo"), EchoMode(0, "echo"), EchoMode(1, "prompt_logprobs"))
"""Ways of asking, the commonest first."""

_found: dict[tuple[str, str, bool], EchoMode] = {}
_lock = threading.Lock()


async def find_mode(
    provider: Provider, endpoint: str, likelihood: Callable[[EchoMode], Likelihood]
) -> EchoMode:
    """The first way of asking in which a known prompt's last word gets a log-likelihood; asked once a
    process.

    Raises ModelError where none does (chat-only endpoints, echo refused or silently ignored, another
    tokenizer than the model's), and what the provider raises when the endpoint can't be reached.
    """
    sample = likelihood(ASKED[0])
    place = (endpoint, sample.model, sample.tokenizer is not None)
    with _lock:
        known = _found.get(place)
    if known is not None:
        return known
    reasons = []
    with_ids = tuple(replace(mode, ids=True) for mode in ASKED) if sample.tokenizer is not None else ()
    for mode in (*with_ids, *ASKED):
        try:
            await _try(provider, likelihood(mode))
        except (PermanentError, MalformedBody, NotServed) as error:
            reasons.append(f"{mode.source} with max_tokens {mode.max_tokens}: {error}")
            continue
        with _lock:
            _found[place] = mode
        return mode
    raise ModelError(
        f"model {sample.model!r} at {endpoint} gives no log-probabilities of prompts, as needed here: "
        f"it takes a completions endpoint with echo and logprobs, not a chat-only one ({'; '.join(reasons)})"
    )


async def _try(provider: Provider, likelihood: Likelihood) -> None:
    """Asks for the known prompt; raises PermanentError or MalformedBody unless its log-likelihood comes
    back.
    """
    request = Request(b"", "loglikelihood", KNOWN, LAST)
    (call,) = likelihood.calls([request])
    reply = await provider.send(call, timeout=PROBE_SECONDS)
    _check_count(reply.body, likelihood.mode)
    (answer,) = likelihood.answers([request], [reply], 1)
    if answer.status != "ok":
        raise BadRequest(str(answer.error))


def _check_count(body: Mapping[str, Any], mode: EchoMode) -> None:
    """Raises MalformedBody when there are not as many log-probabilities as the server says the prompt has
    tokens.
    """
    choices, usage = body.get("choices"), body.get("usage")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        raise MalformedBody("the answer does not have one choice")
    found = len(scored(choices[0], mode).logprobs)
    counted = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    least = 3 if not isinstance(counted, int) else counted - 1  # a BOS may be counted and not listed
    if found < least:
        raise MalformedBody(f"echo is ignored: {found} log-probabilities for a prompt of {counted} tokens")
