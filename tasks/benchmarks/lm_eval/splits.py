"""The documents of a definition: evaluated ones and few-shot ones, after ``process_docs``."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval.documents import Documents
from tasks.benchmarks.lm_eval.plain import plain_row
from tasks.benchmarks.lm_eval.reading import FunctionName
from tasks.benchmarks.lm_eval.sources import Source
from tasks.benchmarks.lm_eval.standin import datasets_stand_in, library_installed, load_user_function
from tasks.datasets.errors import DataError

# What the harness seeds the global generators with; a process_docs that shuffles draws from them.
PYTHON_SEED: Final = 0
NUMPY_SEED: Final = 1234
INHERITED: Final = (
    "process_docs", "fewshot_delimiter", "target_delimiter", "gen_prefix", "doc_to_text", "doc_to_choice",
    "doc_to_target",
)  # fmt: skip
DEFAULTS: Final = {"fewshot_delimiter": "\n\n", "target_delimiter": " "}

Doc = Mapping[str, Any]


def fewshot_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """``fewshot_config`` over what few-shot examples inherit from the benchmark."""
    inherited = {key: config.get(key, DEFAULTS.get(key)) for key in INHERITED}
    return {"split": config.get("fewshot_split"), **inherited, **(config.get("fewshot_config") or {})}


class Splits:
    """Documents by role, read once."""

    def __init__(self, config: Mapping[str, Any], base_dir: Path, where: str) -> None:
        self._config = config
        self._base_dir = base_dir
        self._where = where
        self.source = Source(config, base_dir, where)
        self._processing: dict[tuple[str, FunctionName], Any] = {}
        self._evaluated: list[dict[str, Any]] | None = None
        self._fewshot: list[Doc] | None = None
        self._columns: tuple[str, ...] = ()

    def evaluated(self) -> list[dict[str, Any]]:
        """The documents to evaluate: of the test split, else of the validation split."""
        if self._evaluated is None:
            self._read()
        assert self._evaluated is not None
        return self._evaluated

    def columns(self) -> tuple[str, ...]:
        """The evaluated documents' columns: a text that is one of them stands for the column."""
        self.evaluated()
        return self._columns

    def fewshot(self) -> list[Doc]:
        """The documents that examples are drawn from: the few-shot split, listed samples, else training or
        validation."""
        if self._fewshot is None:
            self._read()
        assert self._fewshot is not None
        return self._fewshot

    def _read(self) -> None:
        """Both, few-shot documents first: a ``process_docs`` that shuffles draws for them first in the
        harness too."""
        split = self._config.get("test_split") or self._config["validation_split"]
        with seeded():
            drawn = self._config.get("num_fewshot") or self._config.get("process_docs") is not None
            self._fewshot = [plain_row(row, self._where) for row in self._examples()] if drawn else []
            docs = self._processed(split, self._config.get("process_docs"))
            rows = [plain_row(row, self._where) for row in docs]
        if not rows:
            raise DataError(f"{self._where}: split '{split}' holds no documents to evaluate")
        self._evaluated, self._columns = rows, _columns(docs, rows)

    def _examples(self) -> Any:
        settings = fewshot_settings(self._config)
        if settings["split"] is not None:
            return self._processed(settings["split"], settings["process_docs"])
        samples = settings.get("samples")
        if samples is not None:
            return self._call(samples) if isinstance(samples, FunctionName) else samples
        keys = ("training_split", "validation_split", "test_split")
        split = next(self._config[key] for key in keys if self._config.get(key) is not None)
        return self._processed(split, self._config.get("process_docs"))

    def _processed(self, split: str, function: Any) -> Any:
        rows = self.source.split(split)
        if function is None:
            return rows
        if (split, function) not in self._processing:
            self._processing[split, function] = self._call(function, _dataset(rows))
        return self._processing[split, function]

    def _call(self, name: FunctionName, *arguments: Any) -> Any:
        function: Callable[..., Any] = load_user_function(name, self._base_dir)
        try:
            with datasets_stand_in():  # functions import the library in their bodies, too
                docs = function(*arguments)
            return docs if hasattr(docs, "features") else list(docs)
        except Exception as error:
            if isinstance(error, ConfigError):
                raise
            raise DataError(f"{self._where}: {name} failed: {type(error).__name__}: {error}") from error


@contextmanager
def seeded() -> Iterator[None]:
    """The global generators in the state that the harness starts with; afterwards in the state they were
    in."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(PYTHON_SEED)
    np.random.seed(NUMPY_SEED)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _dataset(rows: Any) -> Any:
    """The library's own dataset where it is installed: functions may rely on any of its methods."""
    if isinstance(rows, Documents) and library_installed():
        import datasets

        return datasets.Dataset.from_list(rows.to_list())
    return rows


def _columns(docs: Any, rows: list[dict[str, Any]]) -> tuple[str, ...]:
    features = getattr(docs, "features", None)
    return tuple(features) if features else tuple(dict.fromkeys(name for row in rows for name in row))
