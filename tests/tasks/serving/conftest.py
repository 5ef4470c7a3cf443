"""The environments that `make test-serving` makes: one torch, two versions of transformers."""

from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session", params=["oldest", "newest"])
def hf_version(request: pytest.FixtureRequest) -> str:
    """Which transformers of those that the extra ``hf`` allows."""
    return str(request.param)


@pytest.fixture(scope="session")
def hf_python(hf_version: str) -> str:
    """The Python of an environment with torch and that transformers."""
    python = PROJECT / f".venv-hf-{hf_version}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no {python}: `make test-serving` makes it")
    return str(python)
