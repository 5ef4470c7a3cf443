"""``--from-samples``: sample logs of the harness as configs whose model is what the log recorded."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval.definitions import Definition, build_index
from tasks.benchmarks.lm_eval.functions import encoded
from tasks.benchmarks.lm_eval.identity import numbered_items
from tasks.benchmarks.lm_eval.logged import unconditional_count
from tasks.benchmarks.lm_eval.plain import plain_row
from tasks.benchmarks.lm_eval.sample_logs import RESULTS, Row, SampleLog, find_logs, likelihoods_of
from tasks.benchmarks.lm_eval.translation import translate_definition
from tasks.datasets.errors import DataError
from tasks.reporting.exports_lines import write_lines

# Keys of a definition that scoring again needs nothing of, and that a results file may hold as source code.
OF_ASKING: Final = (
    "dataset_path", "dataset_name", "dataset_kwargs", "custom_dataset", "process_docs", "training_split",
    "validation_split", "test_split", "fewshot_split", "fewshot_config", "num_fewshot", "description",
    "gen_prefix",
)  # fmt: skip
SCORING: Final = ("process_results", "metric_list", "filter_list")
RECOMPUTED: Final = ("doc_to_text", "doc_to_target", "doc_to_choice")
# Stands for what a definition needs and scoring a log does not.
UNASKED: Final = {
    "dataset_path": "json",
    "test_split": "test",
    "doc_to_text": "",
    "doc_to_target": "",
    "doc_to_choice": [""],
}


def rescored(
    folder: Path, workspace: Path, definitions: Mapping[str, Definition] | None = None
) -> list[dict[str, Any]]:
    """One native config a log in ``folder``, its model a replay of responses that are written below
    ``workspace``.

    A benchmark's metrics and filters come from its definition, where ``definitions`` has it, else from the
    results file beside the log; that holds functions as source code only, so a benchmark that scores with
    functions of its own is refused without its definition (``--include-path``).
    """
    return [_config(log, workspace, (definitions or {}).get(log.task)) for log in find_logs(folder)]


def known_definitions(folder: Path, include_path: Sequence[Path]) -> dict[str, Definition]:
    """Definitions, in the folders of ``--include-path``, of the benchmarks that ``folder`` holds logs of."""
    index = build_index(include_path)
    entries = {log.task: index.entries.get(log.task) for log in find_logs(folder)}
    return {
        task: Definition(task, entry.path, entry.config)
        for task, entry in entries.items()
        if entry is not None and entry.kind == "benchmark"
    }


def _config(log: SampleLog, workspace: Path, definition: Definition | None) -> dict[str, Any]:
    known = definition.config if definition is not None else _known_from_results(log)
    whole = definition or Definition(log.task, log.path.resolve(), {**UNASKED, **known})
    native = translate_definition(whole).config
    repeats = write_responses(log, responses := _responses_path(log, workspace), known)
    scoring = {key: value for key, value in known.items() if key not in OF_ASKING}
    native["harness"] = {
        "task": log.task,
        "samples": str(log.path.resolve()),
        "config": encoded(scoring, whole.path.parent),
    }
    replay = {"name": log.model_name, "type": "replay", "config": {"path": str(responses.resolve())}}
    native["models"] = [replay]
    if native["output_type"] == "generate_until":
        native["sample_params"] = {**native["sample_params"], "num_samples": repeats}
    return native


def write_responses(log: SampleLog, path: Path, config: Mapping[str, Any]) -> int:
    """The log's responses as rows that the model type ``replay`` reads; returns how many an item has."""
    rows = list(log.first_filter())
    items = numbered_items((plain_row(row["doc"], log.path.name) for row in rows), None, log.task)
    generated = config.get("output_type", "generate_until") == "generate_until"
    lines: list[dict[str, Any]] = []
    repeats = set()
    for row, item in zip(rows, items, strict=True):
        own = list(_generated(row) if generated else _measured(row, config))
        repeats.add(len(own))
        lines += [{"item_id": item.item_id, "sample_index": index, **one} for index, one in enumerate(own)]
    if len(repeats) != 1:
        raise DataError(f"{log.path.name}: documents have different numbers of responses: {sorted(repeats)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, lines)
    return repeats.pop()


def _generated(row: Row) -> Iterator[dict[str, Any]]:
    for response in row["resps"][0]:
        yield {"response": "" if response is None else str(response), "status": "ok"}


def _measured(row: Row, config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    lls, greedy = likelihoods_of(row)
    first = len(lls) - unconditional_count(config, len(lls))
    answer = {"lls": lls[:first], "is_greedy": greedy[:first], "status": "ok"}
    alone = {"unconditional_lls": lls[first:], "unconditional_greedy": greedy[first:]}
    yield {**answer, **alone} if first < len(lls) else answer


def _responses_path(log: SampleLog, workspace: Path) -> Path:
    # Named by the log's place: two models' logs of a benchmark are two files, and the same log is one.
    mark = hashlib.sha256(str(log.path.resolve()).encode()).hexdigest()[:12]
    return workspace / f"responses_{log.path.stem.removeprefix('samples_')}_{mark}.jsonl"


def _known_from_results(log: SampleLog) -> dict[str, Any]:
    """What the results file says of the benchmark; raises ConfigError where scoring needs a function."""
    remedy = f"give the benchmark's definition: --tasks {log.task} --include-path DIR"
    if not log.config:
        raise ConfigError(
            f"{log.path}: there is no {RESULTS.format(time=log.time)} beside it with its config; {remedy}"
        )
    for key in SCORING:
        if _holds_source(log.config.get(key)):
            raise ConfigError(
                f"{log.path}: '{key}' is a function, of which the results file has the source only; {remedy}"
            )
    known = {key: value for key, value in log.config.items() if key not in (*OF_ASKING, "metadata")}
    return {key: value for key, value in known.items() if key not in RECOMPUTED or not _is_source(value)}


def _holds_source(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_source(entry) for entry in value.values())
    if isinstance(value, list):
        return any(_holds_source(entry) for entry in value)
    return _is_source(value)


def _is_source(value: Any) -> bool:
    """Whether a text is how the harness writes a function: its source code, or ``<function …>``."""
    text = value.lstrip() if isinstance(value, str) else ""
    return text.startswith(
        ("def ", "@", "class ", "lambda", "<function ", "functools.partial(", "<built-in ")
    )
