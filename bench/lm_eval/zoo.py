"""Every definition of a checkout: how many resolve, how many import, and how many run on made rows.

    python -m bench.lm_eval.zoo [FOLDER] [--sample N]

FOLDER is the harness's ``tasks`` folder (default: that of an installed lm-eval; without one the bench is
skipped, saying so); ``--sample`` takes that many of its files at random. Wanted, with the extra ``harness``
installed: at least 99 % resolve, 97 % import, and 95 % of those that generate or choose run; the rest is
listed by reason. Functions run in a process that is ended where one never returns, which then counts as one
that does not run.
"""

import argparse
import os
import random
import re
import time
import warnings
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.benchmarks.lm_eval.trial import Trials
    from tasks.benchmarks.lm_eval.yaml import Reader

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TQDM_DISABLE": "1"}
WANTED = {"resolve": 0.99, "import": 0.97, "run": 0.95}
TRIED = ("generate_until", "multiple_choice")
REASONS = 40


def default_folder() -> Path | None:
    """The ``tasks`` folder of an installed lm-eval."""
    spec = find_spec("lm_eval")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0], "tasks") if places else None


class Figures:
    """What came of the definitions so far."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[bool]] = {step: Counter() for step in WANTED}
        self.reasons: Counter[str] = Counter()

    def note(self, step: str, reason: str | None) -> bool:
        """Counts one outcome; a reason says why it is none."""
        self.counts[step][reason is None] += 1
        if reason is not None:
            short = re.sub(r"\S*/\S+\.(yaml|py):? ?", "", reason)
            self.reasons[f"{step}: {re.sub(r'^benchmark [^:]*: ', '', short)[:110]}"] += 1
        return reason is None

    def share(self, step: str) -> float:
        """The share that came that far, of those that were to."""
        count = self.counts[step]
        return count[True] / max(count.total(), 1)


def look(path: Path, figures: Figures, reader: "Reader", trials: "Trials") -> None:
    """Resolves, imports and runs what one file defines; a group is looked at by its members' own files."""
    from flows.config.load import load_configs
    from metrics.errors import NightjarError

    try:
        configs = load_configs(path, (), strict=False, reader=reader)
    except NightjarError as error:
        figures.note("resolve", str(error))
        return
    figures.note("resolve", None)
    config = configs[0]
    if len(configs) != 1 or config.harness is None:
        return
    try:
        trials.import_functions(config.harness, config.base_dir)
    except NightjarError as error:
        figures.note("import", str(error))
        return
    figures.note("import", None)
    if config.output_type in TRIED:
        try:
            trial = trials.try_definition(config.harness, config.base_dir, config.scoring())
            figures.note("run", trial.reason)
        except NightjarError as error:
            figures.note("run", str(error))


def main() -> int:
    """Looks at all files and prints the three figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=default_folder())
    parser.add_argument("--sample", type=int, help="that many files, at random")
    options = parser.parse_args()
    if options.folder is None or not options.folder.is_dir():
        print("skipped: lm-eval is not installed here; name the 'tasks' folder of a checkout")
        return 0
    os.environ.update(OFFLINE)
    warnings.simplefilter("ignore")
    from tasks.benchmarks.lm_eval.select import yaml_files
    from tasks.benchmarks.lm_eval.trial import Trials
    from tasks.benchmarks.lm_eval.yaml import Reader

    started = time.monotonic()
    paths, reader, figures = list(yaml_files(options.folder)), Reader(), Figures()
    if options.sample:
        paths = sorted(random.Random(0).sample(paths, options.sample))
    with Trials() as trials:
        for path in paths:
            look(path, figures, reader, trials)
    print(f"{len(paths)} files in {time.monotonic() - started:.0f} s")
    for step, wanted in WANTED.items():
        count = figures.counts[step]
        print(
            f"{step:8} {count[True]:6} of {count.total():6}: {figures.share(step):7.2%} (wanted {wanted:.0%})"
        )
    for reason, times in figures.reasons.most_common(REASONS):
        print(f"{times:6}  {reason}")
    return int(any(figures.share(step) < wanted for step, wanted in WANTED.items()))


if __name__ == "__main__":
    raise SystemExit(main())
