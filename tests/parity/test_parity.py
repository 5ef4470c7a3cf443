"""Made files of the two-phase framework give the numbers of its documented rules."""

from pathlib import Path

import pytest

from tests.parity.here import computed, differences
from tests.parity.made import KINDS, made
from tests.parity.rules import expected

FEW, MANY, AT_ONCE = 240, 5_000, 40


def differing(seeds: range, folder: Path) -> list[str]:
    """What differs in the files of some seeds; there have to be numbers to compare."""
    found, values = [], 0
    for seed in seeds:
        file = made(seed)
        wanted = expected(file)
        values += sum(len(numbers or ()) for numbers in wanted.values())
        found += [
            f"seed {seed} ({file.kind}): {said}" for said in differences(wanted, computed(file, folder))
        ]
    assert values > 10 * len(seeds)
    return found


@pytest.mark.parametrize("start", range(0, FEW, AT_ONCE))
def test_made_files_give_the_numbers_of_the_documented_rules(tmp_path: Path, start: int) -> None:
    assert differing(range(start, start + AT_ONCE), tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("start", range(FEW, MANY, 10 * AT_ONCE))
def test_five_thousand_made_files_do(tmp_path: Path, start: int) -> None:
    assert differing(range(start, min(start + 10 * AT_ONCE, MANY)), tmp_path) == []


def test_made_files_are_of_all_kinds_and_hold_what_real_ones_hold() -> None:
    files = [made(seed) for seed in range(200)]
    assert {file.kind for file in files} == set(KINDS)
    assert {len(file.models) for file in files} == {len(file.prompts) for file in files} == {1, 2, 3}
    assert any(file.apart for file in files)
    assert any("sample_index" not in row for file in files for row in file.rows)
    assert any(numbers is None for file in files[:40] for numbers in expected(file).values())
    asked = {metric["type"] for file in files for metric in file.metrics}
    assert {"pass_at_k", "classification", "percentile", "own"} < asked
