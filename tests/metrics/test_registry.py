"""Names are looked up by any thread at any time, a registry's first moment included."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from metrics.registry import Registry

ADDS = "from registry_of_{package} import HERE\n{before}\nHERE.add('known', 'a definition')\n"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry[str]]:
    """Makes the registry of a package with one module, which runs a line before it adds the name "known"."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(package: str, before: str) -> Registry[str]:
        made = Registry[str]("thing", package)
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / "only.py").write_text(ADDS.format(package=package, before=before))
        about: Any = type(sys)(f"registry_of_{package}")
        about.HERE = made
        monkeypatch.setitem(sys.modules, about.__name__, about)
        return made

    return make


def test_a_name_is_known_to_each_thread_while_another_imports_what_adds_it(
    registry: Callable[..., Registry[str]],
) -> None:
    made = registry("slow_to_import", "import time; time.sleep(0.5)")
    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(made.get, ["known"] * 4)] == ["a definition"] * 4


def test_a_module_may_look_names_up_while_it_is_imported(registry: Callable[..., Registry[str]]) -> None:
    made = registry("looks_up", "assert HERE.get('later') is None")
    assert made["known"] == "a definition"


def test_what_could_not_be_imported_is_said_each_time(registry: Callable[..., Registry[str]]) -> None:
    made = registry("broken", "import not_installed_anywhere")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
            made.get("known")
