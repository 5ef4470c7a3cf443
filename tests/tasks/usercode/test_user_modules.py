"""A set of modules of one's own begins anew; the common set imports the same file once."""

import sys
from pathlib import Path

import pytest

from metrics.errors import ConfigError
from tasks.usercode import load
from tasks.usercode.load import UserModules, load_function, resolver

DRAWS = "import random\nrng = random.Random(42)\ndef draw(*_): return rng.random()\n"


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_state_at_the_modules_level_is_the_owners(tmp_path: Path) -> None:
    write(tmp_path, utils=DRAWS)
    shared = load_function("utils.py:draw", tmp_path)
    first = shared()
    assert load_function("utils.py:draw", tmp_path)() != first
    for _ in range(2):
        modules = UserModules(own=True)
        assert modules.function("utils.py:draw", tmp_path)() == first
        assert modules.function("utils.py:draw", tmp_path)() != first
    assert resolver(tmp_path, own=True)("utils.py:draw")() == first
    assert resolver(tmp_path)("utils.py:draw") is shared


def test_a_file_is_found_in_ones_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, mine="def fn(): return 7\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NIGHTJAR_TRUST", str(tmp_path))
    assert load_function("~/mine.py:fn", tmp_path / "elsewhere")() == 7


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    "importing",
    [
        "from . import helper\ndef fn(): return helper.VALUE\n",
        "from .helper import VALUE\ndef fn(): return VALUE\n",
        "from helper import VALUE\ndef fn(): return VALUE\n",
        "from .deep.more import VALUE\ndef fn(): return VALUE\n",
        "from ..beside.helper import VALUE\ndef fn(): return VALUE\n",
        "from ...far.helper import VALUE\ndef fn(): return VALUE\n",
        "def fn():\n    from .helper import VALUE\n    return VALUE\n",
    ],
)
def test_neighbours_are_imported_in_every_way(tmp_path: Path, importing: str, own: bool) -> None:
    folder = tmp_path / "some.folder" / "tasks" / "mine"
    write(folder, utils=importing, helper="VALUE = 7\n", deep__more="from ..helper import VALUE\n")
    write(folder.parent / "beside", helper="VALUE = 7\n")
    write(folder.parent.parent / "far", helper="VALUE = 7\n")
    assert UserModules(own=own).function("utils.py:fn", folder)() == 7


def test_a_neighbour_imported_relatively_is_the_owners_own_too(tmp_path: Path) -> None:
    write(tmp_path, helper=DRAWS, utils="from .helper import rng\ndef draw(): return rng.random()\n")
    one, other = UserModules(own=True), UserModules(own=True)
    first = one.function("utils.py:draw", tmp_path)()
    assert one.function("helper.py:draw", tmp_path)() != first, "the same module, by whatever name"
    assert other.function("utils.py:draw", tmp_path)() == first


def test_a_file_that_can_not_be_imported_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path, utils="import helper\nraise ValueError('no')\n", helper="")
    before = {name for name in sys.modules if "helper" in name or "utils" in name}
    for own in (False, True):
        with pytest.raises(ConfigError, match=r"'utils.py' can't be imported: ValueError: no"):
            UserModules(own=own).function("utils.py:fn", tmp_path)
    assert {name for name in sys.modules if "helper" in name or "utils" in name} - before <= {
        name for name in sys.modules if name.startswith("nightjar_user_")
    }


def test_old_sets_are_forgotten_and_what_was_loaded_of_them_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "OWNED", 3)
    write(tmp_path, utils=DRAWS)
    functions = [UserModules(own=True).function("utils.py:draw", tmp_path) for _ in range(8)]
    kept = {name for name in sys.modules if name.startswith("nightjar_user_") and name.endswith(".utils")}
    assert len({function.__module__ for function in functions} & kept) == 3
    assert len({function() for function in functions}) == 1


def test_a_file_that_exits_does_not_end_the_program(tmp_path: Path) -> None:
    write(tmp_path, utils="import sys\nsys.exit('no prolog here')\n")
    with pytest.raises(ConfigError, match=r"SystemExit: no prolog here"):
        load_function("utils.py:fn", tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sklearn_of_nobody\n", r"it is in no extra: pip install sklearn_of_nobody"),
        ("import langdetect.nothing_here\n", r"langdetect"),
    ],
)
def test_a_missing_package_is_named_with_what_installs_it(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, utils=text)
    with pytest.raises(ConfigError, match=said):
        load_function("utils.py:fn", tmp_path)


def test_a_missing_module_of_a_package_that_is_there_is_no_missing_package(tmp_path: Path) -> None:
    write(tmp_path, utils="import json.nothing_here\n")
    with pytest.raises(ConfigError) as raised:
        load_function("utils.py:fn", tmp_path)
    assert "pip install" not in str(raised.value)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    ("importing", "files"),
    [
        ("from far_away import VALUE\n", {"far_away": "VALUE = {}\n"}),
        ("from far_away.deep import VALUE\n", {"far_away__deep": "VALUE = {}\n", "far_away____init__": ""}),
        (
            "import importlib\nVALUE = importlib.import_module('far' + '_away').VALUE\n",
            {"far_away": "VALUE = {}\n"},
        ),
        (
            "from between import VALUE\n",
            {"between": "from far_away import VALUE\n", "far_away": "VALUE = {}\n"},
        ),
    ],
)
def test_an_edit_outside_the_folder_takes_effect_in_the_same_process(
    importing: str, files: dict[str, str], own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    write(tmp_path / "mine", utils=f"{importing}def fn(): return VALUE\n")
    try:
        for value in (1, 22):
            write(tmp_path / "lib", **{name: text.format(value) for name, text in files.items()})
            assert UserModules(own=own).function("utils.py:fn", tmp_path / "mine")() == value
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("far_away", "between")]:
            del sys.modules[name]


def test_a_neighbour_that_a_function_imports_plainly_as_it_runs_is_told_about(tmp_path: Path) -> None:
    write(tmp_path, utils="def fn(): import beside_it\ndef other(): import nowhere_at_all\n")
    write(tmp_path, beside_it="")
    told = r"'beside_it' .* beside utils.py, .* import it at the top, or by 'from . import beside_it'"
    with pytest.raises(ModuleNotFoundError, match=told):
        load_function("utils.py:fn", tmp_path)()
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'nowhere_at_all'$"):
        load_function("utils.py:other", tmp_path)()
