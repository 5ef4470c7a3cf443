"""Fields of a request that an endpoint refuses: noticed by its first refusal, and asked without after that.

Newer chat models take ``max_completion_tokens`` in place of ``max_tokens``, and some refuse ``temperature``,
``top_p``, ``top_k``, ``stop`` or ``seed``. What was refused is known to the process; the keys of requests
stay what they are, since they hold what was to be asked.
"""

import logging
import re
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tasks.models.errors import BadRequest, TransientError
from tasks.models.records import Call, Reply, Transport

logger = logging.getLogger(__name__)
OTHER_NAME: Final[Mapping[str, str]] = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
}
"""Names of one field, of which some endpoints take only the other."""
WITHOUT: Final[Mapping[str, str]] = {
    **dict.fromkeys(("temperature", "top_p", "top_k"), "is left out, so that the endpoint's own holds"),
    "stop": "is left out, and answers are cut here",
    "seed": "is left out, and answers are drawn without one",
}
"""Fields that can be left out, and what that means."""
_not_taken: Final = re.compile(
    r"unsupported|(?:not|n't) (?:be )?(?:support|permit|allow|accept|recogni|available)|unrecogni|unknown"
    r"|unexpected|deprecated|no longer",
    re.IGNORECASE,
)
_too_much: Final = re.compile(r"at most|more than|up to|maximum|array too long", re.IGNORECASE)
"""Then the endpoint takes the field, and less of it."""


def refused_field(error: BadRequest, body: Mapping[str, Any]) -> str | None:
    """The field of the body that a refusal names as one that the endpoint does not take; None: none that can
    be renamed or left out.

    >>> error = BadRequest("HTTP 400: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.")
    >>> refused_field(error, {"max_tokens": 9, "temperature": 0})
    'max_tokens'
    """
    said = str(error)
    if not _not_taken.search(said) or _too_much.search(said):
        return None
    places = {
        name: found.start()
        for name in {**OTHER_NAME, **WITHOUT}
        if name in body and (found := re.search(rf"(?<![a-z_]){name}(?![a-z_])", said, re.IGNORECASE))
    }
    return min(places, key=places.__getitem__) if places else None


def fitted(body: Mapping[str, Any], refused: Collection[str]) -> dict[str, Any]:
    """The body without what the endpoint refuses, under the other name where there is one."""
    left = {name: value for name, value in body.items() if name not in refused}
    for name in body.keys() & OTHER_NAME.keys() & set(refused):
        if OTHER_NAME[name] not in refused:
            left.setdefault(OTHER_NAME[name], body[name])
    return left


@dataclass
class RefusedFields:
    """What an endpoint refuses, as far as the process knows; ``names`` grows."""

    endpoint: str
    names: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, names: Collection[str]) -> None:
        """Notes that requests were answered once these were not sent; a new one is logged."""
        if not names:
            return
        with self._lock:
            new = sorted(set(names) - self.names)
            self.names.update(new)
        for name in new:
            logger.warning("%s does not take %s", self.endpoint, self._handling(name))

    def sentence(self) -> str | None:
        """What is refused and done instead, in words; None: nothing is known to be."""
        said = "; ".join(map(self._handling, sorted(self.names)))
        return f"{self.endpoint} does not take {said}" if said else None

    def _handling(self, name: str) -> str:
        other = OTHER_NAME.get(name)
        if other is None:
            return f"{name}: it {WITHOUT[name]}"
        return f"{name}: " + (f"{other} is sent instead" if other not in self.names else "it is left out")


_known: dict[tuple[str, str], RefusedFields] = {}
_lock = threading.Lock()


def refused_by(base_url: str, model: str) -> RefusedFields:
    """What a model at an address is known to refuse."""
    with _lock:
        return _known.setdefault((base_url, model), RefusedFields(f"model {model!r} at {base_url}"))


@dataclass(frozen=True)
class FittingTransport:
    """A transport that asks again without what the endpoint says it does not take."""

    inner: Transport
    refused: RefusedFields

    async def send(self, call: Call, timeout: float) -> Reply:
        """As the inner one's; a prompt's log-probabilities are asked for as the probe found."""
        if call.body.keys() & {"echo", "prompt_logprobs"}:
            return await self.inner.send(call, timeout)
        found: set[str] = set()
        while True:
            refused = self.refused.names | found
            fitting = replace(call, body=fitted(call.body, refused)) if refused else call
            try:
                reply = await self.inner.send(fitting, timeout)
            except BadRequest as error:
                name = refused_field(error, fitting.body)
                if name is None:
                    raise
                found.add(name)  # each time another one, and there are few
            except TransientError:
                self.refused.add(found)
                raise
            else:
                self.refused.add(found)
                return reply

    async def close(self) -> None:
        """Closes the inner one."""
        await self.inner.close()
