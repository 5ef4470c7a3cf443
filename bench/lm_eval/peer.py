"""Where the peer is: a Python that has lm-evaluation-harness (the extra ``bench``)."""

import os
import subprocess
import sys

VARIABLE = "NIGHTJAR_BENCH_PEER"
ABSENT = f"lm-eval is not installed; name a Python that has it with --peer or {VARIABLE}"


def peer_python(given: str | None, *modules: str) -> str | None:
    """The Python that is given, else the one that ``NIGHTJAR_BENCH_PEER`` names, else this one; None where
    lm-eval, or one of the other ``modules``, is not in it.
    """
    python = given or os.environ.get(VARIABLE) or sys.executable
    looked = f"from importlib.util import find_spec\nassert all(map(find_spec, {['lm_eval', *modules]!r}))"
    found = subprocess.run([python, "-c", looked], capture_output=True, check=False)
    return python if found.returncode == 0 else None
