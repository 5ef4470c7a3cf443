"""The documents of a definition: those to evaluate and those that examples are drawn from.

``Splits`` reads both after ``process_docs``; ``DefinitionDataset`` gets the splits from local files, a
function of the definition's own, or a hub. ``HarnessBenchmark`` enters by ``Splits``.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from metrics.errors import ConfigError, named, users_code
from tasks.benchmarks.lm_eval.documents import Document, json_document, json_value, with_pictures
from tasks.benchmarks.lm_eval.files import (
    REMOTE,
    dataset_of,
    folder_at,
    is_local,
    load_local,
    paths_of,
    split_files,
)
from tasks.benchmarks.lm_eval.yaml import FunctionName, decoded
from tasks.datasets.config import DatasetError
from tasks.datasets.items import data_digest
from tasks.store.home import named_path
from tasks.store.keys import digest
from tasks.usercode.load import UserModules
from tasks.usercode.surroundings import Documents, Generators, library_installed, regular_rows, stand_ins

INHERITED: Final = (
    "process_docs", "fewshot_delimiter", "target_delimiter", "gen_prefix", "doc_to_text", "doc_to_choice",
    "doc_to_target",
)  # fmt: skip
REMEDY: Final = "; it is given that of the models: set tokenizer in their entries"
DEFAULTS: Final = {"fewshot_delimiter": "\n\n", "target_delimiter": " "}


def fewshot_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """``fewshot_config`` over what few-shot examples inherit from the benchmark."""
    inherited = {key: config.get(key, DEFAULTS.get(key)) for key in INHERITED}
    return {"split": config.get("fewshot_split"), **inherited, **(config.get("fewshot_config") or {})}


class Splits:
    """Documents by role, read once, by functions of ``modules``: a set of the benchmark's own."""

    def __init__(
        self,
        config: Mapping[str, Any],
        base_dir: Path,
        where: str,
        modules: UserModules | None = None,
        tokenizer: str | None = None,
        seeds: Sequence[int] | None = None,
    ) -> None:
        self._config = config
        self._base_dir = base_dir
        self._where = where
        self.modules = modules or UserModules(own=True)
        self.generators = Generators() if seeds is None else Generators(seeds)
        self.source = DefinitionDataset(config, base_dir, where, self.modules, tokenizer)
        self._processing: dict[tuple[str, FunctionName], Any] = {}
        self._evaluated: list[dict[str, Any]] | None = None
        self._fewshot: list[Document] | None = None
        self._columns: tuple[str, ...] = ()
        self._held: Any = ()

    def evaluated(self) -> list[dict[str, Any]]:
        """The documents to evaluate: of the test split, else of the validation split."""
        if self._evaluated is None:
            self._read()
        assert self._evaluated is not None
        return self._evaluated

    def pictured(self, doc_id: int) -> dict[str, Any]:
        """A document to evaluate as the dataset holds it, its images among its fields."""
        self.evaluated()
        return with_pictures(self._held[doc_id])

    def columns(self) -> tuple[str, ...]:
        """The evaluated documents' columns: a text that is one of them stands for the column."""
        self.evaluated()
        return self._columns

    def fewshot(self) -> list[Document]:
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
        with self.generators.drawn_from():
            drawn = self._config.get("num_fewshot") or self._config.get("process_docs") is not None
            self._fewshot = [json_document(row, self._where) for row in self._fewshot_rows()] if drawn else []
            docs = self._processed(split, self._config.get("process_docs"))
            rows = [json_document(row, self._where) for row in docs]
            if self._config.get("doc_to_image") is not None:
                self._held = docs if hasattr(docs, "features") else list(docs)
        if not rows:
            raise DatasetError(f"{self._where}: split '{split}' holds no documents to evaluate")
        self._evaluated, self._columns = rows, _columns(docs, rows)

    def _fewshot_rows(self) -> Any:
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
            self._processing[split, function] = self._call(function, _library_dataset(rows))
        return self._processing[split, function]

    def _call(self, name: FunctionName, *arguments: Any) -> Any:
        function = self.modules.function(name, self._base_dir)
        try:
            with stand_ins(), users_code():  # functions import the library in their bodies, too
                with _quietly():
                    docs = function(*arguments)
                return docs if hasattr(docs, "features") else list(docs)
        except Exception as error:
            if isinstance(error, ConfigError):
                raise
            raise DatasetError(f"{self._where}: {name} failed: {named(error)}") from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the library's progress bars, which it shows for tables in memory too."""
    library = sys.modules.get("datasets") if library_installed() else None
    if library is None or library.are_progress_bars_disabled():
        yield
        return
    library.disable_progress_bars()
    try:
        yield
    finally:
        library.enable_progress_bars()


def _library_dataset(rows: Any) -> Any:
    """The library's own dataset where it is installed: functions may rely on any of its methods."""
    if isinstance(rows, Documents) and library_installed():
        import datasets

        return datasets.Dataset.from_list(rows.to_list())
    return rows


def _columns(docs: Any, rows: list[dict[str, Any]]) -> tuple[str, ...]:
    features = getattr(docs, "features", None)
    return tuple(features) if features else tuple(dict.fromkeys(name for row in rows for name in row))


def files_of_benchmark(harness: Mapping[str, Any], base_dir: Path) -> Iterator[tuple[tuple[str, ...], Path]]:
    """The local files that a benchmark's documents are read from, each with the key below ``harness`` that
    names it; none of those that a function or a hub reads. Raises DataError for files that are not there.
    """
    if "samples" in harness:
        yield ("samples",), base_dir / harness["samples"]
        return
    config = decoded(harness["config"])
    path, options = config.get("dataset_path"), dict(config.get("dataset_kwargs") or {})
    named, folder = split_files(options.get("data_files")), folder_at(path, base_dir)
    if config.get("custom_dataset") is None and not is_local(path, options) and folder is not None:
        for names in dataset_of(folder, options)[1]["data_files"].values():
            yield from ((("config", "dataset_path"), file) for file in paths_of(names, base_dir, {}))
        return
    for names in named.values():
        here = [name for name in names if not name.startswith(REMOTE)]
        for file in paths_of(here, base_dir, options):
            yield ("config", "dataset_kwargs", "data_files"), file
    if not named and (place := folder_at(_text(options.get("data_dir")), base_dir)) is not None:
        yield ("config", "dataset_kwargs", "data_dir"), place  # a hub's reader takes all that it finds there


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


class DefinitionDataset:
    """The dataset of a definition, read once and when first asked for."""

    def __init__(
        self,
        config: Mapping[str, Any],
        base_dir: Path,
        where: str,
        modules: UserModules,
        tokenizer: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._base_dir = base_dir
        self._where = where
        self._modules = modules
        self._splits: Mapping[str, Any] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """``dataset_kwargs``."""
        return dict(self._config.get("dataset_kwargs") or {})

    def split(self, name: str) -> Any:
        """The rows of a split: ``Documents``, or a dataset of the library; raises DataError for one that is
        not there."""
        splits = self._loaded()
        try:
            return splits[name]
        except KeyError:
            known = ", ".join(map(str, splits)) or "none"
            raise DatasetError(f"{self._where}: the dataset has no split '{name}'; it has {known}") from None

    def digest(self) -> str:
        """Digest of what decides the rows: the files' bytes, or the rows that a hub or a function gave."""
        path = self._config.get("dataset_path")
        parts: dict[str, Any] = {
            "path": path,
            "name": self._config.get("dataset_name"),
            "options": self.options,
        }
        if self._config.get("custom_dataset") is None and is_local(path, self.options):
            files = split_files(self.options.get("data_files"))
            parts["files"] = {
                split: [data_digest(file) for file in paths_of(names, self._base_dir, self.options)]
                for split, names in files.items()
            }
        else:
            parts["splits"] = {
                name: _rows_digest(rows) for name, rows in self._loaded().items() if self._used(name)
            }
        return digest(parts)

    def _used(self, split: str) -> bool:
        fewshot = self._config.get("fewshot_config") or {}
        named = [self._config.get(f"{kind}_split") for kind in ("training", "validation", "test", "fewshot")]
        return split in (*named, fewshot.get("split"))

    def _loaded(self) -> Mapping[str, Any]:
        if self._splits is None:
            self._splits = self._load()
        return self._splits

    def _load(self) -> Mapping[str, Any]:
        custom, path = self._config.get("custom_dataset"), self._config.get("dataset_path")
        try:
            if isinstance(custom, FunctionName):
                return self._from_function(custom)
            if is_local(path, self.options):
                return load_local(str(path), self.options, self._base_dir)
            if (folder := folder_at(path, self._base_dir)) is not None:
                return load_local(*dataset_of(folder, self.options), self._base_dir)
        except DatasetError as error:
            raise DatasetError(f"{self._where}: {error}") from error
        return self._from_hub(str(path))

    def _from_function(self, name: FunctionName) -> Mapping[str, Any]:
        own = {**(self._config.get("metadata") or {}), **self.options}
        tokenizer = self._tokenizer
        if tokenizer is not None and (place := named_path(self._base_dir, tokenizer)).exists():
            tokenizer = str(place)
        arguments = {**({} if tokenizer is None else {"tokenizer": tokenizer}), **own}
        try:
            with stand_ins(), users_code():
                splits = self._modules.function(name, self._base_dir)(**arguments)
                if isinstance(splits, Mapping):
                    splits = {
                        split: rows if hasattr(rows, "features") else list(rows)
                        for split, rows in splits.items()
                    }
        except ConfigError:
            raise
        except Exception as error:
            remedy = "" if "tokenizer" not in str(error) or self._tokenizer else REMEDY
            raise DatasetError(
                f"{self._where}: custom_dataset {name} failed: {named(error)}{remedy}"
            ) from error
        if not isinstance(splits, Mapping):
            raise DatasetError(
                f"{self._where}: custom_dataset {name} must return splits by name, "
                f"got {type(splits).__name__}"
            )
        return {
            split: rows if hasattr(rows, "features") else Documents(regular_rows(rows))
            for split, rows in splits.items()
        }

    def _from_hub(self, path: str) -> Mapping[str, Any]:
        if not library_installed():
            raise ConfigError(
                f"{self._where}: dataset '{path}' comes from a hub, which needs the extra 'hub': "
                "pip install -e '.[hub]'"
            )
        import datasets

        options = {key: value for key, value in self.options.items() if key != "trust_remote_code"}
        try:
            loaded: Mapping[str, Any] = datasets.load_dataset(
                path, name=self._config.get("dataset_name"), **options
            )
        except Exception as error:
            raise DatasetError(
                f"{self._where}: dataset '{path}' can't be loaded: {type(error).__name__}: {error}"
            ) from error
        return loaded


def _rows_digest(rows: Any) -> str:
    fingerprint = getattr(
        rows, "_fingerprint", None
    )  # of the library: a hash of the files and what was done to them
    if isinstance(fingerprint, str):
        return fingerprint
    return digest([json_value(row) for row in rows])
