"""What a benchmark's own function asks about programs, and what it is told.

The function is called once for each row while its questions are collected, so that it is known which row
waits for which program. A row one of whose programs the sandbox could not run is unscored.
"""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from metrics.errors import NightjarError
from metrics.metric import Metric
from scorers.base import Batch, SampleScores, Scorer
from tasks.store.storage import ArtifactRef, Store
from tasks.usercode.code_eval import Asked, CodeVerdict, collecting
from tasks.usercode.surroundings import stand_ins

Sample = tuple[str, int]
READ: Final = ("item_id", "sample_index", "digest", "verdict", "stderr", "error")


def asked_by_row(scorer: Scorer, metric: Metric, batch: Batch) -> list[Asked]:
    """The programs that scoring each row asks about; none for a row that is not scored.

    What the function raises is not looked at: it is called again with the verdicts, and then it counts.
    """
    found: list[Asked] = []
    for row in range(len(batch)):
        with collecting() as asked, stand_ins(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if batch.scored[row]:
                with suppress(NightjarError):
                    scorer.score(batch.only(row), metric)
        found.append(asked)
    return found


@dataclass(frozen=True)
class AskedVerdicts:
    """What came of the programs: ``known`` by digest; ``lost`` says of samples why one of theirs could not
    be run."""

    known: dict[str, CodeVerdict]
    lost: dict[Sample, str]

    @classmethod
    def read(cls, store: Store, executed: ArtifactRef) -> "AskedVerdicts":
        """The verdicts of an artifact of ASKED rows."""
        known: dict[str, CodeVerdict] = {}
        lost: dict[Sample, str] = {}
        for batch in store.batches(executed, READ):
            for row in batch.to_pylist():
                error = row["error"] if row["verdict"] == "sandbox_error" else None
                known[row["digest"]] = CodeVerdict(
                    row["verdict"] == "passed", _in_words(row["verdict"], row["stderr"]), error
                )
                if error is not None and row["item_id"] is not None:
                    lost[row["item_id"], row["sample_index"]] = error
        return cls(known, lost)

    def without_lost(self, batch: Batch) -> tuple[Batch, list[str | None]]:
        """The batch, in which rows are not scored that wait for a program that could not be run; beside each
        row why."""
        samples = zip(batch.item_ids, batch.sample_index.tolist(), strict=True)
        errors = [
            self.lost.get(sample) if ok else None
            for sample, ok in zip(samples, batch.scored.tolist(), strict=True)
        ]
        if not any(errors):
            return batch, errors
        scored = batch.scored & np.array([error is None for error in errors], dtype=np.bool_)
        return replace(batch, scored=scored), errors

    @staticmethod
    def with_reasons(scored: SampleScores, errors: Sequence[str | None]) -> SampleScores:
        """The scores, with the reasons of rows that wait for a program that could not be run."""
        return replace(
            scored, errors=[error or own for error, own in zip(errors, scored.errors, strict=True)]
        )


def _in_words(verdict: str, stderr: str | None) -> str:
    """A verdict in the words of the library."""
    if verdict == "passed":
        return "passed"
    if verdict == "timeout":
        return "timed out"
    lines = (stderr or "").strip().splitlines()
    return f"failed: {lines[-1] if lines else verdict}"
