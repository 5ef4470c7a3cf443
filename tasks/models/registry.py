"""Providers by the names that ``type:`` of a model gives them.

A provider is a class in a module of ``tasks.models.providers``, or in a file of the user's own that the
config names as ``file.py:Class``. The package's modules are imported by name when a provider is first looked
up: a config must not load them all to be read, and none of them knows the others.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from metrics.registry import Registry

PROVIDERS: Final[Registry[Any]] = Registry(
    "model type", "tasks.models.providers", deep=False, group="nightjar.providers"
)
DEFAULT: Final = "openai"
"""The type of a model that names none."""
P = TypeVar("P", bound=type)


def provider(name: str) -> Callable[[P], P]:
    """Registers a class, a ``Provider``, under the name that configs call it by."""

    def register(kind: P) -> P:
        PROVIDERS.add(name, kind)
        return kind

    return register


def schemas() -> dict[str, type[BaseModel]]:
    """What ``config`` of a model holds, for each registered type, the default one first."""
    return {name: PROVIDERS[name].schema for name in default_first()}


def default_first() -> list[str]:
    """The names of the registered types, the default one first."""
    return sorted(PROVIDERS, key=lambda name: (name != DEFAULT, name))


def is_recorded(kind: str) -> bool:
    """Whether a model of this type answers from what was recorded, and is asked nothing."""
    found = PROVIDERS.get(kind)
    return found is not None and not found.asks


def is_reference(kind: str) -> bool:
    """Whether the type names a class in a file or package of the user's own."""
    return ":" in kind
