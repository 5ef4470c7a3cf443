"""Asks an endpoint what it serves, before a run starts, so that a wrong address or key costs seconds and
not hours.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tasks.models.config import ModelConfig
from tasks.models.errors import ModelError

PROBE_SECONDS = 15.0
NAMES_SHOWN = 5


@dataclass(frozen=True)
class ServedIdentity:
    """What answered: the address, the name asked for, the names it serves (empty: it does not say), and a
    warning if the name is not among them.
    """

    base_url: str | None
    model: str
    served: tuple[str, ...] = ()
    warning: str | None = None


def probe(
    model: ModelConfig, kind: str = "generate", secret: Callable[[str], str] | None = None
) -> ServedIdentity:
    """Asks the model's endpoint what it serves; for log-likelihoods also whether it gives those of a
    prompt.

    Recorded responses have no endpoint and nothing is asked. Raises ModelError with the remedy when nothing
    answers, the key is missing or refused, or log-likelihoods are not to be had.
    """
    if model.type == "replay":
        return ServedIdentity(None, model.name)
    return asyncio.run(_probe(model, kind, secret))


async def _probe(model: ModelConfig, kind: str, secret: Callable[[str], str] | None) -> ServedIdentity:
    from tasks.models.connecting import Place, likelihood_at, placed
    from tasks.models.errors import AccessDenied, RequestError
    from tasks.models.http import HttpProvider

    place: Place
    with placed(model, secret) as place:
        provider = HttpProvider(place.base_url, place.key, 4)
        try:
            served = await provider.served(PROBE_SECONDS)
            if kind != "generate":
                await likelihood_at(provider, place, model)
        except AccessDenied as error:
            raise ModelError(
                f"model {model.name!r}: {place.base_url} refused access ({error}); {_key_remedy(model)}"
            ) from error
        except RequestError as error:
            raise ModelError(
                f"model {model.name!r}: nothing usable answers at {place.base_url} ({error}); start the "
                "server or set config.base_url to where it is"
            ) from error
        finally:
            await provider.close()
    return ServedIdentity(
        place.base_url, place.model, served, _warning(model, place.model, place.base_url, served)
    )


def _key_remedy(model: ModelConfig) -> str:
    named = getattr(model.config, "api_key_env", None), getattr(model.config, "api_key_secret", None)
    if named[0]:
        return f"check the key in the environment variable {named[0]}"
    if named[1]:
        return f"check the key in the Secret block {named[1]!r}"
    return "name the environment variable that holds the key in config.api_key_env"


def _warning(model: ModelConfig, name: str, base_url: str, served: tuple[str, ...]) -> str | None:
    if not served or name in served:
        return None
    shown = ", ".join(served[:NAMES_SHOWN]) + (" …" if len(served) > NAMES_SHOWN else "")
    return f"model {model.name!r}: {base_url} does not list {name!r}; it serves {shown}"
