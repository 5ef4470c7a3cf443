"""What a destination of results is, and what it is given: a run's folder, as ``publish`` left it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from tasks.store.outputs import MANIFEST, RESULTS_TABLE


@dataclass(frozen=True)
class FinishedRun:
    """A run that was published: its manifest and its rows of results are read when they are asked for."""

    folder: Path

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """``manifest.json``."""
        found: Mapping[str, Any] = orjson.loads((self.folder / MANIFEST).read_bytes())
        return found

    @cached_property
    def results(self) -> Sequence[Mapping[str, Any]]:
        """The rows of ``results.parquet``, failed ones too."""
        rows: list[Mapping[str, Any]] = pq.read_table(self.folder / RESULTS_TABLE).to_pylist()
        return rows


class Publisher(BaseModel, ABC):
    """A destination, with what its entry of ``publish:`` says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @abstractmethod
    def send(self, run: FinishedRun) -> Sequence[str]:
        """Sends a run's numbers, and says where each part is found. A second time with the same run replaces
        what the first one left. It may raise anything: the step fails, and the run's numbers stand."""
