"""Looking a metric up needs nothing beyond the base installation, and takes no time."""

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
HEAVY = ("numba", "pandas", "scipy", "sklearn", "sacrebleu", "rouge_score", "nltk", "rapidfuzz")


def test_looking_a_metric_up_imports_no_heavy_library() -> None:
    code = (
        "import sys; from metrics.registry import METRICS; METRICS['exact_match']; "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
