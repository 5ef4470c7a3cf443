"""Whatever code of the program a stage is seen to run is in the stage's key."""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tasks.store import fingerprint
from tasks.store.home import PROJECT
from tasks.store.imports import PACKAGES
from tasks.store.storage import Store

OURS = tuple(f"{PROJECT / name}/" for name in PACKAGES)
DEMO = "models=[{name: demo, type: demo}]"
CASES = PROJECT / "tests" / "tasks" / "benchmarks" / "lm_eval" / "cases"


class Runs:
    """The files of the program whose functions run in a thread while a stage makes rows there."""

    def __init__(self) -> None:
        self.files: dict[str, set[str]] = defaultdict(set)
        self._write = Store.write

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Inside the block what this thread calls is run by the stage."""
        own = self.files[stage]

        def seen(frame: FrameType, event: str, _: Any) -> None:
            if event == "call":
                own.add(frame.f_code.co_filename)

        before = sys.getprofile()
        sys.setprofile(seen)
        try:
            yield
        finally:
            sys.setprofile(before)

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Looks at every row that is made for an artifact."""
        runs = self

        def write(store: Store, kind: str, key: str, schema: Any, batches: Iterable[Any], *more: Any) -> Any:
            function = getattr(batches, "gi_code", None)  # a stage's rows are those of its function
            of_stage = function is not None and Path(function.co_filename).parent == PROJECT / "tasks"
            stage = module_of(function.co_filename) if function and of_stage else f"tasks.{kind}"

            def watched() -> Iterator[Any]:
                rows = iter(batches)
                while True:
                    with runs.of(stage):
                        try:
                            batch = next(rows)
                        except StopIteration:
                            return
                    yield batch

            return runs._write(store, kind, key, schema, watched(), *more)

        monkeypatch.setattr(Store, "write", write)

    def modules(self) -> Iterator[tuple[str, str]]:
        """Each stage's module with each module of the program that it ran."""
        for stage, files in self.files.items():
            for file in files:
                if file.startswith(OURS):
                    yield stage, module_of(file)


def module_of(file: str) -> str:
    parts = Path(file).relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    found = Runs()
    found.watch(monkeypatch)
    return found


CONFIGS: dict[str, Callable[[], list[str | Path]]] = {
    "the demo": lambda: ["--limit", "3"],
    "a benchmark of the harness": lambda: [CASES / "answers.yaml", "--set", DEMO, "--limit", "3"],
}


@pytest.mark.parametrize("config", CONFIGS)
def test_every_module_that_a_stage_runs_is_in_its_key(
    config: str, runs: Runs, evaluate: Callable[..., Any]
) -> None:
    evaluate(*CONFIGS[config](), "--json", "--workers", "1")
    ran = sorted(set(runs.modules()))
    expected = {f"tasks.{name}" for name in ("load", "render", "infer", "filter", "score", "reduce")}
    assert expected <= {stage for stage, _ in ran}
    assert [
        (stage, module)
        for stage, module in ran
        if fingerprint._package_of(module) not in fingerprint.packages_behind(stage)
    ] == []


def test_an_edit_of_each_module_moves_the_digest_of_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the test above: an edit of a module that a stage runs moves the stage's key."""
    fresh = fingerprint.package_digest.__wrapped__
    original = fingerprint._source
    for module, file in fingerprint._modules().items():
        package = fingerprint._package_of(module)
        before = fresh(package)
        edited = fingerprint._Source("edited", original(file).imports)
        with monkeypatch.context() as patched:
            patched.setattr(
                fingerprint, "_source", lambda path, f=file, e=edited: e if path == f else original(path)
            )
            assert fresh(package) != before, module
