"""TER compiled by numba (extra ``fast``): Tercom's greedy shifts over sacrebleu's beam edit distance.

The order in which candidates are tried, the ties between operations, the beam and the limits decide the
number, so they are sacrebleu's; its cache of rows is here the rows before the first changed word. The
underscore keeps the module out of the registry's walk over the package: only numba can import it.
"""

from typing import Any

import numpy as np
from numba import njit

from metrics.types import Ints

_MAX_SHIFT_SIZE, _MAX_SHIFT_DISTANCE, _BEAM, _MAX_CANDIDATES = 10, 50, 25, 1000
_INFINITE = 10**16
_NOP, _SUBSTITUTE, _DELETE, _INSERT, _UNDEFINED = 0, 1, 2, 3, 4


@njit(cache=True)
def _fill(own: Ints, gold: Ints, first: int, cost: Any, operation: Any) -> int:
    """Rows ``first`` … of the edit distance table, within the beam; returns the distance."""
    n, m = len(own), len(gold)
    ratio = m / n if n else 1.0
    beam = int(np.ceil(ratio / 2 + _BEAM)) if ratio / 2 > _BEAM else _BEAM
    for i in range(first, n + 1):
        diagonal = int(np.floor(i * ratio))
        low, high = max(0, diagonal - beam), min(m + 1, diagonal + beam)
        if i == n:
            high = m + 1
        for j in range(m + 1):
            cost[i, j], operation[i, j] = _INFINITE, _UNDEFINED
        for j in range(low, high):
            if j == 0:
                cost[i, 0], operation[i, 0] = cost[i - 1, 0] + 1, _DELETE
                continue
            same = own[i - 1] == gold[j - 1]
            best, kind = cost[i, j], operation[i, j]
            step = cost[i - 1, j - 1] + (0 if same else 1)
            if best > step:
                best, kind = step, (_NOP if same else _SUBSTITUTE)
            if best > cost[i - 1, j] + 1:
                best, kind = cost[i - 1, j] + 1, _DELETE
            if best > cost[i, j - 1] + 1:
                best, kind = cost[i, j - 1] + 1, _INSERT
            cost[i, j], operation[i, j] = best, kind
    return int(cost[n, m])


@njit(cache=True)
def _align(n: int, m: int, operation: Any, aligned: Ints, gold_wrong: Ints, own_wrong: Ints) -> bool:
    """Where each reference word is in the hypothesis and which words are wrong; False if the beam has no
    path."""
    trace = np.empty(n + m, dtype=np.int64)
    i, j, length = n, m, 0
    while i > 0 or j > 0:
        kind = operation[i, j]
        if kind == _UNDEFINED:
            return False
        trace[length] = kind
        length += 1
        if kind != _INSERT:
            i -= 1
        if kind != _DELETE:
            j -= 1
    at_own, at_gold = -1, -1
    for place in range(length - 1, -1, -1):
        kind = trace[place]
        if kind == _DELETE:
            at_own += 1
            own_wrong[at_own] = 1
            continue
        at_gold += 1
        gold_wrong[at_gold] = 0 if kind == _NOP else 1
        if kind != _INSERT:
            at_own += 1
            own_wrong[at_own] = gold_wrong[at_gold]
        aligned[at_gold] = at_own
    return True


@njit(cache=True)
def _shifted(own: Ints, start: int, length: int, target: int, out: Ints) -> None:
    """``own`` with the words ``start`` … moved before ``target``."""
    if target < start:
        low, high = target, start + length
        moved = start
    elif target > start + length:
        low, high = start, target
        moved = start
    else:
        low, high = start, min(length + target, len(own))
        moved = start
    place = 0
    for i in range(low):
        out[place] = own[i]
        place += 1
    if target < start:
        for i in range(moved, moved + length):
            out[place] = own[i]
            place += 1
        for i in range(target, start):
            out[place] = own[i]
            place += 1
    else:
        for i in range(moved + length, high):
            out[place] = own[i]
            place += 1
        for i in range(moved, moved + length):
            out[place] = own[i]
            place += 1
    for i in range(high, len(own)):
        out[place] = own[i]
        place += 1


@njit(cache=True)
def _best_shift(
    own: Ints, gold: Ints, cost: Any, operation: Any, checked: int, best_words: Ints
) -> tuple[int, int]:
    """The gain of the best shift, left in ``best_words``, and the candidates tried so far; gain -infinite: no
    path."""
    n, m = len(own), len(gold)
    before = _fill(own, gold, 1, cost, operation)
    aligned, gold_wrong, own_wrong = np.zeros(m, np.int64), np.zeros(m, np.int64), np.zeros(n, np.int64)
    if not _align(n, m, operation, aligned, gold_wrong, own_wrong):
        return -_INFINITE, checked
    candidate = np.empty(n, np.int64)
    other_cost, other_operation = cost.copy(), operation.copy()
    found, gain, size, from_, to = False, 0, 0, 0, 0
    for start in range(n):
        for gold_start in range(max(0, start - _MAX_SHIFT_DISTANCE), min(m, start + _MAX_SHIFT_DISTANCE + 1)):
            length = 0
            while (
                length < _MAX_SHIFT_SIZE
                and start + length < n
                and gold_start + length < m
                and own[start + length] == gold[gold_start + length]
            ):
                length += 1
                if own_wrong[start : start + length].sum() == 0:
                    continue
                if gold_wrong[gold_start : gold_start + length].sum() == 0:
                    continue
                if start <= aligned[gold_start] < start + length:
                    continue
                previous = -1
                for offset in range(-1, length):
                    if gold_start + offset == -1:
                        target = 0
                    elif gold_start + offset < m:
                        target = aligned[gold_start + offset] + 1
                    else:
                        break
                    if target == previous:
                        continue
                    previous = target
                    _shifted(own, start, length, target, candidate)
                    same = 0
                    while same < n and candidate[same] == own[same]:
                        same += 1
                    for row in range(1, same + 1):
                        other_cost[row] = cost[row]
                    after = (
                        _fill(candidate, gold, same + 1, other_cost, other_operation) if same < n else before
                    )
                    checked += 1
                    if not found or (before - after, length, -start, -target) > (gain, size, -from_, -to):
                        found, gain, size, from_, to = True, before - after, length, start, target
                        best_words[:] = candidate
                if checked >= _MAX_CANDIDATES:
                    return gain, checked
    return gain, checked


@njit(cache=True)
def edits(own: Ints, gold: Ints) -> int:
    """Shifts and edits that turn the words ``own`` into ``gold`` (not empty); -1 where the beam has no
    path."""
    n, m = len(own), len(gold)
    cost = np.full((n + 1, m + 1), _INFINITE, dtype=np.int64)
    operation = np.full((n + 1, m + 1), _UNDEFINED, dtype=np.int64)
    for j in range(m + 1):
        cost[0, j], operation[0, j] = j, _INSERT
    words, better = own.copy(), own.copy()
    shifts, checked = 0, 0
    while True:
        gain, checked = _best_shift(words, gold, cost, operation, checked, better)
        if gain == -_INFINITE:
            return -1
        if checked >= _MAX_CANDIDATES or gain <= 0:
            break
        shifts += 1
        words[:] = better
    distance = _fill(words, gold, 1, cost, operation)
    return shifts + distance if distance < _INFINITE else -1
