"""Resolves and validates every definition of a checkout: how many, how long, and why the rest is refused.

    python bench/lm_eval/zoo.py [FOLDER]

FOLDER is the harness's ``tasks`` folder (default: that of an installed lm-eval; without one the bench is
skipped, saying so). Wanted: at least 99 % resolved, in under two minutes on one core, and nothing of the
harness imported.
"""

import argparse
import re
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


def default_folder() -> Path | None:
    """The ``tasks`` folder of an installed lm-eval."""
    spec = find_spec("lm_eval")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0], "tasks") if places else None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=default_folder())
    folder = parser.parse_args().folder
    if folder is None or not folder.is_dir():
        print("skipped: lm-eval is not installed here; name the 'tasks' folder of a checkout")
        return
    started = time.process_time()
    from tasks.benchmarks.lm_eval import resolve_many
    from tasks.benchmarks.lm_eval.read.index import yaml_files

    paths = list(yaml_files(folder))
    entries = resolve_many(paths)["configs"]
    seconds = time.process_time() - started
    refused = [entry for entry in entries if entry["status"] != "ok"]
    reasons = Counter(re.sub(r"\S*/\S+\.yaml:? ?", "", entry["reason"]) for entry in refused)
    share = 1 - len(refused) / len(entries)
    print(f"{len(entries)} definitions, {share:.2%} resolved in {seconds:.1f} s of one core")
    for reason, count in reasons.most_common():
        print(f"{count:5}  {reason}")
    imported = sorted(name for name in sys.modules if name.partition(".")[0] in ("lm_eval", "datasets"))
    print(f"imported of the harness: {', '.join(imported) or 'nothing'}")
    raise SystemExit(share < 0.99 or seconds > 120 or bool(imported))


if __name__ == "__main__":
    main()
