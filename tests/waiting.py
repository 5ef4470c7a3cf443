"""Waiting for what happens in another thread or process."""

import time
from collections.abc import Callable
from typing import Any


def until(found: Callable[[], Any], what: str, patience: float = 180) -> None:
    """Waits until ``found`` gives something true; fails, saying ``what``, after so many seconds."""
    deadline = time.monotonic() + patience
    while not found():
        assert time.monotonic() < deadline, f"{what}: did not happen within {patience:.0f} s"
        time.sleep(0.05)
