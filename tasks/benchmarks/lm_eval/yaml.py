"""Reads lm-evaluation-harness YAML as mappings: ``include`` merged, ``!function`` kept as a name that
travels.

Nothing is imported and nothing interpreted, so that a checkout of 13,000 files is read in seconds, and
files are validated where what they import is not installed: what a function takes is read from its
source. In JSON a function's name is kept apart from texts (``encoded``, ``decoded``).

The schema of a definition says every key, what it may hold, and which keys are refused because they can't
be honoured here.
"""

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from metrics.aliases import nearest
from metrics.errors import ConfigError
from metrics.json_values import leaves, with_leaves
from metrics.types import OUTPUT_TYPES
from tasks.store.anchors import MOST_REPEATED, REPEATED_TOO_OFTEN
from tasks.store.home import named_path
from tasks.store.imports import syntax_tree
from tasks.usercode.evaluate import loads_code_eval
from tasks.usercode.load import check_named

# The C parser is ten times faster; wheels of PyYAML have it, a build from source may not.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
INCLUDE: Final = "include"
# Definitions of several benchmarks in one file concern that file alone.
NOT_INHERITED: Final = ("task_list",)


class FunctionName(str):
    """A function named by ``!function``: ``/folder/utils.py:process_docs`` or ``package.module:function``."""

    __slots__ = ()


class _Loader(_Base):  # type: ignore[misc]  # the base is chosen at run time
    """A YAML loader that knows the folder it reads in, which ``!function`` looks into first."""

    def __init__(self, stream: bytes, folder: Path) -> None:
        super().__init__(stream)
        self.folder = folder


def _function(loader: _Loader, node: yaml.Node) -> FunctionName:
    if not isinstance(node, yaml.ScalarNode):
        raise yaml.constructor.ConstructorError(None, None, "!function takes one name", node.start_mark)
    module, separator, name = node.value.strip().rpartition(".")
    if not separator or not name.isidentifier():
        problem = f"!function takes module.function, got '{node.value}'"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    return function_name(loader.folder, module, name)


_Loader.add_constructor("!function", _function)


class Reader:
    """Reads definitions and remembers what it merged, because hundreds of benchmarks include the same
    file."""

    def __init__(self) -> None:
        self._merged_files: dict[Path, Mapping[str, Any]] = {}

    def read(self, path: Path) -> dict[str, Any]:
        """The file's keys, over those of what it includes; raises ConfigError naming file, line and
        remedy."""
        return dict(self._merged(path.expanduser().resolve(), ()))

    def included(self, config: Mapping[str, Any], path: Path) -> dict[str, Any]:
        """A mapping inside the file at ``path``, over what its own ``include`` names."""
        return dict(self._over_includes(dict(config), path, (path,))) if INCLUDE in config else dict(config)

    def _merged(self, path: Path, including: tuple[Path, ...]) -> Mapping[str, Any]:
        if path in including:
            circle = " → ".join(file.name for file in (*including[including.index(path) :], path))
            raise ConfigError(f"{including[-1]}: include runs in a circle: {circle}")
        if path not in self._merged_files:
            try:
                stat = path.stat()
                own = _parsed(path, stat.st_mtime_ns, stat.st_size)
            except OSError as error:
                place = f"{including[-1]}: includes {path}, which" if including else str(path)
                raise ConfigError(f"{place} can't be read: {error.strerror or error}") from error
            self._merged_files[path] = self._over_includes(dict(own), path, (*including, path))
        return self._merged_files[path]

    def _over_includes(
        self, own: dict[str, Any], path: Path, including: tuple[Path, ...]
    ) -> Mapping[str, Any]:
        merged: dict[str, Any] = {}
        for name in _include_names(own.pop(INCLUDE, None), path):
            file = named_path(path.parent, name).resolve()
            check_named(file, path.parent, name)
            included = self._merged(file, including)
            merged.update((key, value) for key, value in included.items() if key not in NOT_INHERITED)
        merged.update(own)
        return merged


def function_name(folder: Path, module: str, name: str) -> FunctionName:
    """The function as the harness finds it: in a Python file beside the YAML, else in an importable
    module."""
    file = folder.joinpath(*module.split(".")).with_suffix(".py")
    return FunctionName(f"{file if file.is_file() else module}:{name}")


@lru_cache(maxsize=32768)
def _parsed(path: Path, _mtime_ns: int, _size: int) -> Mapping[str, Any]:
    """The mapping of one file as it is now; a change of the file is another entry."""
    loader = _Loader(path.read_bytes(), path.parent)
    try:
        value = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{line}: {error.problem or error}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: malformed YAML: {' '.join(str(error).split())}") from error
    finally:
        loader.dispose()
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a mapping of keys, got {type(value).__name__}")
    if problem := _problem_of_size(value):
        raise ConfigError(f"{path}: {problem}")
    return {str(key): entry for key, entry in value.items()}


DEEPEST: Final = 100
"""Lists and mappings of a definition inside each other: what reads them calls itself for each."""


def _problem_of_size(value: Any) -> str | None:
    """Why a definition has more in it than can be read: below ``DEEPEST`` levels, as there always is where an
    anchor holds itself, or by its anchors."""
    level: dict[int, tuple[Any, int]] = {id(value): (value, 1)}
    repeated = 0
    for _ in range(DEEPEST):
        below: dict[int, tuple[Any, int]] = {}
        for holder, times in level.values():
            for entry in holder.values() if isinstance(holder, dict) else holder:
                if isinstance(entry, dict | list):
                    below[id(entry)] = entry, times + below.get(id(entry), (entry, 0))[1]
        repeated += sum((times - 1) * (1 + len(entry)) for entry, times in below.values())
        level = below
    if level:
        return "its lists and mappings are nested too deeply to be read"
    return REPEATED_TOO_OFTEN if repeated > MOST_REPEATED else None


def _include_names(value: Any, path: Path) -> list[str]:
    names = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(name, str) and "\0" not in name for name in names):
        raise ConfigError(f"{path}: include takes a file name or a list of them, got {value!r}")
    return names


FUNCTION_KEY: Final = "!function"


def reference(name: FunctionName, base_dir: Path) -> str:
    """The name as native configs write it: ``utils.py:process_docs`` relative to ``base_dir``, or
    ``package:fn``."""
    source, _, function = name.rpartition(":")
    if source.endswith(".py"):
        source = Path(os.path.relpath(source, base_dir)).as_posix()
    return f"{source}:{function}"


def functions_in(value: Any) -> Iterator[FunctionName]:
    """Every function named anywhere in a definition, as often as it is."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, FunctionName))


def encoded(value: Any, base_dir: Path) -> Any:
    """``value`` for JSON: a function becomes ``{"!function": "utils.py:process_docs"}``, so that no text is
    taken for one."""

    def named(leaf: Any) -> Any:
        return {FUNCTION_KEY: reference(leaf, base_dir)} if isinstance(leaf, FunctionName) else leaf

    return with_leaves(value, named)


def decoded(value: Any) -> Any:
    """The reverse of ``encoded``; functions are names relative to the base folder."""
    if isinstance(value, Mapping):
        if set(value) == {FUNCTION_KEY}:
            return FunctionName(value[FUNCTION_KEY])
        return {key: decoded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [decoded(entry) for entry in value]
    return value


def asks_about_programs(name: FunctionName, base_dir: Path) -> bool:
    """Whether the file of a function loads ``code_eval``: what it asks about runs in a sandbox."""
    source = name.rpartition(":")[0]
    return source.endswith(".py") and loads_code_eval(base_dir / source)


def runs_programs_itself(config: Mapping[str, Any], base_dir: Path) -> bool:
    """Whether a definition that runs what a model writes (``unsafe_code``) does so in its own files."""
    scoring = functions_in([config.get("process_results"), config.get("metric_list")])
    return bool(config.get("unsafe_code")) and not any(
        asks_about_programs(name, base_dir) for name in scoring
    )


MAKES_NAMES = frozenset({"globals", "locals", "vars", "setattr", "exec", "__getattr__"})


def check_function(name: FunctionName, where: str) -> None:
    """Raises ConfigError where the function's file has no such name; an installed module is not looked
    into."""
    source, _, function = name.rpartition(":")
    names = _names(Path(source)) if source.endswith(".py") else None
    if names is not None and function not in names:
        raise ConfigError(f"{where}: !function names '{function}', which {source} does not define")


def is_passthrough(name: FunctionName) -> bool:
    """Whether the function gives back its only argument: a metric whose work is all in its aggregation."""
    source, _, function = name.rpartition(":")
    definition = _functions(Path(source)).get(function) if source.endswith(".py") else None
    if definition is None or len(definition.args.args) != 1:
        return False
    body = [
        line
        for line in definition.body
        if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
    ]
    last = body[-1] if body else None
    return (
        len(body) == 1
        and isinstance(last, ast.Return)
        and isinstance(last.value, ast.Name)
        and last.value.id == definition.args.args[0].arg
    )


def registered_filter(name: str, sources: Iterable[Path]) -> FunctionName | None:
    """The class that one of the files enters into the harness's registry under ``name``:
    ``@register_filter("name")``."""
    for path in sources:
        for node in _tree(path).body:
            if isinstance(node, ast.ClassDef) and name in _registered_as(node):
                return FunctionName(f"{path}:{node.name}")
    return None


def _registered_as(node: ast.ClassDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else None
        named = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
        if isinstance(decorator, ast.Call) and named == "register_filter":
            yield from (str(arg.value) for arg in decorator.args if isinstance(arg, ast.Constant))


@lru_cache(maxsize=2048)
def _tree(path: Path) -> ast.Module:
    try:
        return syntax_tree(path.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"{path} can't be read as Python: {error}") from error


@lru_cache(maxsize=2048)
def _functions(path: Path) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in _tree(path).body if isinstance(node, ast.FunctionDef)}


@lru_cache(maxsize=2048)
def _names(path: Path) -> frozenset[str] | None:
    """Every name the module may hold; None where that shows only when it runs (names made in a loop, star
    imports)."""
    found: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Name) and node.id in MAKES_NAMES:
            return None
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            return None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return frozenset(found)


Kinds = tuple[type, ...]
NOTHING: Final = type(None)
TEXT: Final[Kinds] = (str, NOTHING)
TEMPLATE: Final[Kinds] = (str, FunctionName, int, NOTHING)
TARGET: Final[Kinds] = (str, FunctionName, int, float, list, NOTHING)
CHOICES: Final[Kinds] = (str, FunctionName, list, dict, NOTHING)
MAPPING: Final[Kinds] = (dict, NOTHING)
LIST: Final[Kinds] = (list, NOTHING)
IMAGES: Final[Kinds] = (str, FunctionName, list, NOTHING)
FUNCTION: Final[Kinds] = (FunctionName, NOTHING)

TASK_KEYS: Final[dict[str, Kinds]] = {
    "task": (str,),
    "task_alias": TEXT,
    "tag": (str, list, NOTHING),
    "group": (str, list, NOTHING),
    "group_alias": (str, list, NOTHING),
    "custom_dataset": FUNCTION,
    "dataset_path": TEXT,
    "dataset_name": (str, int, float, NOTHING),
    "dataset_kwargs": MAPPING,
    "training_split": TEXT,
    "validation_split": TEXT,
    "test_split": TEXT,
    "fewshot_split": TEXT,
    "process_docs": FUNCTION,
    "doc_to_text": TEMPLATE,
    "doc_to_target": TARGET,
    "doc_to_choice": CHOICES,
    "doc_to_image": IMAGES,
    "process_results": FUNCTION,
    "description": TEXT,
    "target_delimiter": (str,),
    "fewshot_delimiter": (str,),
    "fewshot_config": MAPPING,
    "num_fewshot": (int, NOTHING),
    "metric_list": LIST,
    "output_type": (str,),
    "generation_kwargs": MAPPING,
    "repeats": (int,),
    "filter_list": LIST,
    "should_decontaminate": (bool, NOTHING),
    "doc_to_decontamination_query": TEMPLATE,
    "gen_prefix": TEXT,
    "unsafe_code": (bool, NOTHING),
    "metadata": MAPPING,
}
GROUP_KEYS: Final[dict[str, Kinds]] = {
    "group": (str,),
    "group_alias": TEXT,
    "task": (str, list, NOTHING),
    "aggregate_metric_list": (list, dict, NOTHING),
    "metadata": MAPPING,
    "tag": (str, list, NOTHING),
}
AGGREGATE_KEYS: Final = ("metric", "filter_list", "aggregation", "weight_by_size")
FEWSHOT_KEYS: Final[dict[str, Kinds]] = {
    "sampler": (str, NOTHING),
    "split": TEXT,
    "process_docs": FUNCTION,
    "fewshot_indices": LIST,
    "samples": (list, FunctionName, NOTHING),
    "doc_to_text": TEMPLATE,
    "doc_to_target": TARGET,
    "doc_to_choice": CHOICES,
    "gen_prefix": TEXT,
    "fewshot_delimiter": TEXT,
    "target_delimiter": TEXT,
}
SAMPLERS: Final = ("default", "first_n", "per_item")

# A score made without them would be another benchmark's.
UNSUPPORTED: Final = {
    "doc_to_audio": "plays the model audio, which the harness's chat messages have no place for; a native "
    "config has one: messages with a part {audio: …}",
    "use_prompt": "takes its prompts from the library promptsource, which is no longer maintained",
    "class": "is a Python class of the harness; only benchmarks defined by their YAML can run here",
    "formats": "chooses prompt and score by a name, as the harness does from version 0.5 on; write what it "
    "stands for: output_type, doc_to_text, doc_to_target, doc_to_choice, filter_list and metric_list",
    "scorer": "chooses filters and metrics by a name, as the harness does from version 0.5 on; write "
    "filter_list and metric_list",
}


def line_of(key: str, where: str) -> str:
    """``file:line`` of a key of the file at ``where``, or of one that it includes; else ``where``."""
    waiting, seen = [Path(where)], set()
    while waiting:
        path = waiting.pop(0)
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            if re.match(rf"""[\s-]*["']?{re.escape(key)}["']?\s*:""", line):
                return f"{path}:{number}"
        included = _parsed(path, path.stat().st_mtime_ns, path.stat().st_size).get(INCLUDE)
        waiting += [named_path(path.parent, name).resolve() for name in _include_names(included, path)]
    return where


def check_task(config: Mapping[str, Any], where: str) -> Iterator[str]:
    """Raises ConfigError for a key or value that can't be honoured; yields a warning for each unknown key."""
    for key, reason in UNSUPPORTED.items():
        if config.get(key) is not None:
            raise ConfigError(f"{line_of(key, where)}: '{key}' {reason}")
    yield from _check_keys(config, TASK_KEYS, where)
    output_type = config.get("output_type", "generate_until")
    if output_type not in OUTPUT_TYPES:
        raise ConfigError(f"{where}: output_type '{output_type}' is not one of {', '.join(OUTPUT_TYPES)}")
    if config.get("dataset_path") is None and config.get("custom_dataset") is None:
        raise ConfigError(
            f"{where}: names no dataset; expected dataset_path (or custom_dataset: !function …)"
        )
    _check_fields(config, output_type, where)
    if config.get("doc_to_image") is not None and output_type != "generate_until":
        raise ConfigError(
            f"{where}: 'doc_to_image' shows images, which chat endpoints take; output_type {output_type} "
            "asks for log-likelihoods, which they don't give"
        )
    repeats = config.get("repeats", 1)
    if repeats < 1 or isinstance(repeats, bool):
        raise ConfigError(f"{where}: repeats is how often an item is asked, at least 1; got {repeats}")
    yield from check_fewshot(config.get("fewshot_config"), where)


def check_fewshot(config: Mapping[str, Any] | None, where: str) -> Iterator[str]:
    """The same for the mapping under ``fewshot_config``, where every key changes prompts: an unknown one is
    refused."""
    if config is None:
        return
    unknown = sorted(set(config) - set(FEWSHOT_KEYS))
    if unknown:
        raise ConfigError(
            f"{where}: fewshot_config has no key '{unknown[0]}'{nearest(unknown[0], FEWSHOT_KEYS)}"
        )
    yield from _check_keys(config, FEWSHOT_KEYS, f"{where}: fewshot_config")
    sampler = config.get("sampler") or "default"
    if sampler not in SAMPLERS:
        raise ConfigError(f"{where}: fewshot_config.sampler '{sampler}' is not one of {', '.join(SAMPLERS)}")
    if config.get("split") is not None and config.get("samples") is not None:
        yield f"{where}: fewshot_config has both split and samples; the split is taken, as the harness does"
    if config.get("fewshot_indices") is not None:
        yield f"{where}: fewshot_config.fewshot_indices has no effect, as in the harness; use samples instead"


def _check_fields(config: Mapping[str, Any], output_type: str, where: str) -> None:
    if config.get("doc_to_target") is None:
        raise ConfigError(
            f"{where}: 'doc_to_target' is missing: the right answer, as a column, template or function"
        )
    if output_type == "multiple_choice" and config.get("doc_to_choice") is None:
        raise ConfigError(f"{where}: output_type multiple_choice needs 'doc_to_choice'")
    if output_type != "loglikelihood_rolling" and config.get("doc_to_text") is None:
        raise ConfigError(f"{where}: 'doc_to_text' is missing: the prompt, as a column, template or function")
    if not any(config.get(f"{split}_split") for split in ("test", "validation")):
        raise ConfigError(f"{where}: names no split to evaluate; expected test_split or validation_split")


def _check_keys(config: Mapping[str, Any], known: Mapping[str, Kinds], where: str) -> Iterator[str]:
    for key, value in config.items():
        if key not in known:
            if key not in UNSUPPORTED:
                yield f"{where}: unknown key '{key}' has no effect{nearest(key, known)}"
        elif type(value) not in known[key]:
            expected = " or ".join(_NAMES[kind] for kind in known[key])
            raise ConfigError(f"{where}: '{key}' takes {expected}, got {type(value).__name__} {value!r:.60}")


_NAMES: Final = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a mapping",
    FunctionName: "!function module.name",
    NOTHING: "null",
}
