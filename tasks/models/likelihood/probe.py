"""Probes a server with one known prompt: how it gives log-probabilities, and whether it takes token ids.

The connection asks before the first log-likelihood of a process; the answers hold for the process.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tasks.models.errors import (
    BadRequest,
    MalformedBody,
    ModelError,
    NotServed,
    PermanentError,
    RequestError,
    RequestTimeout,
    ServerFault,
    TransientError,
)
from tasks.models.likelihood.echo import EchoMode, Likelihood
from tasks.models.likelihood.tokenizers import Tokenizer
from tasks.models.likelihood.tokens import scored
from tasks.models.records import Call, Provider, Reply, Request

PROBE_SECONDS = 60.0
TRIES, PAUSE = 3, 0.2
"""How often a server that fails is asked the same, and seconds between; then it is what it can't answer."""
KNOWN, LAST = "The nightjar sleeps by day and flies by", " night"
MODES: tuple[EchoMode, ...] = (EchoMode(1, "echo"), EchoMode(0, "echo"), EchoMode(1, "prompt_logprobs"))
"""Ways of asking, the commonest first."""

_modes: dict[tuple[str, str, bool], EchoMode] = {}
_takes_ids: dict[tuple[str, str], bool] = {}
_takes_stops: dict[tuple[str, str, int], bool] = {}
_lock = threading.Lock()


async def find_mode(
    provider: Provider, endpoint: str, likelihood: Callable[[EchoMode], Likelihood]
) -> EchoMode:
    """The first way of asking in which a known prompt's last word gets a log-likelihood; asked once a
    process.

    Raises ModelError where none does (chat-only endpoints, echo refused or silently ignored, another
    tokenizer than the model's), and what the provider raises when the endpoint can't be reached.
    """
    sample = likelihood(MODES[0])
    cache_key = (endpoint, sample.model, sample.tokenizer is not None)
    with _lock:
        known = _modes.get(cache_key)
    if known is not None:
        return known
    reasons = []
    with_ids = tuple(replace(mode, ids=True) for mode in MODES) if sample.tokenizer is not None else ()
    for candidate in (*with_ids, *MODES):
        try:
            mode = await _tried(provider, likelihood(candidate))
        except (PermanentError, MalformedBody, NotServed, ServerFault) as error:
            reasons.append(f"{candidate.source} with max_tokens {candidate.max_tokens}: {error}")
            continue
        with _lock:
            _modes[cache_key] = mode
        return mode
    raise ModelError(
        f"model {sample.model!r} at {endpoint} gives no log-probabilities of prompts, as needed here: "
        f"it takes a completions endpoint with echo and logprobs, not a chat-only one ({'; '.join(reasons)})"
    )


async def _tried(provider: Provider, likelihood: Likelihood) -> EchoMode:
    """Asks for the known prompt, and returns the mode with what was learnt of it.

    Raises PermanentError or MalformedBody unless its log-likelihood comes back.
    """
    request = Request(b"", "loglikelihood", KNOWN, LAST)
    mode, tokenizer = likelihood.mode, likelihood.tokenizer
    as_text = tokenizer is not None and not mode.ids
    if tokenizer is not None and as_text and not _gives_back(tokenizer, KNOWN + LAST):
        raise BadRequest("the tokenizer: does not give back a text that it was given")
    (call,) = likelihood.calls([request])
    reply = await _sent(provider, call)
    listed = _listed(reply.body, mode)
    (answer,) = likelihood.answers([request], [reply], 1)
    if answer.status != "ok":
        raise BadRequest(str(answer.error))
    if tokenizer is None or not as_text:
        return mode
    begun = len(listed) - mode.listed - len(tokenizer.encode(KNOWN + LAST))
    # One too few, and nothing before the first: then it is the generated token that is not listed.
    return replace(mode, begun=0 if begun < 0 and listed[0] is None else begun)


async def takes_ids(provider: Provider, endpoint: str, model: str, tokenizer: Tokenizer) -> bool:
    """Whether the server completes a prompt of token ids; asked once a process. One that can't be asked just
    now is taken to.
    """
    cache_key = (endpoint, model)
    with _lock:
        known = _takes_ids.get(cache_key)
    if known is not None:
        return known
    body = {"model": model, "prompt": [tokenizer.encode(KNOWN)], "max_tokens": 1, "temperature": 0}
    try:
        reply = await _sent(provider, Call("completions", body))
        choices = reply.body.get("choices")
        taken = isinstance(choices, list) and len(choices) == 1
    except (PermanentError, MalformedBody, ServerFault):
        taken = False
    except RequestError:
        return True
    with _lock:
        _takes_ids[cache_key] = taken
    return taken


async def takes_stops(provider: Provider, endpoint: str, call: Call) -> bool:
    """Whether the server takes as many stop sequences as the call has; asked once a process for a number.

    One that can't be asked just now is taken to: then the requests themselves say what is wrong.
    """
    count = len(call.body["stop"])
    cache_key = (endpoint, str(call.body.get("model")), count)
    with _lock:
        known = _takes_stops.get(cache_key)
    if known is not None:
        return known
    try:
        await _sent(provider, call)
        taken = True
    except BadRequest:
        taken = False
    except RequestError:
        return True
    with _lock:
        _takes_stops[cache_key] = taken
    return taken


async def _sent(provider: Provider, call: Call) -> Reply:
    """The reply; a server that fails is asked again, since one failure says nothing about what it takes."""
    for _ in range(TRIES - 1):
        try:
            return await provider.send(call, timeout=PROBE_SECONDS)
        except RequestTimeout:
            raise
        except TransientError as error:
            await asyncio.sleep(PAUSE if error.retry_after is None else error.retry_after)
    return await provider.send(call, timeout=PROBE_SECONDS)


def _gives_back(tokenizer: Tokenizer, text: str) -> bool:
    return tokenizer.decode(tokenizer.encode(text)).strip() == text


def _listed(body: Mapping[str, Any], mode: EchoMode) -> Sequence[float | None]:
    """The log-probabilities; raises MalformedBody when there are not as many as the server says the prompt
    has tokens.
    """
    choices, usage = body.get("choices"), body.get("usage")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        raise MalformedBody("the answer does not have one choice")
    found = scored(choices[0], mode.source).logprobs
    counted = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    least = 3 if not isinstance(counted, int) else counted - 1  # a BOS may be counted and not listed
    if len(found) < least:
        raise MalformedBody(
            f"echo is ignored: {len(found)} log-probabilities for a prompt of {counted} tokens"
        )
    return found
