"""Logs that lighteval, OpenCompass and the harness wrote themselves have their numbers here; those of Inspect
are made anew in ``test_from_inspect.py``.

The files are in ``fixtures/recorded``, byte for byte; ``python -m bench.recorded.record`` writes them anew.
"""

import json
import math
import re
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.benchmarks.recorded.run import pair_name

Evaluate = Callable[..., Any]
FIXTURES = Path(__file__).parents[1] / "fixtures" / "recorded"
CASES = Path(__file__).parents[1] / "tasks" / "benchmarks" / "lm_eval" / "cases"
"""The definitions of the harness's benchmarks."""
VERSIONS = {"lighteval": "0.13.0", "opencompass": "0.5.4", "lm_eval": "0.4.13"}


def names(program: str, pattern: str) -> list[str]:
    with tarfile.open(FIXTURES / f"{program}.tar.xz") as archive:
        return [name for name in archive.getnames() if re.fullmatch(pattern, name)]


DETAILS = names("lighteval", r"details/.*\.parquet")
RESULTS = names("opencompass", r"results/.*\.json")
SAMPLES = names("lm_eval", r".*/samples_.*\.jsonl")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of each program."""
    folder = tmp_path_factory.mktemp("written")
    for program, version in VERSIONS.items():
        with tarfile.open(FIXTURES / f"{program}.tar.xz") as archive:
            archive.extractall(folder / program, filter="data")
        assert (folder / program / "VERSION").read_text().strip() == version
    return folder


@dataclass(frozen=True)
class Imported:
    """What an evaluation of a folder printed and wrote."""

    told: str
    runs: Mapping[str, Any]

    def rows(self, benchmark: str) -> dict[str, Any]:
        return {row["metric"]: row for row in self.runs[benchmark]["results"]}

    def answers(self, benchmark: str) -> dict[tuple[str, int], str]:
        """What was answered, by item and sample."""
        lines = (Path(self.runs[benchmark]["output"]) / "responses.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return {(one["item_id"], one["sample_index"]): one["response"] for one in found}


@pytest.fixture(scope="module")
def known() -> dict[str, Imported]:
    return {}


@pytest.fixture
def imported(evaluate: Evaluate, written: Path, known: dict[str, Imported]) -> Callable[[str, str], Imported]:
    """The runs of a folder of a program, evaluated once a worker."""

    def call(program: str, folder: str) -> Imported:
        if folder not in known:
            flags = (
                ["--from-samples", "--include-path", CASES] if program == "lm_eval" else [f"--from-{program}"]
            )
            ran = evaluate(flags[0], written / program / folder, *flags[1:], "--json")
            assert ran.code == 0, ran.err
            runs = {run["benchmark"]: run for run in ran.document["runs"]}
            assert all(run["requests"]["sent"] == 0 for run in runs.values())
            known[folder] = Imported(ran.err, runs)
        return known[folder]

    return call


def test_there_are_twenty_logs_of_each() -> None:
    assert len(DETAILS) >= 20
    assert len(RESULTS) >= 20
    assert len(SAMPLES) >= 20


@pytest.mark.parametrize("name", DETAILS, ids=lambda name: re.sub("/[0-9].*details_|_[0-9-]+T.*", " ", name))
def test_details_of_lighteval_have_its_numbers_and_errors(
    name: str, imported: Callable[[str, str], Imported], written: Path
) -> None:
    folder, date, file = name.rsplit("/", 2)
    task = file.removeprefix("details_").partition(f"_{date}")[0]
    results = folder.replace("details", "results", 1)
    document = json.loads((written / "lighteval" / results / f"results_{date}.json").read_text())
    theirs, metrics = document["results"][task], document["config_tasks"][task]["metrics"]
    functions = {
        one: function[one] if isinstance(function := metric["corpus_level_fn"], dict) else function
        for metric in metrics
        for one in (
            metric["metric_name"] if isinstance(metric["metric_name"], list) else [metric["metric_name"]]
        )
    }
    means = [one for one, function in functions.items() if function == "mean" and not math.isnan(theirs[one])]
    found, benchmark = imported("lighteval", folder), re.sub("[|:]", "-", task)
    others = set(functions) - set(means)
    for one in others:
        assert re.search(f"{re.escape(file)}: .*'{re.escape(one)}'", found.told), one
    if benchmark not in found.runs:
        assert f"{file}: none of its samples has a score; it is left out" in found.told
        assert not means
        return
    rows, size = found.rows(benchmark), 14 if "two_splits" in task else 9
    assert {*map(pair_name, means)} <= set(rows)
    for one in means:
        row = rows[pair_name(one)]
        assert row["value"] == pytest.approx(theirs[one], rel=1e-12)
        assert row["stderr"] == pytest.approx(theirs[f"{one}_stderr"], rel=1e-9)
        assert (row["n_items"], row["n_unscored"]) == (size, 0)
    # Another number of lighteval's is here under another name, or it has none since samples have none.
    assert set(rows) - {*map(pair_name, means)} <= {pair_name(f"{one}_mean") for one in others} | {
        one for one in others if math.isnan(theirs[one])
    }
    answers = found.answers(benchmark)
    assert len(answers) == size
    for sample in pq.read_table(written / "lighteval" / name, partitioning=None).to_pylist():
        said = sample["model_response"]["text_post_processed"] or sample["model_response"]["text"]
        assert not said or said[0] in answers.values()
        if said and size == 9:
            assert answers[sample["doc"]["id"], 0] == said[0]


def test_less_is_better_where_lighteval_says_so(imported: Callable[[str, str], Imported]) -> None:
    rows = imported("lighteval", next(name for name in DETAILS if "copied" in name).rsplit("/", 2)[0]).rows(
        "copied-0"
    )
    assert {name for name, row in rows.items() if not row["higher_is_better"]} == {"edit_distance_mean"}


COUNTED = re.compile(r"(accuracy|score|acc_circular|rouge1)( \(\d+ runs average\))?")
"""OpenCompass's numbers that are means over samples."""


@pytest.mark.parametrize("name", RESULTS)
def test_results_of_opencompass_have_its_numbers(
    name: str, imported: Callable[[str, str], Imported], written: Path
) -> None:
    _, model, file = name.split("/")
    result = json.loads((written / "opencompass" / name).read_text())
    details, benchmark = result.pop("details"), file.removesuffix(".json")
    found = imported("opencompass", f"results/{model}")
    if benchmark not in found.runs:
        assert f"{file}: its details have no score for each sample" in found.told
        assert not any("correct" in one for one in details.values() if isinstance(one, dict))
        return
    ((pair, row),) = found.rows(benchmark).items()
    (theirs,) = (value for key, value in result.items() if COUNTED.fullmatch(key))
    if benchmark == "perplexity_twice":  # that of the second time alone
        assert f"none of OpenCompass's numbers: 'accuracy' is {theirs:.6g}" in found.told
    else:
        assert row["value"] * (1 if pair == "score" else 100) == pytest.approx(theirs, rel=1e-12)
    if any(value != theirs for value in result.values()):
        assert f"{file}: left out, as they are no mean of a score of samples: '" in found.told
    predictions = written / "opencompass" / "predictions" / model
    count = len([*predictions.glob(f"{benchmark}_[0-9].json")])
    parts = [predictions / f"{benchmark}_{place}.json" for place in range(count)] or [predictions / file]
    texts = [one["prediction"] for part in parts for one in json.loads(part.read_text()).values()]
    times = {"twice": 2, "thrice": 3, "four": 4, "g_pass": 4, "five": 5}
    repeats = next((count for word, count in times.items() if word in benchmark), 1)
    assert (row["n_items"] * repeats, row["n_samples"]) == (len(texts), len(texts))
    answers = found.answers(benchmark)
    examples = len(texts) // repeats
    assert answers == {(str(place % examples), place // examples): text for place, text in enumerate(texts)}


@pytest.mark.parametrize("name", SAMPLES, ids=lambda name: re.sub(".*samples_|_[0-9-]+T.*", "", name))
def test_sample_logs_of_the_harness_have_its_numbers_and_errors(
    name: str, imported: Callable[[str, str], Imported], written: Path
) -> None:
    folder, file = name.split("/")
    task, _, time = file.removeprefix("samples_").removesuffix(".jsonl").rpartition("_")
    document = json.loads((written / "lm_eval" / folder / f"results_{time}.json").read_text())
    theirs = {key: value for key, value in document["results"][task].items() if isinstance(value, float)}
    found = imported("lm_eval", folder)
    rows = {f"{row['metric']},{row['filter']}": row for row in found.runs[task]["results"]}
    numbers = {key: value for key, value in theirs.items() if "_stderr" not in key}
    assert {key: row["value"] for key, row in rows.items()} == pytest.approx(numbers, rel=1e-9)
    definitions = {one["metric"]: one for one in document["configs"][task].get("metric_list", ())}
    for key in numbers:
        metric, _, chosen = key.partition(",")
        if definitions.get(metric, {}).get("aggregation") == "mean":
            assert rows[key]["stderr"] == pytest.approx(theirs[f"{metric}_stderr,{chosen}"], rel=1e-9), key
        assert rows[key]["n_items"] == document["n-samples"][task]["effective"]
