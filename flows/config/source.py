"""Where each value of a config comes from: a line of its YAML file, or the ``--set`` that put it there.

``read_yaml`` reads a file, ``with_overrides`` puts ``KEY=VALUE`` texts into it; both remember origins, by
which messages name file and line.
"""

import importlib.util
import math
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from metrics.errors import ConfigError
from tasks.store.anchors import MOST_REPEATED, REPEATED_TOO_OFTEN

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML without libyaml reads the same, more slowly
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]


Location = tuple[str | int, ...]
FUNCTION_TAG = "!function"
OVERRIDE = "--set"
_TAG = "tag:yaml.org,2002:"
_AS_TEXT = frozenset({_TAG + "timestamp"})  # a config is JSON, which has no dates
_NUMBERS = frozenset({_TAG + "int", _TAG + "float"})
_SCALARS = frozenset(_TAG + name for name in ("null", "bool", "int", "float", "str"))
_OF_YAML_1_1 = re.compile(r"[-+]?(?:0[0-9_]+|[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?)")
"""Numbers of YAML 1.1 alone, octal and of base 60: ``010`` would be 8, and ``12:30`` would be 750."""
_CONTROL = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ufffd\U00010000-\U0010ffff]")
"""What no YAML file may hold."""
_KEY = re.compile(r'((?:"[^"]*"|[^"=])*)=(.*)', re.DOTALL)
_PART = re.compile(r'"([^"]*)"|([^."]+)')
_NAMED_BY_TEXT: Final = {
    "models": "name",
    "metric_list": "metric",
    "dataset": "path",
    "evaluation_methods": "name",
}
"""Keys whose entries may be a text alone, and the key that the text stands for."""


@dataclass(frozen=True)
class YamlSource:
    """A config as it was written.

    ``origins`` says for a place where it comes from: "gsm8k.yaml:12", or the ``--set`` that put it there;
    ``functions`` are the places that were written as ``!function``, and ``spellings`` the numbers that Python
    writes in another way (``1.10``, ``0x10``), as the file has them.
    """

    name: str
    data: dict[str, Any]
    origins: Mapping[Location, str] = field(default_factory=dict)
    functions: frozenset[Location] = frozenset()
    spellings: Mapping[Location, str] = field(default_factory=dict)

    def where(self, location: Location) -> str:
        """The origin of a place, or of the nearest one around it that was written."""
        for end in range(len(location), -1, -1):
            if location[:end] in self.origins:
                return self.origins[location[:end]]
        return self.name


def read_yaml(path: Path) -> YamlSource:
    """The mapping that a YAML file holds; raises ConfigError naming file and line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"config '{path}' is not there; expected a YAML file") from None
    except IsADirectoryError:
        raise ConfigError(f"config '{path}' is a folder; expected a YAML file in it") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name} is not UTF-8 (byte {error.start + 1}); save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"config '{path}' can't be read: {error.strerror}") from error
    except ValueError as error:  # a NUL
        raise ConfigError(f"config {str(path)!r} is no path: {error}") from error
    return parse_yaml(text, path.name, path.parent)


def parse_yaml(text: str, name: str, base_dir: Path) -> YamlSource:
    """As ``read_yaml``, for text that is in hand already; ``!function`` is looked for in ``base_dir``."""
    value, reader = _read(text, name, base_dir)
    if not isinstance(value, dict):
        found = "nothing" if value is None else f"a {'list' if isinstance(value, list) else 'single value'}"
        raise ConfigError(
            f"{name}: expected a mapping of keys such as name, dataset and models; the file holds {found}"
        )
    return YamlSource(name, value, reader.origins, frozenset(reader.functions), reader.spellings)


def _read(text: str, name: str, base_dir: Path) -> tuple[Any, "_Reader"]:
    """Any YAML value, and the reader that knows of its parts; raises ConfigError naming the line (a ``--set``
    has none).
    """
    loader = _loader(text, name)
    try:
        node = loader.get_single_node()
        reader = _Reader(loader, name, base_dir)
        return (None if node is None else reader.value(node, ())), reader
    except RecursionError:
        raise ConfigError(f"{name}: its lists and mappings are nested too deeply to be read") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None and not name.startswith(OVERRIDE) else ""
        raise ConfigError(f"{name}{line}: not valid YAML: {_problem(error)}") from error
    except yaml.reader.ReaderError as error:
        line = "" if name.startswith(OVERRIDE) else f":{_CONTROL.split(text, 1)[0].count(chr(10)) + 1}"
        code = ord(error.character) if isinstance(error.character, str) else error.character
        raise ConfigError(
            f"{name}{line}: holds a control character (#x{code:02x}); save it as UTF-8 text"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not valid YAML: {error}") from error
    finally:
        loader.dispose()


def _loader(text: str, name: str) -> Any:
    try:
        return _Loader(text)
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name}: holds a byte that is no UTF-8; give its value as UTF-8") from error


def with_overrides(source: YamlSource, overrides: Sequence[str], base_dir: Path) -> YamlSource:
    """The source with each ``KEY=VALUE`` put into it, in order; raises ConfigError naming the ``--set`` at
    fault.

    Parts of a key are joined by dots; a number is an index of a list (the index after the last one adds an
    entry), and a part with dots in it is quoted: ``prices."gpt-4.1".prompt=2``.
    """
    data = deepcopy(source.data)
    origins = dict(source.origins)
    functions = set(source.functions)
    spellings = dict(source.spellings)
    for text in overrides:
        location, value, inside = _parsed_override(text, base_dir)
        origin = origin_of(text)
        location = put(data, location, value, origin)
        origins = {place: found for place, found in origins.items() if not _within(place, location)}
        for end in range(1, len(location) + 1):
            origins.setdefault(location[:end], origin)
        functions = {place for place in functions if not _within(place, location)}
        functions |= {(*location, *place) for place in inside.functions}
        spellings = {place: found for place, found in spellings.items() if not _within(place, location)}
        spellings |= {(*location, *place): found for place, found in inside.spellings.items()}
    return YamlSource(source.name, data, origins, frozenset(functions), spellings)


def refuse_dropped(overrides: Sequence[str]) -> None:
    """Raises ConfigError where a ``--set`` replaces what one before it has set a part of."""
    places = [(parse_override(text, Path())[0], origin_of(text)) for text in overrides]
    for index, (later, origin) in enumerate(places):
        for earlier, dropped in places[:index]:
            if _within(earlier, later) and earlier != later:
                raise ConfigError(f"{origin} replaces what {dropped} sets before it; give it first")


def _within(place: Location, around: Location) -> bool:
    return place[: len(around)] == around


def function_reference(text: str, base_dir: Path) -> str:
    """``utils.fn`` as "utils.py:fn": the file in ``base_dir``, else an importable module, as
    "package.module:fn".
    """
    module, _, function = text.strip().rpartition(".")
    file = Path(*module.split(".")).with_suffix(".py") if module else Path()
    if module and not (base_dir / file).is_file() and _importable(module):
        return f"{module}:{function}"
    return f"{file.as_posix()}:{function}"


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _problem(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "it can't be read"
    if "cannot start any token" in problem:
        return f"{problem}; indent with spaces, not tabs, and quote text that begins with a special character"
    return problem


class _Reader:
    """Turns YAML nodes into values and notes where each stands."""

    def __init__(self, loader: Any, name: str, base_dir: Path) -> None:
        self.origins: dict[Location, str] = {}
        self.functions: set[Location] = set()
        self.spellings: dict[Location, str] = {}
        self._loader = loader
        self._name = name
        self._base_dir = base_dir
        self._open: set[int] = set()  # nodes being read: an anchor inside itself has no end
        self._seen: set[int] = set()
        self._repeated = 0

    def value(self, node: yaml.Node, at: Location) -> Any:
        """The value of a node; a mapping's entry stands where its key does."""
        self.origins.setdefault(at, self._where(node))
        self._repeated += id(node) in self._seen
        if self._repeated > MOST_REPEATED:
            raise ConfigError(f"{self._name}: {REPEATED_TOO_OFTEN}")
        self._seen.add(id(node))
        if node.tag == FUNCTION_TAG:
            self.functions.add(at)
            return self._function(node)
        if isinstance(node, yaml.ScalarNode):
            value = self._scalar(node)
            if isinstance(value, int | float) and not isinstance(value, bool) and str(value) != node.value:
                self.spellings[at] = node.value
            return value
        if id(node) in self._open:
            raise ConfigError(f"{self._where(node)}: an anchor holds itself")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.value(entry, (*at, index)) for index, entry in enumerate(node.value)]
            return self._mapping(node, at)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.Node, at: Location) -> dict[str, Any]:
        if node.tag != _TAG + "map":
            raise ConfigError(f"{self._where(node)}: the tag {node.tag} is not known here")
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        # What is merged stands below the mapping's own keys, and the first merge over later ones, wherever
        # they are written: it is read first, and what lies over it afterwards.
        for key_node, value_node in reversed(node.value):
            if key_node.tag == _TAG + "merge":
                merged = {**merged, **self._merged(value_node, at)}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                continue
            key = self._key(key_node)
            if key in found:
                raise ConfigError(f"{self._where(key_node)}: the key '{key}' is there twice in one mapping")
            if key in merged:
                self._forget((*at, key), below=isinstance(merged[key], list | dict))
            self.origins[(*at, key)] = self._where(key_node)
            found[key] = self.value(value_node, (*at, key))
        return {**merged, **found}

    def _forget(self, place: Location, below: bool) -> None:
        """Drops what is known of a place, and ``below`` it: something else is written over it."""
        if not below:
            self.origins.pop(place, None)
            self.functions.discard(place)
            self.spellings.pop(place, None)
            return
        self.origins = {at: found for at, found in self.origins.items() if not _within(at, place)}
        self.functions = {at for at in self.functions if not _within(at, place)}
        self.spellings = {at: found for at, found in self.spellings.items() if not _within(at, place)}

    def _merged(self, node: yaml.Node, at: Location) -> dict[str, Any]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        found: dict[str, Any] = {}
        for entry in reversed(nodes):
            if not isinstance(entry, yaml.MappingNode):
                raise ConfigError(f"{self._where(entry)}: '<<' merges mappings only")
            found = {**found, **self.value(entry, at)}
        return found

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise ConfigError(
                f'{self._where(node)}: a key is text; a template has to be quoted, as in "{{{{question}}}}"'
            )
        return str(node.value)

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        if node.tag in _AS_TEXT or (node.tag in _NUMBERS and _OF_YAML_1_1.fullmatch(node.value)):
            return node.value
        if node.tag not in _SCALARS:
            raise ConfigError(
                f"{self._where(node)}: the tag {node.tag} is not known here; known is {FUNCTION_TAG}; "
                "write the value itself, or quote it if it is a text"
            )
        try:
            value = self._loader.construct_object(node)
        except (ValueError, LookupError, yaml.YAMLError) as error:  # PyYAML looks up what a tag promises
            said = f"it is no {node.tag.removeprefix(_TAG)}" if isinstance(error, LookupError) else error
            raise ConfigError(f"{self._where(node)}: '{node.value}' can't be read: {said}") from error
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(
                f"{self._where(node)}: {node.value} is no number that JSON has; give a finite one"
            )
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise ConfigError(f"{self._where(node)}: an integer beyond 64 bits; quote it if it is a text")
        return value

    def _function(self, node: yaml.Node) -> str:
        text = node.value if isinstance(node, yaml.ScalarNode) else ""
        if not text.strip().rpartition(".")[0]:
            raise ConfigError(f"{self._where(node)}: expected {FUNCTION_TAG} file.function, got '{text}'")
        return function_reference(text, self._base_dir)

    def _where(self, node: yaml.Node) -> str:
        return self._name if self._name.startswith(OVERRIDE) else f"{self._name}:{node.start_mark.line + 1}"


def override(key: str, value: Any) -> str:
    """``KEY=VALUE`` that is read as just this value. JSON is not: to YAML 1.1 its ``1e-05`` is a text, and
    its escapes of a character beyond 16 bits are none."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, sort_keys=False, width=math.inf)
    return f"{key}={text}"


def origin_of(text: str) -> str:
    """What messages call an override: its key alone, because a value may be a key that was put in the
    wrong place.
    """
    return f"{OVERRIDE} {_key_and_value(text)[0]}".rstrip()


def _key_and_value(text: str) -> tuple[str, str | None]:
    """The two sides of ``KEY=VALUE``; the value is None where there is none. In quotes a key may hold a =."""
    found = _KEY.match(text)
    return (text.partition("=")[0].strip(), None) if found is None else (found[1].strip(), found[2])


def parse_override(text: str, base_dir: Path) -> tuple[Location, Any]:
    """The place and the value that a ``KEY=VALUE`` stands for."""
    return _parsed_override(text, base_dir)[:2]


def _parsed_override(text: str, base_dir: Path) -> tuple[Location, Any, "_Reader"]:
    """Also the reader that knows how the places below it are written."""
    key, value = _key_and_value(text)
    parts = [quoted or plain for quoted, plain in _PART.findall(key)]
    joined = ".".join(f'"{part}"' if f'"{part}"' in key else part for part in parts)
    if value is None or not parts or joined != key:
        raise ConfigError(
            f"{origin_of(text)}: expected KEY=VALUE with a dotted key, such as models.0.name=qwen"
        )
    location = tuple(int(part) if part.isascii() and part.isdigit() else part for part in parts)
    found, reader = _read(value, origin_of(text), base_dir)
    return location, found, reader


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
