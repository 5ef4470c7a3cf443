"""The global random generators of Python and numpy, as benchmarks' functions draw from them.

The harness seeds both when it starts. Here each step of each benchmark starts from that state, whatever drew
before it in the process, and goes on from where it was; for everyone else nothing has changed.
"""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

# What the harness seeds the global generators with; a process_docs that shuffles draws from them.
PYTHON_SEED: Final = 0
NUMPY_SEED: Final = 1234
_drawing = threading.RLock()


class Generators:
    """The global generators of one step of one benchmark."""

    def __init__(self) -> None:
        self._own: tuple[Any, Any] | None = None

    @contextmanager
    def drawn_from(self) -> Iterator[None]:
        """Inside the block they are in this step's state, afterwards in the one that they were in. One step
        at a time draws from them."""
        with _drawing:
            others = _state()
            if self._own is None:
                random.seed(PYTHON_SEED)
                np.random.seed(NUMPY_SEED)
            else:
                _set(self._own)
            try:
                yield
            finally:
                self._own = _state()
                _set(others)


def _state() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _set(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
