"""Benchmarks of the harness's own collection on made rows, by lm-evaluation-harness and by this project.

    python -m bench.lm_eval.made [--peer PYTHON] [--seed N]… [--leaves N] [--only NAME]… [--keep DIR]

The rows come from ``tasks.benchmarks.lm_eval.shapes``: a seeded generator that reads which columns a
definition's templates and functions use. Both programs ask the embedded server, which answers with words of
the document that is asked about (``answers``). Requests, responses, the
values of every sample and every aggregate have to be equal to 1e-6; what differs on purpose is in
``DOCUMENTED`` and in docs/lm-evaluation-harness.md. A seed has to compare 150 benchmarks of 90 families: what
the peer itself fails on is shown and not counted. Benchmarks whose files import packages need the extra
``harness`` in this Python too.
"""

import argparse
import json
import os
import random
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from bench.lm_eval.answers import Answers, Document
from bench.lm_eval.comparing import Comparison, compare
from bench.lm_eval.peer import ABSENT, peer_python
from bench.lm_eval.runs import OFFLINE, Asked, by_this_project, home
from bench.lm_eval.served import byte_tokenizer
from flows.config.load import load_configs
from metrics.errors import NightjarError
from tasks.benchmarks.lm_eval.select import yaml_files
from tasks.benchmarks.lm_eval.shapes import RowMaker
from tasks.benchmarks.lm_eval.trial import Trial, Trials
from tasks.benchmarks.lm_eval.yaml import Reader
from tasks.models.demo import protocol
from tasks.models.demo.server import serve

SEEDS = (1, 2, 3)
LEAVES, EACH = 172, 2
COMPARED, FAMILIES = 150, 90
"""How many benchmarks are tried, of a family at most; how many have to be compared, of how many families."""
ROWS, MAX_LENGTH, AT_ONCE = 5, 60_000, 40

FIRST = (
    "afrobench/masakhaner/prompt_1/masakhaner_ny.yaml", "minerva_math/minerva_math_geometry.yaml",
    "leaderboard/math/math_num_theory.yaml", "putnam_axiom/putnam_axiom_original.yaml",
    "gpqa/n_shot/gpqa_main_n_shot.yaml", "eq_bench/default.yaml", "gsm8k/gsm8k-cot-llama.yaml",
)  # fmt: skip
"""Benchmarks that failed here once, which are always among those compared."""

DOCUMENTED: Mapping[str, str] = {
    f"gpqa_{part}_n_shot": "the harness draws anew at each look at the documents, and here once"
    for part in ("diamond", "extended", "main")
}
"""Benchmark → why it differs, as docs/lm-evaluation-harness.md has it."""


@dataclass(frozen=True)
class Leaf:
    """One benchmark of the collection that runs on made rows."""

    name: str
    family: str
    path: Path
    config: Mapping[str, Any]
    trial: Trial

    def splits(self) -> list[str]:
        """Every split that the definition names."""
        fewshot = self.config.get("fewshot_config") or {}
        names = [self.config.get(f"{kind}_split") for kind in ("training", "validation", "test", "fewshot")]
        return list(dict.fromkeys(name for name in (*names, fewshot.get("split")) if name is not None))

    def write(self, folder: Path, seed: int) -> list[Document]:
        """Writes its rows, a file each split, and a definition that takes the collection's and them; returns
        what is known of the rows."""
        files, made = {}, []
        for split in self.splits():
            maker = RowMaker(self.trial.shape, seed * 1000 + sum(map(ord, split)), self.trial.guesses)
            rows = maker.rows(ROWS)
            made += [Document.of(row, self.config.get("doc_to_target")) for row in rows]
            file = folder / "data" / f"{self.path.stem}-{self.name}-{split}.jsonl".replace("/", "_")
            file.parent.mkdir(exist_ok=True)
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            file.write_text(text, encoding="utf-8")
            files[split] = str(file)
        definition = {
            "include": str(self.path), "task": self.name, "dataset_path": "json", "dataset_name": None,
            "dataset_kwargs": {"data_files": files},
        }  # fmt: skip
        (folder / f"{self.name}.yaml".replace("/", "_")).write_text(yaml.safe_dump(definition))
        return made


def find_leaves(folder: Path, only: Sequence[str], count: int, trials: Trials) -> Iterator[Leaf]:
    """Benchmarks of as many families as there are, ``EACH`` of a family at most, in a fixed order."""
    paths = list(yaml_files(folder))
    random.Random(0).shuffle(paths)
    paths.sort(key=lambda path: path.relative_to(folder).as_posix() not in FIRST)
    reader, found, families = Reader(), 0, Counter[str]()
    for path in paths:
        family = path.relative_to(folder).parts[0]
        if only:
            text = path.read_text(encoding="utf-8", errors="replace")
            if not any(name in text for name in only):
                continue
        elif families[family] >= EACH or found >= count:
            continue
        try:
            configs = load_configs(path, (), strict=False, reader=reader)
            if len(configs) != 1 or (only and configs[0].name not in only):
                continue
            harness = configs[0].harness or {}
            trial = trials.try_definition(harness, configs[0].base_dir, configs[0].scoring())
        except NightjarError:
            continue
        if trial.ran and harness["config"].get("output_type", "generate_until") != "bypass":
            families[family] += 1
            found += 1
            yield Leaf(harness["task"], family, path, harness["config"], trial)


def by_the_harness(peer: str, asked: Asked, output: Path) -> dict[str, str]:
    """Its runs, one by one; returns what failed."""
    arguments = {
        "model": asked.model, "base_url": f"{asked.base_url}/completions", "tokenizer": str(asked.tokenizer),
        "max_length": asked.max_length, "tokenized_requests": True, "num_concurrent": 4,
    }  # fmt: skip
    text = ",".join(f"{name}={value}" for name, value in arguments.items())
    script = str(Path(__file__).with_name("peer_made.py"))
    output.mkdir()
    run = subprocess.run(
        [peer, script, str(asked.definitions), str(output), text, *asked.names],
        env={**os.environ, **OFFLINE, "TQDM_DISABLE": "1"}, cwd=asked.definitions, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    if not (output / "failed.json").is_file():
        raise SystemExit(f"the peer failed:\n{run.stderr[-3000:]}")
    failed: dict[str, str] = json.loads((output / "failed.json").read_text())
    return failed


def by_us(asked: Asked, output: Path, environment: dict[str, str]) -> dict[str, str]:
    """Our runs, some in one process; a command that is refused is taken apart. Returns what failed."""
    failed: dict[str, str] = {}
    waiting = [asked.names[at : at + AT_ONCE] for at in range(0, len(asked.names), AT_ONCE)]
    while waiting:
        names = waiting.pop()
        folder = output / f"{len(list(output.parent.iterdir()))}-{names[0]}".replace("/", "_")
        run = by_this_project(replace(asked, names=names), folder, environment)
        if run.returncode in (0, 1) and list(folder.rglob("results_*.json")):
            continue
        if len(names) == 1:
            failed[names[0]] = " ".join((run.stderr.strip() or run.stdout.strip()).split())[-400:]
            continue
        middle = len(names) // 2
        waiting += [names[:middle], names[middle:]]
    return failed


def run(peer: str, leaves: Sequence[Leaf], seed: int, place: Path) -> dict[str, list[Leaf]]:
    """Prints a seed's table; returns which benchmarks came out how."""
    definitions, outcomes = place / "definitions", defaultdict[str, list[Leaf]](list)
    definitions.mkdir(parents=True)
    answers = Answers([one for leaf in leaves for one in leaf.write(definitions, seed)])
    names = [leaf.name for leaf in leaves]
    with patch.object(protocol, "respond", answers), serve() as server, home(place / "home") as environment:
        tokenizer = byte_tokenizer(place / "tokenizer")
        asked = Asked(definitions, names, server.base_url, "demo", tokenizer, MAX_LENGTH)
        theirs = by_the_harness(peer, asked, place / "peer")
        comparable = [name for name in names if name not in theirs]
        ours = by_us(replace(asked, names=comparable), place / "own", environment)
    print(f"\nseed {seed}")
    for leaf in sorted(leaves, key=lambda one: (one.family, one.name)):
        outcome, said, scored = _outcome(leaf.name, theirs, ours, place)
        outcomes["scored above 0"] += [leaf] * scored
        outcomes[outcome].append(leaf)
        print(f"{outcome:10} {leaf.family:28} {said}", flush=True)
    return outcomes


def _outcome(
    name: str, theirs: Mapping[str, str], ours: Mapping[str, str], place: Path
) -> tuple[str, str, bool]:
    """How a benchmark came out, what is said of it, and whether its samples' values are not all 0."""
    if name in theirs:
        return "peer fails", f"{name}: {' '.join(theirs[name].split())[:160]}", False
    if name in ours:
        return "FAILS HERE", f"{name}: {ours[name]}", False
    comparison: Comparison = next(iter(compare(place / "peer" / name, place / "own", [name])))
    if comparison.wrong and name in DOCUMENTED:
        return "documented", f"{name}: {DOCUMENTED[name]}", comparison.scored
    return ("DIFFERS" if comparison.wrong else "equal"), comparison.line(), comparison.scored


def main() -> int:
    """Runs all seeds; exits 1 where anything differs that is not documented."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", help="python with lm-eval[api] and transformers")
    parser.add_argument("--seed", type=int, action="append", help="of the rows; several by default")
    parser.add_argument("--leaves", type=int, default=LEAVES)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--keep", type=Path, help="folder to leave everything in")
    options = parser.parse_args()
    peer = peer_python(options.peer, "transformers")
    if peer is None:
        print(f"skipped: {ABSENT}")
        return 0
    where = "import lm_eval; print(list(lm_eval.__path__)[0])"
    found = subprocess.run([peer, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    with Trials() as trials:
        leaves = list(find_leaves(Path(found, "tasks"), options.only, options.leaves, trials))
    print(f"{len(leaves)} benchmarks of {len({leaf.family for leaf in leaves})} families run on made rows")
    complete = find_spec("lm_eval") is not None
    if not complete:
        print("without those whose files import packages: this Python lacks the extra harness")
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        for seed in options.seed or SEEDS:
            outcomes = run(peer, leaves, seed, (options.keep or Path(temporary)) / f"seed-{seed}")
            compared = [leaf for one in ("equal", "documented") for leaf in outcomes[one]]
            families = len({leaf.family for leaf in compared})
            counts = ", ".join(f"{len(found)} {one}" for one, found in sorted(outcomes.items()))
            print(f"seed {seed}: {counts}; {len(compared)} benchmarks of {families} families compared")
            few = len(compared) < COMPARED or families < FAMILIES
            if outcomes["DIFFERS"] or outcomes["FAILS HERE"] or (few and complete and not options.only):
                good = False
    return int(not good)


if __name__ == "__main__":
    raise SystemExit(main())
