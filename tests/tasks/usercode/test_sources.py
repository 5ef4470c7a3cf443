"""What is known of a user's function before it runs, and what is seen when it does."""

import gc
import importlib
import importlib.metadata
import json
import os
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy
import pytest

from metrics.errors import ConfigError
from tasks.sandboxes.killable import ItemTimeout, KillableProcess
from tasks.store.home import PROJECT
from tasks.usercode import load, observed
from tasks.usercode.load import UserModules, load_function, resolver
from tasks.usercode.sources import (
    Sources,
    connected_files,
    entries_in,
    first_difference,
    named_files,
    observed_files,
    sources_of,
)


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def sources(folder: Path, name: str = "metric", **files: str) -> Sources:
    """The sources of a function in ``mine.py``, after the named files are written."""
    write(folder, **files)
    return sources_of(load_function(f"mine.py:{name}", folder))


def seen(folder: Path, file: str, **files: str) -> dict[str, str]:
    """What the metric of ``mine.py`` is seen to read, loaded and called once."""
    write(folder, mine=file, **files)
    function = load_function("mine.py:metric", folder)
    function("x")
    found = observed_files(sources_of(function).entries)
    assert found is not None
    return found


TWO = "def metric(x):\n    return {}\n\n\ndef neighbour(x):\n    return {}\n"


def test_a_neighbour_in_the_same_file_counts(tmp_path: Path) -> None:
    before = sources(tmp_path, mine=TWO.format(1, 1))
    assert set(before) == {"mine.py", "mine.py:metric"}
    assert sources(tmp_path, mine=TWO.format(1, 2)) != before


def test_two_functions_of_a_file_are_told_apart(tmp_path: Path) -> None:
    text = "def make(n):\n    return lambda x: n\nmetric, other = make(1), make(2)\n"
    assert sources(tmp_path, mine=text) != sources(tmp_path, "other", mine=text)


HOLDING = """
from functools import partial
class Held:
    def __init__(self, n): self.n = n
def take(*given, **named): return given
metric, other, listed = partial(take, Held(1)), partial(take, Held(2)), partial(take, [Held(1)])
inner = partial(take, partial(take, x=Held(1)))
"""


@pytest.mark.parametrize("name", ["metric", "other", "listed", "inner"])
def test_an_object_that_a_function_is_given_counts_by_the_file_that_makes_it(
    tmp_path: Path, name: str
) -> None:
    def found(name: str) -> Sources:
        resolve = resolver(tmp_path, own=True)
        return sources_of(resolve(f"mine.py:{name}"), resolve=resolve)

    write(tmp_path, mine=HOLDING)
    before = found(name)
    assert found(name) == before, "another object of the same kind, elsewhere in memory"
    assert all(found(other) != before for other in ("metric", "other", "listed", "inner") if other != name)
    write(tmp_path, mine=HOLDING.replace("(2)", "(3)"))
    assert found(name) != before


def test_files_that_nobody_imports_do_not_count(tmp_path: Path) -> None:
    before = sources(tmp_path, mine=TWO.format(1, 1), stranger="VALUE = 1\n")
    assert sources(tmp_path, stranger="VALUE = 2\n") == before


def test_place_of_the_folder_does_not_matter(tmp_path: Path) -> None:
    importing = "from helper import c\nfrom ..near.helper import d\ndef metric(x): return c\n"
    for name in ("one", "two"):
        write(tmp_path / name / "near", helper="d = 2\n")
        write(tmp_path / name / "in", mine=importing, helper="c = 1\n")
    one, two = (sources(tmp_path / name / "in") for name in ("one", "two"))
    assert one == two
    assert set(one) == {"mine.py", "mine.py:metric", "helper.py", "../near/helper.py"}
    assert one.entries != two.entries


def test_functions_of_two_folders_with_files_of_one_name_both_count(tmp_path: Path) -> None:
    for name, value in (("one", 1), ("two", 2)):
        write(tmp_path / name, mine=f"def metric(x): return {value}\n")
    functions = [load_function("mine.py:metric", tmp_path / name) for name in ("one", "two")]
    before = sources_of(*functions)
    write(tmp_path / "one", mine="def metric(x): return 3\n")
    assert sources_of(load_function("mine.py:metric", tmp_path / "one"), functions[1]) != before


def test_libraries_count_by_version_and_are_never_followed(tmp_path: Path) -> None:
    optional = "try:\n    import nowhere_to_be_found\nexcept ImportError: ...\n"
    found = sources(tmp_path, mine=f"import json, numpy\n{optional}def metric(x): ...\n")
    assert set(found) == {"mine.py", "mine.py:metric", "numpy", "python", "nowhere_to_be_found"}
    assert found["numpy"] == importlib.metadata.version("numpy")
    assert found["nowhere_to_be_found"] == "not installed"


def test_a_function_of_an_installed_package_counts_by_its_version() -> None:
    python = {"python": f"Python {sys.version_info.major}.{sys.version_info.minor}"}
    assert sources_of(json.loads) == python | {"__init__.py:loads": "used"}
    assert sources_of(numpy.testing.assert_allclose)["numpy"] == numpy.__version__


def test_the_programs_own_functions_are_behind_its_stages() -> None:
    from metrics.registry import METRICS

    assert sources_of(METRICS["exact_match"].function) == {}


def test_what_a_users_file_imports_of_the_program_counts(tmp_path: Path) -> None:
    found = sources(tmp_path, mine="from metrics.numbers import *\ndef metric(x): ...\n")
    assert "metrics" in found


def test_a_folder_called_like_a_library_does_not_hide_it(tmp_path: Path) -> None:
    (tmp_path / "numpy").mkdir()
    found = sources(tmp_path, mine="import numpy\ndef metric(x): ...\n", numpy__data="")
    assert found["numpy"] == importlib.metadata.version("numpy")


def test_entries_are_found_wherever_they_stand_in_an_identity(tmp_path: Path) -> None:
    found = sources(tmp_path, mine=TWO.format(1, 1))
    assert entries_in({"a": [{"code": found}], "b": 1}) == (str(tmp_path.resolve() / "mine.py"),)


READING = "from pathlib import Path\nHERE = Path(__file__).parent\n"


def test_what_is_read_is_seen_and_an_edit_is_named(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("one")
    found = seen(tmp_path, f"{READING}def metric(x): return (HERE / 'words.txt').read_text()\n")
    assert set(found) == {"mine.py", "words.txt"}
    entries = [str(tmp_path / "mine.py")]
    assert first_difference(entries, found) is None
    (tmp_path / "words.txt").write_text("two")
    assert first_difference(entries, found) == "words.txt"


TEXT = "TEXT = \"def metric(x): return (HERE / 'words.txt').read_text()\"\n"
GENERATED = {
    "eval": "metric = eval(TEXT.replace('def metric(x): return', 'lambda x:'))\n",
    "exec": "exec(TEXT)\n",
    "names of its own": "made = {'HERE': HERE}\nexec(TEXT, made)\nmetric = made['metric']\n",
    "a name for its source": "exec(compile(TEXT, 'own', 'exec'))\n",
}


@pytest.mark.parametrize("text", GENERATED.values(), ids=GENERATED)
def test_a_function_that_was_made_of_a_text_is_that_of_the_file_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("<string>", "own"):  # in the working folder, and no source of it
        (tmp_path / "elsewhere" / name).write_text("")
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(observed._seen, "loaded", set())  # what a text imports may be any of them
    (tmp_path / "words.txt").write_text("one")
    write(tmp_path, mine=READING + TEXT + text)
    resolve = resolver(tmp_path)
    function = resolve("mine.py:metric")
    assert function("x") == "one"
    found = sources_of(function, resolve=resolve)
    assert [name for name in found if name.endswith(".py")] == ["mine.py"]
    assert set(observed_files(found.entries) or ()) == {"mine.py", "words.txt"}


def test_a_method_of_an_object_is_that_of_the_file_that_names_it(tmp_path: Path) -> None:
    write(tmp_path, mine="metric = ', '.join\n")
    resolve = resolver(tmp_path)
    found = sources_of(resolve("mine.py:metric"), resolve=resolve)
    assert "mine.py" in found
    assert not any("None" in name for name in found)


def test_what_is_written_is_not_read(tmp_path: Path) -> None:
    body = "(HERE / 'new.txt').write_text(x)\n    return (HERE / 'new.txt').read_text()"
    text = f"{READING}def metric(x):\n    {body}\n"
    assert set(seen(tmp_path, text)) == {"mine.py"}


def test_devices_and_processes_are_no_files(tmp_path: Path) -> None:
    assert set(
        seen(
            tmp_path,
            f"{READING}def metric(x): return Path('/dev/null').read_text(), Path('/proc/stat').read_text()\n",
        )
    ) == {"mine.py"}


def test_a_file_in_shared_memory_is_read(tmp_path: Path) -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        assert file.name in seen(tmp_path, f"def metric(x): return open({file.name!r}).close()\n")


def test_a_name_below_a_folder_that_nobody_tells_can_not_be_known(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("one")
    body = (
        "folder = os.open(HERE, os.O_RDONLY)\n    os.close(os.open('words.txt', os.O_RDONLY, dir_fd=folder))"
    )
    write(tmp_path, mine=f"{READING}import os\ndef metric(x):\n    {body}\n    os.close(folder)\n")
    function = load_function("mine.py:metric", tmp_path)
    function("x")
    assert observed_files(sources_of(function).entries) is None


def test_folders_that_python_walks_are_not_read(tmp_path: Path) -> None:
    body = "with tempfile.TemporaryDirectory() as folder:\n        os.mkdir(f'{folder}/deep')"
    assert set(seen(tmp_path, f"import os, tempfile\ndef metric(x):\n    {body}\n")) == {"mine.py"}


def test_a_file_that_was_missing_is_noted(tmp_path: Path) -> None:
    body = "try:\n        return open(HERE / 'more.txt')\n    except OSError:\n        return 0"
    text = f"{READING}def metric(x):\n    {body}\n"
    found = seen(tmp_path, text)
    assert found["more.txt"] == "no file"
    (tmp_path / "more.txt").write_text("")
    assert first_difference([str(tmp_path / "mine.py")], found) == "more.txt"


def test_a_file_of_its_own_that_is_gone_again_is_no_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "by another"
    command = ["sh", "-c", f'echo 1 > "{other}"']
    text = (
        f"import os, pathlib, subprocess\ndef metric(x):\n    subprocess.run({command!r}, check=True)\n"
        f"    found = pathlib.Path({str(other)!r}).read_text()\n"
        f"    os.remove({str(other)!r})\n    return found\n"
    )
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert set(seen(tmp_path, text)) == {"mine.py"}


def compile_library(folder: Path, name: str) -> None:
    """As a compiler does: another file in the place of the one that may be in use."""
    compiled = importlib.import_module(f"numpy.random.{name}").__file__
    assert compiled is not None
    (folder / "score.so").unlink(missing_ok=True)
    shutil.copy(compiled, folder / "score.so")


@pytest.mark.parametrize("name", ["str(HERE / 'score.so')", "'./score.so'"])
def test_a_compiled_library_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    compile_library(tmp_path, "_mt19937")
    monkeypatch.chdir(tmp_path)
    found = seen(tmp_path, f"{READING}import ctypes\nctypes.CDLL({name})\ndef metric(x): return 1.0\n")
    assert "score.so" in found
    compile_library(tmp_path, "_pcg64")
    assert first_difference([str(tmp_path / "mine.py")], found) == "score.so"


def test_a_library_that_the_system_finds_by_its_name_is_no_file_of_the_functions(tmp_path: Path) -> None:
    text = "import ctypes\ndef metric(x): return ctypes.CDLL('libc.so.6'), ctypes.CDLL(None)\n"
    assert set(seen(tmp_path, text)) == {"mine.py"}


def test_a_file_above_the_function_is_its_checkouts_own(tmp_path: Path) -> None:
    text = f"{READING}def metric(x): return (HERE.parent / 'data' / 'words.txt').read_text()\n"
    for name in ("one", "two"):
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "data" / "words.txt").write_text(name)
        write(tmp_path / name / "in", mine=text)
    found = seen(tmp_path / "one" / "in", text)
    assert first_difference([str(tmp_path / "one" / "in" / "mine.py")], found) is None
    assert first_difference([str(tmp_path / "two" / "in" / "mine.py")], found) is not None


RELATIVE = {
    "a name": "def metric(x): return Path('words.txt').read_text()\n",
    "a whole path": "def metric(x): return Path('words.txt').resolve().read_text()\n",
    "a database": "import sqlite3\ndef metric(x): sqlite3.connect('words.txt').close()\n",
    "another folder": "import os\ndef metric(x):\n    os.chdir('below')\n    Path('words.txt').read_text()\n",
}


@pytest.mark.parametrize("text", RELATIVE.values(), ids=RELATIVE)
@pytest.mark.parametrize("place", ["one", "in"])
def test_a_name_that_hangs_on_the_working_folder_is_for_runs_there(
    text: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("one", "two", "in"):
        (tmp_path / folder / "below").mkdir(parents=True)
        for file in ("words.txt", "below/words.txt"):
            (tmp_path / folder / file).write_text(folder)
    monkeypatch.chdir(tmp_path / place)
    found = seen(tmp_path / "in", f"{READING}{text}")
    entries = [str(tmp_path / "in" / "mine.py")]
    monkeypatch.chdir(tmp_path / place)
    assert first_difference(entries, found) is None
    monkeypatch.chdir(tmp_path / "two")
    assert first_difference(entries, found) is not None


def test_a_function_that_chooses_the_working_folder_runs_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "words.txt").write_text("one")
    monkeypatch.chdir(tmp_path.parent)
    found = seen(
        tmp_path,
        f"{READING}import os\ndef metric(x):\n    os.chdir(HERE)\n    Path('words.txt').read_text()\n",
    )
    assert set(found) == {"mine.py", "words.txt"}


def test_a_file_that_changes_while_it_runs_is_as_it_was_never_again(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("one")
    write(tmp_path, mine=f"{READING}def metric(x): return (HERE / 'words.txt').read_text()\n")
    function = load_function("mine.py:metric", tmp_path)
    function("x")
    (tmp_path / "words.txt").write_text("changed")
    function("x")
    entries = sources_of(function).entries
    files = observed_files(entries)
    assert files is not None
    assert files["words.txt"] == observed.EDITED
    assert first_difference(entries, files) == "words.txt"


def test_what_was_read_before_another_loads_the_function_anew_is_not_forgotten(tmp_path: Path) -> None:
    """Partitions of a run beside each other: the first one's scores are by both versions."""
    (tmp_path / "words.txt").write_text("one")
    write(tmp_path, mine=f"{READING}def metric(x): return (HERE / 'words.txt').read_text()\n")
    began, first = time.monotonic(), load_function("mine.py:metric", tmp_path)
    first("x")
    (tmp_path / "words.txt").write_text("changed")
    second = load_function("mine.py:metric", tmp_path)
    first("x")
    second("x")
    entries = sources_of(second).entries
    assert (observed_files(entries, began) or {})["words.txt"] == observed.EDITED
    assert (observed_files(entries) or {})["words.txt"] != observed.EDITED


@pytest.mark.parametrize(
    "keeping",
    [
        "(HERE / 'kept.tmp').write_text(x); (HERE / 'kept.tmp').replace(HERE / 'kept.txt')",
        "(HERE / 'kept.txt').write_text(x)",
    ],
)
def test_what_the_code_keeps_for_itself_is_not_said_to_be_edited(tmp_path: Path, keeping: str) -> None:
    (tmp_path / "kept.txt").write_text("before")
    write(tmp_path, mine=f"{READING}def metric(x):\n    (HERE / 'kept.txt').read_text()\n    {keeping}\n")
    function = load_function("mine.py:metric", tmp_path)
    function("x")
    assert observed.EDITED not in (observed_files(sources_of(function).entries) or {}).values()


def test_a_module_that_was_loaded_unseen_can_not_be_known(tmp_path: Path) -> None:
    assert observed_files([str(tmp_path / "other.py")]) is None


def test_what_imports_a_module_that_was_loaded_unseen_can_not_be_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook's own import, before the first evaluation: the file may have been edited since."""
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    write(tmp_path / "lib", loaded_unseen="VALUE = 1\n")
    importlib.import_module("loaded_unseen")
    monkeypatch.setattr(observed, "_seen", observed._Seen())  # it looks from the next function on
    write(tmp_path / "lib", loaded_unseen="VALUE = 22\n")
    try:
        found = sources(tmp_path, mine="from loaded_unseen import VALUE\ndef metric(x): return VALUE\n")
        assert observed_files(found.entries) is None
        del sys.modules["loaded_unseen"]
        found = sources(tmp_path, mine="from loaded_unseen import VALUE\ndef metric(x): return VALUE, x\n")
        assert observed_files(found.entries) is not None
    finally:
        sys.modules.pop("loaded_unseen", None)


@pytest.fixture
def words(tmp_path: Path) -> str:
    """The name of a database, and the head of a file that reads it."""
    with sqlite3.connect(tmp_path / "my words.db") as database:
        database.execute("create table words (word)")
    database.close()
    return f"{READING}import sqlite3\nFILE = HERE / 'my words.db'\n"


@pytest.mark.parametrize(
    "body",
    [
        "sqlite3.connect(FILE).close()",
        "sqlite3.connect(f'file:{FILE}?mode=ro', uri=True).close()",
        "sqlite3.connect(FILE.as_uri() + '?immutable=1#words', uri=True).close()",
    ],
)
def test_a_database_is_read(tmp_path: Path, words: str, body: str) -> None:
    found = seen(tmp_path, f"{words}def metric(x): {body}\n")
    assert "my words.db" in found
    with sqlite3.connect(tmp_path / "my words.db") as database:
        database.execute("pragma journal_mode = wal")
        database.execute("pragma wal_autocheckpoint = 0")
        found |= seen(tmp_path, f"{words}def metric(x): {body}; return 1\n")
        database.execute("insert into words values ('new')")
        database.commit()
        assert first_difference([str(tmp_path / "mine.py")], found) == "my words.db-wal"
    database.close()


def test_a_database_in_memory_is_no_file(tmp_path: Path, words: str) -> None:
    text = f"""{words}def metric(x):
    database = sqlite3.connect("file:words?mode=memory", uri=True)
    database.execute("attach ':memory:' as more")
    database.close()
"""
    assert set(seen(tmp_path, text)) == {"mine.py"}


def test_a_database_that_is_missing_is_noted(tmp_path: Path, words: str) -> None:
    body = "sqlite3.connect(f'file:{HERE}/more.db?mode=ro', uri=True)"
    text = f"{words}def metric(x):\n    try: {body}\n    except sqlite3.OperationalError: pass\n"
    assert seen(tmp_path, text)["more.db"] == "no file"


def test_what_one_function_kept_counts_for_all_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("one")
    cached = "@cache\ndef words(): return (HERE / 'words.txt').read_text()\n"
    helper = f"from functools import cache\n{READING}{cached}"
    importing = "from .shared import words\ndef metric(x): return words()\n"
    write(tmp_path, shared=helper, mine=importing, other=importing)
    modules = UserModules(own=True)
    for file in ("mine.py", "other.py"):
        function = modules.function(f"{file}:metric", tmp_path)
        assert function("x") == "one"
        assert "words.txt" in (observed_files(sources_of(function).entries) or {})


def test_what_another_function_reads_is_not_for_this_one(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("one")
    write(tmp_path, other=f"{READING}def metric(x): return (HERE / 'words.txt').read_text()\n")
    load_function("other.py:metric", tmp_path)("x")
    assert set(seen(tmp_path, "def metric(x): return x\n")) == {"mine.py"}


def slow_reading(folder: str):  # type: ignore[no-untyped-def]
    """What a process calls that is ended in the middle of an item."""
    return load_function("mine.py:metric", folder)


def test_what_was_read_is_known_of_an_item_that_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "words.txt").write_text("one")
    write(
        tmp_path, mine=f"{READING}def metric(x):\n    (HERE / 'words.txt').read_text()\n    while x: pass\n"
    )
    folder = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, str(PROJECT)]))
    with KillableProcess("test_sources:slow_reading", [str(tmp_path)], 1.0) as process:
        assert isinstance(process("x"), ItemTimeout)
    assert "words.txt" in (observed_files([str(tmp_path.resolve() / "mine.py")]) or {})


def test_files_and_folders_that_are_named_count(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "a.txt").write_text("1")
    (tmp_path / "words.txt").write_text("1")
    assert set(named_files(["words.txt", "lists"], tmp_path)) == {"words.txt", "lists/a.txt"}
    with pytest.raises(
        ConfigError, match=r"depends_on: 'gone.txt' is not there: expected a file or a folder"
    ):
        named_files(["gone.txt"], tmp_path)


@contextmanager
def imports_at_any_time() -> Iterator[None]:
    """A block in which the garbage collector runs as often as it may, and a module is imported each time: it
    may have another thread go on wherever Python lists ``sys.modules``."""
    added: list[str] = []

    def imports(phase: str, _: object) -> None:
        if phase == "start":
            added.append(f"a_module_of_this_test_{len(added)}")
            sys.modules[added[-1]] = ModuleType(added[-1])

    before = gc.get_threshold()
    gc.callbacks.append(imports)
    gc.set_threshold(1, 1_000_000, 1_000_000)  # the youngest objects alone, or it takes minutes
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(imports)
        for name in added:
            sys.modules.pop(name, None)
    assert added


def test_modules_that_are_imported_meanwhile_do_not_disturb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cost steps: "dictionary changed size during iteration"."""
    path = tmp_path / "own.py"
    path.write_text("import other\n\n\ndef fn():\n    return other.ONE\n")
    (tmp_path / "other.py").write_text("ONE = 1\n")
    monkeypatch.setattr(load, "OWNED", 1)
    with imports_at_any_time():
        assert connected_files(path) >= {path}
        assert load_function("own.py:fn", tmp_path)() == 1
        for _ in range(3):  # the oldest goes
            assert resolver(tmp_path, own=True)("own.py:fn")() == 1


def test_files_that_are_written_meanwhile_do_not_disturb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sources(tmp_path, mine="def metric(x): return 1.0\n")
    monkeypatch.setattr(observed._seen, "written", dict.fromkeys(map(str, range(200_000)), frozenset()))

    ended = threading.Event()

    def write_more() -> None:
        for number in range(200_000, 300_000):
            observed._seen.written[str(number)] = frozenset()
            if ended.wait(0.0002):
                return

    writer = threading.Thread(target=write_more)
    writer.start()
    try:
        for _ in range(10):
            assert set(observed_files(found.entries) or ()) == {"mine.py"}
    finally:
        ended.set()
        writer.join()
