"""Writes what the harness writes: ``results_<time>.json``, groups included, and
``samples_<task>_<time>.jsonl``.

The sample logs are made from a run's own sample file. The command line writes them for runs by
``--tasks``.

Of metrics that a whole benchmark's number is made of, the harness logs what its aggregation is given:
``f1: [gold, chosen]``, ``word_perplexity: [log-likelihood, words]``, ``bleu: [reference, answer]``.
Aggregating its logs again needs these; this program keeps statistics of them instead, from which they
can't be told, so that they are computed again here.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from metrics.statistics.estimate import group_aggregate
from metrics.types import Estimate
from tasks.benchmarks.lm_eval.about import HarnessCommand, about_run, folder_name
from tasks.benchmarks.lm_eval.documents import Fields, gold_indices
from tasks.benchmarks.lm_eval.rescoring import LogRow, likelihoods_of
from tasks.benchmarks.lm_eval.select import Aggregate, Group
from tasks.benchmarks.lm_eval.yaml import decoded
from tasks.store.home import write_json, write_lines
from tasks.store.keys import sample_hashes
from tasks.store.outputs import MANIFEST
from tasks.usercode.load import UserModules

OF_DOCUMENTS: Final[Mapping[str, Callable[[str], int]]] = {
    "word_perplexity": lambda text: len(re.split(r"\s+", text)),
    "byte_perplexity": lambda text: len(text.encode("utf-8", "surrogatepass")),
    "bits_per_byte": lambda text: len(text.encode("utf-8", "surrogatepass")),
}
OF_CHOICES: Final = ("f1", "mcc", "brier_score", "likelihood")
OF_TEXTS: Final = ("bleu", "chrf", "chrf++", "ter", "f1", "mcc", "brier_score", "likelihood", "perplexity")


def sample_values(row: LogRow, target: Any, fields: Fields) -> dict[str, Any]:
    """The values of a sample's corpus metrics; of others, and where a request failed, none."""
    kind = fields.config.get("output_type", "generate_until")
    named = list(row["metrics"])
    if not _answered(row):
        return {}
    if kind == "multiple_choice":
        return _of_choices([name for name in named if name in OF_CHOICES], row, target, fields)
    if kind == "loglikelihood_rolling":
        (ll, *_), _ = likelihoods_of(row)
        return {name: [ll, OF_DOCUMENTS[name](str(target))] for name in named if name in OF_DOCUMENTS}
    if kind == "loglikelihood":
        (ll, *_), _ = likelihoods_of(row)
        return {name: ll for name in named if name == "perplexity"}
    answer = filtered_responses(row, fields.config)[0] if row["filtered_resps"] else None
    return {name: [_gold(row, target, fields), answer] for name in named if name in OF_TEXTS}


def filtered_responses(row: LogRow, config: Mapping[str, Any]) -> list[Any]:
    """What the filter left of a generation: one answer, or the list of them where no step took the first."""
    found: list[Any] = row["filtered_resps"]
    pipelines = config.get("filter_list") or ()
    steps = next((one.get("filter") or () for one in pipelines if one.get("name") == row["filter"]), None)
    takes_first = steps is None or any(step.get("function") == "take_first" for step in steps)
    return found if takes_first or (len(found) == 1 and isinstance(found[0], list)) else [found]


def _answered(row: LogRow) -> bool:
    return all(answer is not None for answers in row["resps"] for answer in answers) and bool(row["resps"])


def _of_choices(names: Sequence[str], row: LogRow, target: Any, fields: Fields) -> dict[str, Any]:
    if not names:
        return {}
    choices = [str(choice) for choice in fields.choices(row["doc"])]
    lls = np.asarray(likelihoods_of(row)[0][: len(choices)], dtype=np.float64)
    question = fields.text(row["doc"]) if fields.config.get("doc_to_text") is not None else ""
    gold: Any = question if isinstance(question, int) else target
    gold = gold_indices(gold, choices) if isinstance(gold, list) else gold_indices(gold, choices)[0]
    shifted = np.exp(lls - lls.max())
    values: dict[str, Any] = {
        "f1": [gold, int(np.argmax(lls))],
        "mcc": [gold, int(np.argmax(lls))],
        # A numpy array is written as its text there.
        "brier_score": [gold, str(shifted / shifted.sum())],
        "likelihood": [gold, lls.tolist()],
    }
    return {name: values[name] for name in names}


def _gold(row: LogRow, target: Any, fields: Fields) -> Any:
    if fields.config.get("doc_to_choice") is not None and isinstance(target, int):
        return fields.choices(row["doc"])[target]
    return target if isinstance(target, list) else str(target)


NO_STDERR: Final = "N/A"
Section = dict[str, Any]


@dataclass(frozen=True)
class FinishedRun:
    """One benchmark's run: the config it was made from (``name``, ``harness``, ``base_dir``, ``models``) and
    its folder."""

    config: Mapping[str, Any]
    folder: Path

    @property
    def task(self) -> str:
        """The benchmark's name in the harness."""
        return str(self.config["harness"]["task"])

    @property
    def definition(self) -> Mapping[str, Any]:
        """The definition's keys, functions by name."""
        return self.config["harness"]["config"]  # type: ignore[no-any-return]

    @property
    def seconds(self) -> float:
        """How long it took, as its manifest says."""
        manifest = self.folder / MANIFEST
        return float(json.loads(manifest.read_bytes())["wall_seconds"]) if manifest.is_file() else 0.0


def write_harness_files(
    runs: Sequence[FinishedRun],
    groups: Mapping[str, Group],
    output: Path,
    time: datetime,
    command: HarnessCommand | None = None,
) -> list[Path]:
    """Writes ``<output>/<model>/results_<time>.json`` and one sample log a benchmark, a folder for each
    model; with an ``output`` that ends with ``.json``, ``<output>_<time>.json`` and the logs beside it.

    Returns the results files. ``time`` becomes part of the names, in the harness's form.
    """
    stamp = time.isoformat().replace(":", "-")
    models = dict.fromkeys(str(model["name"]) for run in runs for model in run.config["models"])
    written = []
    for model in models:
        named = output.suffix == ".json"
        folder = output.parent if named else output / folder_name(model)
        folder.mkdir(parents=True, exist_ok=True)
        hashes = {}
        for run in runs if command is None or command.log_samples else ():
            samples = run.folder / f"samples_{run.config['name']}.jsonl"
            if samples.is_file():
                log = folder / f"samples_{run.task}_{stamp}.jsonl"
                base_dir = str(run.config["base_dir"])
                hashes[run.task] = write_samples(samples, log, run.config["harness"], base_dir, model)
        document = {**results_document(runs, groups, model, command), "task_hashes": hashes}
        written.append(folder / f"{output.stem if named else 'results'}_{stamp}.json")
        write_json(written[-1], document)
    return written


def results_document(
    runs: Sequence[FinishedRun],
    groups: Mapping[str, Group],
    model: str,
    command: HarnessCommand | None = None,
) -> Section:
    """One model's numbers over all benchmarks, then over the groups, in the harness's sections."""
    documents = {run.task: json.loads((run.folder / "results.json").read_bytes()) for run in runs}
    results: dict[str, Section] = {}
    better: dict[str, Section] = {}
    for run in runs:
        key = _key(documents[run.task]["results"], str(run.config["name"]), model)
        numbers = documents[run.task]["results"].get(key, {})
        results[run.task] = {
            "name": run.task,
            **numbers,
            "alias": run.definition.get("task_alias") or run.task,
        }
        better[run.task] = documents[run.task]["higher_is_better"].get(key, {})
    scored = {name: group_numbers(group, groups, results) for name, group in groups.items()}
    shots = {run.task: run.definition.get("num_fewshot") or 0 for run in runs}
    any_document: Section = next(iter(documents.values()), {})
    return {
        "results": {**results, **scored},
        **(
            {"groups": found}
            if (found := {name: scored[name] for name in groups if groups[name].aggregates})
            else {}
        ),
        "group_subtasks": {name: list(group.members) for name, group in groups.items()},
        "configs": {run.task: dict(run.definition) for run in sorted(runs, key=lambda run: run.task)},
        "versions": dict(sorted({**{run.task: _version(run) for run in runs}, **_versions(groups)}.items())),
        "n-shot": dict(sorted({**shots, **_shots_of_groups(groups, shots)}.items())),
        "higher_is_better": dict(sorted({**better, **_better_of_groups(groups, better)}.items())),
        "n-samples": {run.task: _counts(documents[run.task], results[run.task]) for run in runs},
        **{key: any_document.get(key) for key in ("config", "git_hash", "date")},
        **({} if command is None else {"config": dict(command.config)}),
        **about_run([run.config for run in runs], sum(run.seconds for run in runs), model, command),
    }


def group_numbers(group: Group, groups: Mapping[str, Group], results: Mapping[str, Section]) -> Section:
    """A group's entry: each aggregated metric over the benchmarks that have it, null where one of those has
    no value.

    Standard errors are those of a weighted sum of independent numbers.
    """
    names = leaf_names(group, groups)
    leaves = [results[name] for name in names if name in results]
    complete = len(leaves) == len(names)  # else the mean would be another benchmark's
    numbers: Section = {"name": group.name, "alias": group.alias}
    if group.aggregates:
        numbers["sample_len"] = sum(entry.get("sample_len", 0) for entry in leaves)
    counted: dict[str, int] = {}
    for aggregate in group.aggregates:
        for key, error_key in _keys(aggregate, leaves):
            members = [entry for entry in leaves if key in entry]
            if members:
                estimate = group_aggregate(
                    [_estimate(entry, key, error_key) for entry in members], aggregate.weight_by_size
                )
                known = complete and not math.isnan(estimate.value)
                numbers[key] = estimate.value if known else None
                numbers[error_key] = (
                    estimate.stderr if known and not math.isnan(estimate.stderr) else NO_STDERR
                )
                counted[key] = estimate.n_items
    return {**numbers, "sample_count": counted} if counted else numbers


def leaf_names(group: Group, groups: Mapping[str, Group]) -> list[str]:
    """The benchmarks of a group and of the groups in it, each once."""
    names: dict[str, None] = {}
    for member in group.members:
        names.update(dict.fromkeys(leaf_names(groups[member], groups) if member in groups else [member]))
    return list(names)


def _keys(aggregate: Aggregate, leaves: Iterable[Section]) -> list[tuple[str, str]]:
    found = sorted({key for entry in leaves for key in entry if key.startswith(f"{aggregate.metric},")})
    filters = aggregate.filters or tuple(key.partition(",")[2] for key in found)
    return [(f"{aggregate.metric},{name}", f"{aggregate.metric}_stderr,{name}") for name in filters]


def _estimate(entry: Section, key: str, error_key: str) -> Estimate:
    value, stderr = entry[key], entry.get(error_key)
    number = math.nan if value is None else float(value)
    error = float(stderr) if isinstance(stderr, int | float) else math.nan
    return Estimate(number, error, "given", math.nan, math.nan, int(entry.get("sample_len", 0)))


def _key(results: Mapping[str, Section], name: str, model: str) -> str:
    """The key of one model's numbers: the name, or name/model/prompt where several models stand beside each
    other."""
    return (
        name if name in results else next((key for key in results if key.startswith(f"{name}/{model}")), name)
    )


def _version(run: FinishedRun) -> Any:
    return (run.definition.get("metadata") or {}).get("version", "Yaml")


def _versions(groups: Mapping[str, Group]) -> Section:
    return {name: group.version for name, group in groups.items()}


def _counts(document: Section, numbers: Section) -> Section:
    found: Section = next(iter(document.get("n-samples", {}).values()), {})
    return {"original": found.get("original"), "effective": numbers.get("sample_len", 0)}


def _shots_of_groups(groups: Mapping[str, Group], shots: Mapping[str, int]) -> dict[str, int]:
    """A group's number of examples where all its members that have one have the same, as the harness does:
    groups among them count by their own."""
    found: dict[str, int] = {}
    for name in _children_first(groups):
        numbers = {
            {**shots, **found}[member] for member in groups[name].members if member in {**shots, **found}
        }
        if len(numbers) == 1:
            found[name] = numbers.pop()
    return found


def _better_of_groups(groups: Mapping[str, Group], better: Mapping[str, Section]) -> dict[str, Section]:
    """Each metric's direction over a group's members; null where they differ."""
    found: dict[str, Section] = {}
    for name in _children_first(groups):
        merged: Section = {}
        for member in groups[name].members:
            for metric, direction in {**better, **found}.get(member, {}).items():
                merged[metric] = direction if merged.get(metric, direction) == direction else None
        if merged:
            found[name] = merged
    return found


def _children_first(groups: Mapping[str, Group]) -> list[str]:
    order: dict[str, None] = {}

    def visit(name: str) -> None:
        for member in groups[name].members:
            if member in groups and member not in order:
                visit(member)
        order[name] = None

    for name in groups:
        visit(name)
    return list(order)


SampleRow = dict[str, Any]
OURS: Final = ("item_id", "model_name", "prompt_template")


def write_samples(
    source: Path, target: Path, harness: Mapping[str, Any], base_dir: str, model: str | None = None
) -> str:
    """Writes the rows of ``model`` (None: all) and returns the benchmark's hash over them, as the harness
    computes it.

    Targets are worked out again, because the run's own file shows which answers are accepted and not what the
    definition called the target.
    """
    total = hashlib.sha256()

    config = decoded(harness["config"])
    modules = UserModules(own=True)

    def lines() -> Iterator[SampleRow]:
        for row in _rows(source, model):
            fields = Fields(config, row["doc"].keys(), Path(base_dir), str(harness["task"]), modules)
            line = _line(row, harness, fields)
            total.update((line["doc_hash"] + line["prompt_hash"] + line["target_hash"]).encode())
            yield line

    write_lines(target, lines())
    return total.hexdigest()


def _rows(source: Path, model: str | None) -> Iterator[SampleRow]:
    with source.open("rb") as file:
        for line in file:
            row: SampleRow = orjson.loads(line)
            if model is None or row.get("model_name", model) == model:
                yield row


def _line(row: SampleRow, harness: Mapping[str, Any], fields: Fields) -> SampleRow:
    config, chat = fields.config, bool(harness.get("apply_chat_template"))
    generates = config.get("output_type", "generate_until") == "generate_until"
    target = row["target"]
    # A log has the targets themselves, unless what it was scored by is a choice's text.
    logged = "samples" in harness and not (generates and config.get("doc_to_choice") is not None)
    if not logged and config.get("doc_to_target") is not None:
        target = fields.target(row["doc"])
    arguments, resps = row["arguments"], row["resps"]
    first = _as_hashed(arguments.get("gen_args_0", {}).get("arg_0", ""), chat)
    if generates and (generation := config.get("generation_kwargs")) is not None:
        asked = {"arg_0": [first]} if chat else {}  # the harness's record of a chat is a tuple of one text
        arguments = {name: {**group, **asked, "arg_1": generation} for name, group in arguments.items()}
    if not generates:
        # A log-likelihood is asked once, however often it is to be repeated: it is what it is.
        resps = [answers * (config.get("repeats") or 1) for answers in resps]
    shown = {key: value for key, value in row.items() if key not in OURS}
    return {
        **shown,
        **(sample_values(row, target, fields) if config.get("process_results") is None else {}),
        **({"bypass": None} if "bypass" in row["metrics"] else {}),  # that there is no value
        "resps": resps,
        **({"filtered_resps": filtered_responses(row, config)} if generates else {}),
        "target": str(target),
        "arguments": arguments,
        **sample_hashes(json.dumps(row["doc"], indent=2, ensure_ascii=False), first, str(target)),
    }


def _as_hashed(prompt: Any, chat: bool) -> str:
    """A prompt as the harness hashes it: a chat as JSON with a space behind commas and colons."""
    if isinstance(prompt, str) and not chat:
        return prompt
    return json.dumps(json.loads(prompt) if isinstance(prompt, str) else prompt, ensure_ascii=False)
