"""The three sources of rows: files, functions of the user's, a model hub."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from metrics.errors import ConfigError
from tasks.datasets.config import DatasetConfig
from tasks.datasets.errors import DataError
from tasks.datasets.files import Row, read_rows, type_name
from tasks.usercode import load_function


def source_rows(config: DatasetConfig, base_dir: str | Path) -> Iterator[Row]:
    """The rows of the configured source, in order; raises DataError or ConfigError naming the source."""
    if config.path is not None:
        return read_rows(Path(base_dir) / Path(config.path).expanduser())
    if config.function is not None:
        return _numbered(_loaded(config, load_function(config.function, base_dir)), config.describe())
    return _numbered(_from_hub(config), config.describe())


def check_source(config: DatasetConfig, base_dir: str | Path) -> None:
    """Raises ConfigError if a loader function is not there or does not take its ``params``. Opens no
    dataset.
    """
    if config.function is not None:
        _check_keywords(config, load_function(config.function, base_dir))


def _loaded(config: DatasetConfig, function: Callable[..., Any]) -> Iterable[Any]:
    _check_keywords(config, function)
    try:
        rows = function(**config.params)
    except Exception as error:
        raise DataError(f"dataset {config.function} failed: {type(error).__name__}: {error}") from error
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | dict):
        raise DataError(f"dataset {config.function} must return an iterable of items, got {type_name(rows)}")
    return rows


def _check_keywords(config: DatasetConfig, function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind(**config.params)
    except TypeError as error:
        given = ", ".join(config.params) or "no params"
        raise ConfigError(f"dataset {config.function} can't be called with {given}: {error}") from error


def _numbered(rows: Iterable[Any], source: str) -> Iterator[Row]:
    iterator = iter(rows)
    number = 0
    while True:
        number += 1
        try:
            value = next(iterator)
        except StopIteration:
            return
        except Exception as error:
            raise DataError(
                f"dataset {source} failed at item {number}: {type(error).__name__}: {error}"
            ) from error
        yield Row(f", item {number}", value)


def _from_hub(config: DatasetConfig) -> Iterable[Any]:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            f"dataset '{config.hub}' comes from a hub, which needs the extra 'hub': pip install -e '.[hub]'"
        ) from error
    try:
        loaded: Iterable[Any] = datasets.load_dataset(
            config.hub, name=config.name, split=config.split, revision=config.revision
        )
    except Exception as error:
        raise DataError(f"dataset {config.describe()} of the hub can't be loaded: {error}") from error
    return loaded
