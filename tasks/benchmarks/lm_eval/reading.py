"""lm-evaluation-harness YAML as plain mappings: ``include`` merged, ``!function`` kept as a name.

Nothing is imported and nothing interpreted here, so that a checkout of 13,000 files is read in seconds.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from metrics.errors import ConfigError

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
            included = self._merged((path.parent / Path(name).expanduser()).resolve(), including)
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
    return {str(key): entry for key, entry in value.items()}


def _include_names(value: Any, path: Path) -> list[str]:
    names = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{path}: include takes a file name or a list of them, got {value!r}")
    return names
