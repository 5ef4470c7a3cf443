"""Amounts from which on a run takes another way to the same numbers: more processes, other files, smaller
pieces.

Every such constant of ``flows`` and ``tasks`` is a ``Threshold``. ``tests/flows/test_same_rows.py`` finds
them and runs both sides of each on every task runner, with small data. NIGHTJAR_THRESHOLDS ("name=amount,…")
sets them for a process and those that it starts. It is for tests alone: partitions are in the keys of steps.
"""

import os
from typing import Self


class Threshold(int):
    """An amount that tests can set by its name."""

    def __new__(cls, name: str, amount: int) -> Self:
        """The amount, unless a test has set another."""
        return super().__new__(cls, _set_by_tests().get(name, amount))

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """Goes to another process as the number that it is here."""
        return int, (int(self),)


def _set_by_tests() -> dict[str, int]:
    entries = (
        entry.partition("=") for entry in os.environ.get("NIGHTJAR_THRESHOLDS", "").split(",") if entry
    )
    return {name: int(amount) for name, _, amount in entries}
