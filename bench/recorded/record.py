"""Writes anew what other programs write, as fixtures of the tests of ``--from-…``.

    python -m bench.recorded.record PROGRAM=PYTHON …

``PROGRAM`` is ``lighteval``, ``opencompass`` or ``lm_eval``, ``PYTHON`` that of an environment which has it:
lighteval 0.13.0 (``lighteval==0.13.0 'xxhash<4'``), OpenCompass 0.5.4 (``opencompass==0.5.4 'numpy<2'
'pyarrow<20' 'transformers<4.50' 'setuptools<81'``) or the harness (``lm-eval[api]``), which evaluates the
definitions of the tests. Nothing is fetched. The files are kept as they were written, byte for
byte, in ``tests/fixtures/recorded/PROGRAM.tar.xz``, with ``VERSION`` beside them.
"""

import io
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tasks.benchmarks.lm_eval import build_index

TESTS = Path(__file__).parents[2] / "tests"
FIXTURES = TESTS / "fixtures" / "recorded"
CASES = TESTS / "tasks" / "benchmarks" / "lm_eval" / "cases"
PROGRAMS = ("lighteval", "opencompass", "lm_eval")
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "LIGHTEVAL_DISABLE_TQDM": "1",
    "DISABLE_MULTIPROC": "1",
}


def archived(folder: Path) -> bytes:
    """The files of a folder as an archive that says nothing of this machine."""
    packed = io.BytesIO()
    with (
        lzma.open(packed, "wb", preset=9 | lzma.PRESET_EXTREME) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size = path.stat().st_size
            archive.addfile(entry, io.BytesIO(path.read_bytes()))
    return packed.getvalue()


def command(program: str, folder: Path, definitions: Path) -> list[str]:
    """The script that has the program write into ``folder``, and its arguments."""
    if program != "lm_eval":
        return [str(Path(__file__).with_name(f"peer_{program}.py")), str(folder)]
    index = build_index([definitions])
    names = sorted(name for name, entry in index.entries.items() if entry.kind == "benchmark")
    return [str(Path(__file__).parents[1] / "lm_eval" / "peer_run.py"), str(definitions), str(folder), *names]


def record(program: str, python: str) -> None:
    version = f"from importlib.metadata import version; print(version({program!r}))"
    with tempfile.TemporaryDirectory() as temporary:
        folder, definitions = Path(temporary, "written"), Path(temporary, "cases")
        folder.mkdir()
        shutil.copytree(CASES, definitions)
        environment = {**os.environ, **OFFLINE, "HF_DATASETS_CACHE": f"{temporary}/cache"}
        run = [python, *command(program, folder, definitions)]
        subprocess.run(run, cwd=definitions, env=environment, check=True)
        told = subprocess.run([python, "-c", version], capture_output=True, text=True, check=True)
        (folder / "VERSION").write_text(told.stdout)
        FIXTURES.mkdir(exist_ok=True)
        (FIXTURES / f"{program}.tar.xz").write_bytes(archived(folder))


def main() -> int:
    named = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
    if not named or not all(name in PROGRAMS and python for name, python in named.items()):
        print(__doc__, file=sys.stderr)
        return 2
    for name, python in named.items():
        record(name, python)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
