"""Several runs as one baseline: each item's mean over the last nights, less noisy than any one of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tasks.comparison.items import GroupKey, ItemGroup
from tasks.comparison.joining import row_keys


def pool(runs: Sequence[Mapping[GroupKey, ItemGroup]]) -> Mapping[GroupKey, ItemGroup]:
    """The runs' groups, each item with the mean of its values and statistics over the runs that scored it.

    Runs come oldest first; the newest says which groups and items there are. Rows of kind "values" that are
    not one number can't be averaged and stay those of the newest run.
    """
    if len(runs) < 2:
        return runs[-1] if runs else {}
    return {
        key: _pooled(group, [run[key] for run in runs[:-1] if key in run]) for key, group in runs[-1].items()
    }


def _pooled(newest: ItemGroup, earlier: Sequence[ItemGroup]) -> ItemGroup:
    if newest.objects is not None:
        return newest
    groups = [newest, *(group for group in earlier if _same_shape(group, newest))]
    rows = [_aligned(newest, group) for group in groups]
    scored = [
        np.where(row >= 0, group.scored[row] if len(group) else False, False)
        for row, group in zip(rows, groups, strict=True)
    ]
    times = np.sum(scored, axis=0)
    statistics = None
    if newest.statistics is not None:
        tables = [group.statistics for group in groups if group.statistics is not None]
        statistics = _mean([table[row] for table, row in zip(tables, rows, strict=True)], scored, times)
    value = _mean([group.value[row] for group, row in zip(groups, rows, strict=True)], scored, times)
    return replace(newest, value=value, statistics=statistics, scored=times > 0)


def _mean(
    columns: Sequence[NDArray[np.float64]], scored: Sequence[NDArray[np.bool_]], times: NDArray[np.int_]
) -> NDArray[np.float64]:
    """Mean over the runs that scored a row; NaN where none did."""
    shape = (-1,) + (1,) * (columns[0].ndim - 1)
    total = sum(
        (np.where(mask.reshape(shape), column, 0.0) for column, mask in zip(columns, scored, strict=True)),
        start=np.zeros_like(columns[0]),
    )
    divisor = np.where(times > 0, times, 1).reshape(shape)
    return np.where((times > 0).reshape(shape), total / divisor, np.nan)


def _aligned(newest: ItemGroup, group: ItemGroup) -> NDArray[np.intp]:
    """For each row of ``newest`` the row of the same item in ``group``; -1: not there."""
    rows = {key: row for row, key in enumerate(row_keys(group))}
    return np.array([rows.get(key, -1) for key in row_keys(newest)], dtype=np.intp)


def _same_shape(group: ItemGroup, newest: ItemGroup) -> bool:
    """Whether statistics can be averaged: a metric that changed its statistics between nights is another
    metric."""
    if len(group) == 0 or group.objects is not None:
        return False
    if group.statistics is None or newest.statistics is None:
        return group.statistics is newest.statistics
    return bool(group.statistics.shape[1] == newest.statistics.shape[1])
