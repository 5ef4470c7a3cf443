"""``--set KEY=VALUE``: any key of a config from the command line, its value read as YAML."""

import re
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from flows.yaml_source import OVERRIDE, Location, Source, read_value
from metrics.errors import ConfigError

_PART = re.compile(r'"([^"]*)"|([^."]+)')
_NAMED_BY_TEXT: Final = {
    "models": "name",
    "metric_list": "metric",
    "dataset": "path",
    "evaluation_methods": "name",
}
"""Keys whose entries may be a text alone, and the key that the text stands for."""


def with_overrides(source: Source, overrides: Sequence[str], base_dir: Path) -> Source:
    """The source with each ``KEY=VALUE`` put into it, in order; raises ConfigError naming the ``--set`` at
    fault.

    Parts of a key are joined by dots; a number is an index of a list (the index after the last one adds an
    entry), and a part with dots in it is quoted: ``prices."gpt-4.1".prompt=2``.
    """
    data = deepcopy(source.data)
    origins = dict(source.origins)
    for text in overrides:
        location, value = parse_override(text, base_dir)
        origin = origin_of(text)
        location = put(data, location, value, origin)
        origins = {place: found for place, found in origins.items() if place[: len(location)] != location}
        for end in range(1, len(location) + 1):
            origins.setdefault(location[:end], origin)
    return Source(source.name, data, origins)


def origin_of(text: str) -> str:
    """What messages call an override: its key alone, because a value may be a secret that was put in the
    wrong place.
    """
    return f"{OVERRIDE} {text.partition('=')[0].strip()}".rstrip()


def parse_override(text: str, base_dir: Path) -> tuple[Location, Any]:
    """The place and the value that a ``KEY=VALUE`` stands for."""
    key, equals, value = text.partition("=")
    parts = [quoted or plain for quoted, plain in _PART.findall(key.strip())]
    joined = ".".join(f'"{part}"' if f'"{part}"' in key else part for part in parts)
    if not equals or not parts or joined != key.strip():
        raise ConfigError(
            f"{origin_of(text)}: expected KEY=VALUE with a dotted key, such as models.0.name=qwen"
        )
    location = tuple(int(part) if part.isascii() and part.isdigit() else part for part in parts)
    return location, read_value(value, origin_of(text), base_dir)[0]


def put(data: dict[str, Any], location: Location, value: Any, origin: str) -> Location:
    """Puts the value at its place in ``data`` and returns that place: a number is a key where it meets a
    mapping.
    """
    place: Any = data
    done: Location = ()
    for depth, part in enumerate(location):
        key = _slot(place, part, done, origin)
        done = (*done, key)
        if depth == len(location) - 1:
            place[key] = value
        elif place[key] is None:
            place[key] = [] if isinstance(location[depth + 1], int) else {}
        elif isinstance(place[key], str):
            place[key] = _spelled_out(place[key], done)
        place = place[key]
    return done


def _slot(place: Any, part: str | int, at: Location, origin: str) -> str | int:
    """The key or index that ``part`` stands for in ``place``, where there is now at least null."""
    name = ".".join(map(str, at))
    if isinstance(place, dict):
        place.setdefault(str(part), None)
        return str(part)
    if not isinstance(place, list):
        raise ConfigError(f"{origin}: {name} is {place!r}, which has no '{part}'")
    if not isinstance(part, int) or part > len(place):
        expected = f"0 to {len(place)}" if place else "0"
        raise ConfigError(
            f"{origin}: {name} is a list of {len(place)}; expected an index ({expected}), not '{part}'"
        )
    if part == len(place):
        place.append(None)
    return part


def _spelled_out(text: str, location: Location) -> Any:
    """A text that stands for a mapping with one key (``models: [qwen]``), as that mapping."""
    names = [part for part in location if isinstance(part, str)]
    key = _NAMED_BY_TEXT.get(names[-1]) if names else None
    return {key: text} if key is not None else text
