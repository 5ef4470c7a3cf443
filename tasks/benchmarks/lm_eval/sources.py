"""Where a definition's splits come from: local files, a function of its own, a model hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval.documents import Documents
from tasks.benchmarks.lm_eval.local_files import is_local, load_local, paths_of, split_files
from tasks.benchmarks.lm_eval.local_folders import dataset_of, folder_at
from tasks.benchmarks.lm_eval.reading import FunctionName
from tasks.benchmarks.lm_eval.standin import datasets_stand_in, library_installed, load_user_function
from tasks.datasets.errors import DataError
from tasks.store.keys import digest, file_digest


class Source:
    """The dataset of a definition, read once and when first asked for."""

    def __init__(self, config: Mapping[str, Any], base_dir: Path, where: str) -> None:
        self._config = config
        self._base_dir = base_dir
        self._where = where
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
            raise DataError(f"{self._where}: the dataset has no split '{name}'; it has {known}") from None

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
                split: [file_digest(file) for file in paths_of(names, self._base_dir, self.options)]
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
        except DataError as error:
            raise DataError(f"{self._where}: {error}") from error
        return self._from_hub(str(path))

    def _from_function(self, name: FunctionName) -> Mapping[str, Any]:
        arguments = {**(self._config.get("metadata") or {}), **self.options}
        try:
            with datasets_stand_in():
                splits = load_user_function(name, self._base_dir)(**arguments)
        except ConfigError:
            raise
        except Exception as error:
            raise DataError(
                f"{self._where}: custom_dataset {name} failed: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(splits, Mapping):
            raise DataError(
                f"{self._where}: custom_dataset {name} must return splits by name, "
                f"got {type(splits).__name__}"
            )
        return {
            split: rows if hasattr(rows, "features") else Documents.from_list(list(rows))
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
            raise DataError(
                f"{self._where}: dataset '{path}' can't be loaded: {type(error).__name__}: {error}"
            ) from error
        return loaded


def _rows_digest(rows: Any) -> str:
    fingerprint = getattr(
        rows, "_fingerprint", None
    )  # of the library: a hash of the files and what was done to them
    if isinstance(fingerprint, str):
        return fingerprint
    from tasks.benchmarks.lm_eval.plain import plain

    return digest([plain(row) for row in rows])
