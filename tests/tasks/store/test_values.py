"""Values of metrics as text: what JSON cannot say is kept, too."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.store.keys import text_value, value_text

LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@given(VALUES)
def test_every_value_comes_back(value: object) -> None:
    assert repr(text_value(value_text(value))) == repr(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((np.float64(0.5), np.int64(2)), [0.5, 2]),
        ({"a": np.array([1.0, math.inf]), 1: None}, {"a": [1.0, math.inf], "1": None}),
        ([2**70, "\ud800"], [2**70, "\ud800"]),
    ],
)
def test_arrays_and_wide_numbers_are_plain_ones_afterwards(value: object, expected: object) -> None:
    assert repr(text_value(value_text(value))) == repr(expected)
