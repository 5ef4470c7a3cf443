"""``config.extra_body`` in a request: it adds fields, and never takes the place of one that is sent anyway.

Results say which sampling parameters were sent, and keys depend on them.
"""

from collections.abc import Mapping
from typing import Any

from tasks.models.errors import ModelError

PLACE = "config.extra_body"


def with_extra(told: Mapping[str, Any], extra: Mapping[str, Any], place: str = PLACE) -> dict[str, Any]:
    """The fields that all requests have and those of ``extra_body``; of mappings that both hold the entries.

    Raises ModelError for an entry that both hold with different values.

    >>> with_extra({"text": {"format": "json"}}, {"text": {"verbosity": "low"}, "top_k": 1})
    {'text': {'format': 'json', 'verbosity': 'low'}, 'top_k': 1}
    """
    together = dict(told)
    for name, value in extra.items():
        mine = told.get(name)
        if isinstance(mine, Mapping) and isinstance(value, Mapping):
            together[name] = with_extra(mine, value, f"{place}.{name}")
        elif name in told and mine != value:
            raise ModelError(
                f"{place}.{name}: {mine!r} is sent there already; leave it out of extra_body, and say it in "
                "sample_params, reasoning or config"
            )
        else:
            together[name] = value
    return together


def with_own(body: Mapping[str, Any], own: Mapping[str, Any], place: str = PLACE) -> dict[str, Any]:
    """A request's body with the fields of its own. Raises ModelError for one that ``extra_body`` holds."""
    if both := sorted(body.keys() & own.keys()):
        raise ModelError(f"{place}.{both[0]}: each request says its own there; leave it out of extra_body")
    return {**body, **own}
