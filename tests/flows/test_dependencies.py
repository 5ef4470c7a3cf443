"""A metric of a user's depends on many things in many ways: after an edit of any, a store that has its score
gives what a fresh store gives."""

import json
import site
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tasks.usercode import observed
from tasks.usercode.load import resolver
from tasks.usercode.sources import Sources, first_difference, named_files, observed_files, sources_of
from tests.flows.endpoints import chat_endpoint, says

PROJECT = Path(__file__).resolve().parents[2]

SIGNATURE = "(references, predictions)"


@dataclass(frozen=True)
class Shape:
    """``files`` below the config's folder; ``edit`` replaces the text of some; ``metric`` names the
    function."""

    files: Mapping[str, str]
    edit: Mapping[str, str]
    metric: str = "mine.py:f"
    settings: Mapping[str, Any] = field(default_factory=dict)


def metric(body: str, before: str = "") -> str:
    """A file with a metric ``f`` that returns what the body's expression says."""
    return f"{before}def f{SIGNATURE}:\n    return {body}\n"


def helped(importing: str, call: str, helper: str = "helper.py", text: str = "def c(): return {}\n") -> Shape:
    """A metric whose number comes from a file beside it."""
    return Shape(
        {"mine.py": metric(call, f"{importing}\n"), helper: text.format(1)}, {helper: text.format(2)}
    )


def within(text: str) -> Shape:
    """A metric whose number stands in its own file, as ``{}``."""
    return Shape({"mine.py": text.replace("{}", "1")}, {"mine.py": text.replace("{}", "2")})


def reading(text: str) -> Shape:
    """A metric whose number is in a file of data beside it."""
    return Shape(
        {
            "mine.py": f"from pathlib import Path\nDATA = Path(__file__).parent / 'n.txt'\n{text}",
            "n.txt": "1",
        },
        {"n.txt": "2"},
    )


PLUGINS = """
import importlib, sys
from pathlib import Path
FOLDER = Path(__file__).parent / "plugins"
sys.path.append(str(FOLDER))
for file in FOLDER.glob("*.py"):
    importlib.import_module(file.stem)
sys.path.remove(str(FOLDER))
"""
IN_A_THREAD = """
import threading
def f(references, predictions):
    found = []
    thread = threading.Thread(target=lambda: found.append(float(DATA.read_text())))
    thread.start(); thread.join()
    return found[0]
"""
POOLED = """
from concurrent.futures import ThreadPoolExecutor
POOL = ThreadPoolExecutor(1)
def f(references, predictions):
    return float(POOL.submit(Path.read_text, DATA).result())
"""
CACHED = """
from functools import cache
@cache
def number(): return float(DATA.read_text())
def f(references, predictions): return number()
"""
OPTIONAL = """
def f(references, predictions):
    try:
        return float((DATA.parent / "more.txt").read_text())
    except FileNotFoundError:
        return 1.0
"""
BY_ANOTHER_PROCESS = """
import subprocess, sys
def f(references, predictions):
    command = [sys.executable, "-c", "import sys; print(open(sys.argv[1]).read())", str(DATA)]
    return float(subprocess.run(command, capture_output=True, text=True).stdout)
"""
PARTIAL = f"from functools import partial\ndef g{SIGNATURE[:-1]}, x): return x\nf = partial(g, x={{}})\n"

IN_THE_FILE = {
    "a constant": within(f"N = {{}}\n{metric('N')}"),
    "a function": within(f"def c(): return {{}}\n{metric('c()')}"),
    "a base class": within(f"class A:\n    n = {{}}\nclass B(A): pass\n{metric('B().n')}"),
    "a decorator": within(f"def d(f): return lambda references, predictions: {{}}\n@d\n{metric('0')}"),
    "globals()": within(f"def c(): return {{}}\n{metric(chr(34).join(['globals()[', 'c', ']()']))}"),
    "eval": within(f"def c(): return {{}}\n{metric(chr(34).join(['eval(', 'c()', ')']))}"),
    "a partial": within(PARTIAL),
    "its docstring": within(f'def f{SIGNATURE}:\n    """{{}}"""\n    return float(f.__doc__)\n'),
}
OTHER_PIP_NAMES = {
    "from helper import c": helped("from helper import c", "c()"),
    "import helper": helped("import helper", "helper.c()"),
    "from . import helper": helped("from . import helper", "helper.c()"),
    "from .helper import c as d": helped("from .helper import c as d", "d()"),
    "from ..above.helper import c": Shape(
        {
            "in/mine.py": metric("c()", "from ..above.helper import c\n"),
            "above/helper.py": "def c(): return 1\n",
        },
        {"above/helper.py": "def c(): return 2\n"},
        "in/mine.py:f",
    ),
    "an import in the function": helped("def c():\n    from .helper import c\n    return c()", "c()"),
    "a star import": helped("from helper import *", "c()"),
    "a conditional import": helped(
        "try:\n    from helper import c\nexcept ImportError:\n    c = None", "c()"
    ),
    "import_module of a literal": helped("import importlib\nm = importlib.import_module('helper')", "m.c()"),
    "import h.t.n": helped("import h.t.n", "h.t.n.c()", "h/t/n.py"),
    "a package whose __init__ imports": Shape(
        {
            "mine.py": metric("t.c()", "from h import t\n"),
            "h/__init__.py": "",
            "h/t/__init__.py": "from h.t.n import c\n",
            "h/t/n.py": "def c(): return 1\n",
        },
        {"h/t/n.py": "def c(): return 2\n"},
    ),
}
READ = {
    "data read at import": reading(f"N = float(DATA.read_text())\n{metric('N')}"),
    "data read in the function": reading(metric("float(DATA.read_text())")),
    "data read once and kept": reading(CACHED),
    "data read in a thread": reading(IN_A_THREAD),
    "data read in a pool of threads": reading(POOLED),
    "data that was missing": Shape({"mine.py": reading(OPTIONAL).files["mine.py"]}, {"more.txt": "2"}),
    "data that another process reads, named": Shape(
        reading(BY_ANOTHER_PROCESS).files, {"n.txt": "2"}, settings={"depends_on": ["n.txt"]}
    ),
}
REGISTRIES = {
    "a registry filled by an import that nothing mentions": Shape(
        {
            "mine.py": metric("TABLE['c']()", "import registering\nfrom registry import TABLE\n"),
            "registry.py": "TABLE = {}\n",
            "registering.py": "from registry import TABLE\nTABLE['c'] = lambda: 1\n",
        },
        {"registering.py": "from registry import TABLE\nTABLE['c'] = lambda: 2\n"},
    ),
    "a registry filled by whatever lies in a folder": Shape(
        {
            "mine.py": metric("TABLE['c']()", f"{PLUGINS}\nfrom registry import TABLE\n"),
            "registry.py": "TABLE = {}\n",
            "plugins/one.py": "from registry import TABLE\nTABLE['c'] = lambda: 1\n",
        },
        {"plugins/one.py": "from registry import TABLE\nTABLE['c'] = lambda: 2\n"},
    ),
}
MAKING = """
class Const:
    def __init__(self, n): self.n = n
    def __call__(self, references, predictions): return self.n
    def method(self, references, predictions): return self.n
def make(n): return lambda references, predictions: n
def plain(f): return lambda references, predictions: f()
"""


def made(text: str) -> Shape:
    """A metric that something of a neighbour's makes of the number ``{}`` in the config's own file."""
    text = f"from functools import partial\nfrom fac import Const, make, plain\n{text}\n"
    files = {"mine.py": text.replace("{}", "1"), "fac.py": MAKING}
    return Shape(files, {"mine.py": text.replace("{}", "2")})


MADE_ELSEWHERE = {
    "an object of a neighbour's class": made("f = Const({})"),
    "a method of such an object": made("f = Const({}).method"),
    "what a neighbour's function returns": made("f = make({})"),
    "what a neighbour's decorator returns": made("@plain\ndef f(): return {}"),
    "a partial of what a neighbour's function returns": made("f = partial(make({}))"),
    "a partial with such an object": made(
        "def g(h, *given, **named): return h(*given, **named)\nf = partial(g, Const({}))"
    ),
    "a neighbour's class": Shape(
        {
            "mine.py": "from fac import C\nf = C()\n",
            "fac.py": f"class C:\n    def __call__{SIGNATURE.replace('(', '(self, ')}: return 1\n",
        },
        {"fac.py": f"class C:\n    def __call__{SIGNATURE.replace('(', '(self, ')}: return 2\n"},
    ),
    "another neighbour's function": Shape(
        {
            "mine.py": "from one import f\n",
            **{f"{name}.py": metric(str(n)) for n, name in ((1, "one"), (2, "two"))},
        },
        {"mine.py": "from two import f\n"},
    ),
}
PACKAGES = {
    "a package installed editable, by a path": Shape(
        {
            "flat/by_path/__init__.py": "from by_path.n import c\n",
            "flat/by_path/n.py": "def c(): return 1\n",
            "mine.py": metric("by_path.c()", "import by_path\n"),
        },
        {"flat/by_path/n.py": "def c(): return 2\n"},
    ),
    "a package installed editable, by a finder": Shape(
        {
            "src/by_finder/__init__.py": "",
            "src/by_finder/n.py": "def c(): return 1\n",
            "mine.py": metric("c()", "from by_finder.n import c\n"),
        },
        {"src/by_finder/n.py": "def c(): return 2\n"},
    ),
    "a metric in a package that imports its sibling": Shape(
        {
            "flat/sibling/__init__.py": "",
            "flat/sibling/n.py": "def c(): return 1\n",
            "flat/sibling/mine.py": metric("c()", "from sibling.n import c\n"),
        },
        {"flat/sibling/n.py": "def c(): return 2\n"},
        "sibling.mine:f",
    ),
    "a metric in a package, data beside it": Shape(
        {
            "flat/packed/__init__.py": "",
            "flat/packed/n.txt": "1",
            "flat/packed/mine.py": metric(
                "float(read_text('packed', 'n.txt'))",
                "from pkgutil import get_data\nread_text = lambda *a: get_data(*a).decode()\n",
            ),
        },
        {"flat/packed/n.txt": "2"},
        "packed.mine:f",
    ),
}
SHAPES = {**IN_THE_FILE, **OTHER_PIP_NAMES, **READ, **REGISTRIES, **MADE_ELSEWHERE, **PACKAGES}
WHOLE_WAY = (
    "import h.t.n",
    "data read at import",
    "data read in the function",
    "data that another process reads, named",
    *REGISTRIES,
    *MADE_ELSEWHERE,
    "a package installed editable, by a finder",
    "a metric in a package that imports its sibling",
)
"""Those that whole runs are made of."""

FINDER = """
import sys
from importlib.util import spec_from_file_location
MAPPING = {mapping!r}
class Editable:
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname in MAPPING:
            return spec_from_file_location(
                fullname, MAPPING[fullname] + "/__init__.py", submodule_search_locations=[MAPPING[fullname]])
def install():
    sys.meta_path.append(Editable)
"""
"""What an installer writes for a package that a path alone can't make importable."""

NAMES = {name: f"s{number:02}" for number, name in enumerate(SHAPES)}

WHOLE = {name: NAMES[name] for name in WHOLE_WAY}


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_config(folder: Path, names: Mapping[str, str]) -> Path:
    """One benchmark whose metrics are the shapes, each in a folder of its own."""
    entries = []
    for name, place in names.items():
        shape = SHAPES[name]
        write(folder / place, shape.files)
        reference = f"{place}/{shape.metric}" if ".py:" in shape.metric else shape.metric
        named = {key: [f"{place}/{entry}" for entry in value] for key, value in shape.settings.items()}
        entries.append({"metric": reference, "alias": place, **named})
    write(folder, {"items.jsonl": "".join(json.dumps({"question": str(n)}) + "\n" for n in range(3))})
    config = {
        "name": "shapes",
        "dataset": {"path": "items.jsonl"},
        "prompt_template": "{{question}}",
        "target": "{{question}}",
        "models": [{"name": "demo", "type": "demo"}],
        "metric_list": entries,
    }
    path = folder / "shapes.yaml"
    path.write_text(json.dumps(config))
    return path


def install_editable(folder: Path) -> dict[str, str]:
    """What an installer leaves for packages that are installed editable, in a folder of packages of its own;
    the environment that has it."""
    packages = folder / "site-packages"
    flat = [str(path) for path in sorted(folder.glob("*/flat"))]
    finders = {path.name: str(path) for path in sorted(folder.glob("*/src/*"))}
    write(
        packages,
        {
            "__editable__.flat.pth": "".join(f"{path}\n" for path in flat),
            "__editable__.src.pth": "import __editable___src_finder; __editable___src_finder.install()\n",
            "__editable___src_finder.py": FINDER.format(mapping=finders),
        },
    )
    start = f"import site\nsite.addsitedir({str(packages)!r})\n"
    write(folder / "start", {"sitecustomize.py": start})
    return {"PYTHONPATH": str(folder / "start")}


Values = dict[str, Any]


@dataclass(frozen=True)
class Rescored:
    """What runs before and after all edits gave, each in a process of its own and on one store."""

    before: Values
    again: Mapping[str, Any]
    after: Values
    why: Mapping[str, str]


@pytest.fixture(scope="module")
def rescored(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Rescored:
    folder = tmp_path_factory.mktemp("with a blank")
    config = write_config(folder, WHOLE)
    environment = {**own_environment_of(home), **install_editable(folder)}

    def call(*arguments: str) -> Any:
        command = [sys.executable, "-m", *arguments, "--store", str(folder / "store"), "--json"]
        done = subprocess.run(
            command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def evaluate(workers: int) -> Any:
        places = ("--output", str(folder / "out"), "--workers", str(workers))
        return call("flows.eval", str(config), *places)

    before, again = evaluate(2), evaluate(1)
    for name, place in WHOLE.items():
        write(folder / place, SHAPES[name].edit)
    after = evaluate(2)
    told = call("flows.why", str(folder / "out"), "score")
    why = {step["step"].rpartition(" × ")[2]: "; ".join(step["differences"]) for step in told["steps"]}
    return Rescored(_values(before), again["steps"], _values(after), why)


def own_environment_of(home: Path) -> dict[str, str]:
    import os

    environment = {**os.environ, "NIGHTJAR_HOME": str(home)}
    environment.pop("PREFECT_API_URL", None)
    return environment


def _values(document: Any) -> Values:
    return {row["metric"]: row["value"] for row in document["results"]}


def test_what_is_as_it_was_is_computed_once(rescored: Rescored) -> None:
    counts = rescored.again["score"]
    assert (counts["computed"], counts["cached"]) == (0, len(WHOLE))


@pytest.mark.parametrize("name", WHOLE)
def test_an_edit_takes_effect_in_the_same_store_and_is_named(rescored: Rescored, name: str) -> None:
    place = NAMES[name]
    assert (rescored.before[place], rescored.after[place]) == (1, 2)
    (edited,) = SHAPES[name].edit
    assert Path(edited).name in rescored.why[place]


def test_a_process_that_lives_on_sees_edits(evaluate: Callable[..., Any], tmp_path: Path) -> None:
    """A notebook, a worker: the same process scores before and after."""
    here = {name: place for name, place in WHOLE.items() if name not in PACKAGES}
    config = write_config(tmp_path, here)
    assert set(_values(evaluate(config, "--json").document).values()) == {1}
    for name, place in here.items():
        write(tmp_path / place, SHAPES[name].edit)
    assert set(_values(evaluate(config, "--json").document).values()) == {2}


def test_an_edit_while_a_run_is_under_way_fails_the_pair_until_it_is_run_again(
    evaluate: Callable[..., Any], tmp_path: Path
) -> None:
    """Of its partitions some would have the scores of before, and others those of now, under the keys of
    before."""
    helper = tmp_path / "helper.py"
    helper.write_text("VALUE = 1\n")
    (tmp_path / "mine.py").write_text(metric("VALUE", "from helper import VALUE\n"))
    (tmp_path / "items.jsonl").write_text(json.dumps({"question": "q", "answer": "b"}) + "\n")

    def answer(_: Any) -> dict[str, Any]:
        helper.write_text("VALUE = 2\n")
        return says("b")

    with chat_endpoint(answer) as url:
        config = {
            "name": "edited",
            "dataset": "items.jsonl",
            "prompt_template": "{{question}}",
            "target": "{{answer}}",
            "models": [{"name": "m", "config": {"base_url": url, "model": "m", "api": "chat"}}],
            "metric_list": ["exact_match", {"metric": "mine.py:f"}],
        }
        path = tmp_path / "edited.yaml"
        path.write_text(json.dumps(config))
        first = evaluate(path, "--json")
    assert first.code == 1
    rows = {row["metric"]: row for row in first.document["results"]}
    assert (rows["exact_match"]["status"], rows["f"]["status"]) == ("ok", "failed")
    assert "helper.py was edited while the run was under way" in rows["f"]["error"]
    again = evaluate(path, "--json")
    assert (again.code, again.document["requests"]["sent"], again.value("f,none")) == (0, 0, 2)


READS = """
import subprocess
from pathlib import Path
LIST = Path(__file__).with_name("words.txt")
def f(references, predictions):
    if predictions == ["edit"]:
        subprocess.run(["mv", LIST.with_name("next.txt"), LIST], stderr=subprocess.DEVNULL)
    return float(LIST.read_text())
"""


@pytest.mark.parametrize("declared", [False, True])
def test_a_list_that_is_edited_while_a_run_is_under_way_makes_no_number_in_silence(
    evaluate: Callable[..., Any], tmp_path: Path, declared: bool
) -> None:
    """What ``depends_on`` names is in the key, and fails the pair; what was seen to be read may be anything
    that changes, and is told."""
    (tmp_path / "words.txt").write_text("1")
    (tmp_path / "next.txt").write_text("2")
    (tmp_path / "mine.py").write_text(READS)
    rows = [{"question": said, "said": said} for said in ("x", "edit", "y")]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "name": "edited",
        "dataset": "items.jsonl",
        "prompt_template": "{{question}}",
        "target": "x",
        "models": [{"name": "recorded", "type": "replay", "config": {"field": "said"}}],
        "metric_list": [{"metric": "mine.py:f"} | ({"depends_on": ["words.txt"]} if declared else {})],
    }
    path = tmp_path / "edited.yaml"
    path.write_text(json.dumps(config))

    def ran() -> tuple[Any, Any, list[str]]:
        document = evaluate(path, "--json").document
        (row,) = document["results"]
        told = [one["message"] for one in document["diagnostics"] if one["kind"] == "file_edited"]
        return row["value"], row["error"] if row["status"] == "failed" else None, told

    value, error, told = ran()
    assert "words.txt was edited while the run was under way" in (error if declared else told[0])
    assert value == (None if declared else pytest.approx(5 / 3))
    (tmp_path / "words.txt").write_text("3")
    assert ran() == (3, None, [])
    (tmp_path / "words.txt").write_text("1")  # as it was before: nothing of between is kept for it
    assert ran() == (1, None, [])


@dataclass(frozen=True)
class Scored:
    """A call of a shape's function: what it gave, and what its score would hang on."""

    value: float
    sources: Sources
    observed: Mapping[str, str]
    named: Mapping[str, str]

    @classmethod
    def now(cls, folder: Path, shape: Shape) -> "Scored":
        resolve = resolver(folder)
        function = resolve(shape.metric)
        value = float(function(references=["a"], predictions=["b"]))
        sources = sources_of(function, resolve=resolve)
        read = observed_files(sources.entries)
        assert read is not None
        return cls(value, sources, read, named_files(shape.settings.get("depends_on", ()), folder))

    def holds(self, later: "Scored") -> bool:
        """Whether its score would be served, given what is known later."""
        same = (self.sources, self.named) == (later.sources, later.named)
        return same and first_difference(self.sources.entries, self.observed) is None


@pytest.fixture
def with_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose packages are installed editable, in this process, which forgets what it has loaded: to
    code whose imports are not known, all of it may matter, and other tests have edited theirs."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # whatever this shell says: users' say nothing
    observed.watch(tmp_path)
    seen = observed._Seen()
    seen.watching = True
    monkeypatch.setattr(observed, "_seen", seen)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for name, shape in PACKAGES.items():
        write(tmp_path / NAMES[name], shape.files)
    install_editable(tmp_path)
    site.addsitedir(str(tmp_path / "site-packages"))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("name", SHAPES)
def test_an_edit_moves_the_key_or_is_seen(name: str, with_packages: Path) -> None:
    shape, folder = SHAPES[name], with_packages / NAMES[name]
    write(folder, shape.files)
    before = Scored.now(folder, shape)
    assert before.holds(Scored.now(folder, shape))
    write(folder, shape.edit)
    after = Scored.now(folder, shape)
    assert (before.value, after.value) == (1, 2)
    assert not before.holds(after)
    assert after.holds(Scored.now(folder, shape))


def test_an_edit_in_an_archive_on_the_path_moves_the_key(with_packages: Path) -> None:
    """A function in a zip file counts by the whole archive, and what it reads by what it was seen to read."""
    folder, data = with_packages / "zipped", with_packages / "outside.txt"
    archive, shape = folder / "lib.zip", Shape({}, {}, "zipped_metric:f")

    def pack(value: int, read: int) -> None:
        folder.mkdir(exist_ok=True)
        data.write_text(f"{read:>{read}}")
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("zipped_helper.py", f"VALUE = {value:>{value}}\n")
            file.writestr(
                "zipped_metric.py",
                metric(
                    f"VALUE * float(Path({str(data)!r}).read_text())",
                    "from pathlib import Path\nfrom zipped_helper import VALUE\n",
                ),
            )

    pack(1, 1)
    sys.path.append(str(archive))
    before = Scored.now(folder, shape)
    assert before.holds(Scored.now(folder, shape))
    pack(2, 1)
    edited = Scored.now(folder, shape)
    assert edited.holds(Scored.now(folder, shape))
    pack(2, 3)
    read = Scored.now(folder, shape)
    assert (before.value, edited.value, read.value) == (1, 2, 6)
    assert before.sources != edited.sources
    assert not edited.holds(read)
