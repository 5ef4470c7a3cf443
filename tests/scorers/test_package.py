"""The package as a whole: importing costs nothing, nothing impure is imported."""

import subprocess
import sys

import pytest

import scorers


def test_public_names_are_there():
    assert all(getattr(scorers, name) is not None for name in scorers.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = scorers.nothing


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import scorers", ("numpy", "pydantic", "pyarrow", "jinja2")),
        (
            "import scorers.factory, scorers.generation",
            ("jinja2", "pyarrow", "sacrebleu", "scipy", "openai", "prefect"),
        ),
        ("import scorers.judge.scorer", ("pyarrow", "prefect", "openai", "aiohttp")),
    ],
)
def test_importing_brings_nothing_that_is_not_needed(statement, absent):
    code = f"{statement}; import sys; print(*[name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []
