"""``--from-samples``: scores sample logs of the harness again, without their dataset and model.

``find_logs`` finds ``samples_<task>_<time>.jsonl`` and the ``results_<time>.json`` beside them,
``rescoring_configs`` makes a config of each log, its model a replay of the logged responses;
``LoggedBenchmark`` is the benchmark whose documents and requests are the log's.
"""

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from metrics.errors import ConfigError
from metrics.json_values import leaves
from metrics.types import IGNORED_TARGET
from tasks.benchmarks.config import DEFAULT_PROMPT
from tasks.benchmarks.lm_eval.documents import (
    Fields,
    asks_unconditional,
    document_items,
    gold_indices,
    json_document,
    references_of,
)
from tasks.benchmarks.lm_eval.select import Definition, build_index
from tasks.benchmarks.lm_eval.translation import translate_definition
from tasks.benchmarks.lm_eval.yaml import decoded, encoded, functions_in
from tasks.datasets.config import DatasetError, parsed_json
from tasks.datasets.item import Item, Rendered
from tasks.datasets.items import Cluster
from tasks.store.digests import file_digest
from tasks.store.home import write_lines
from tasks.store.keys import digest
from tasks.usercode.sources import sources_named

NAME: Final = re.compile(r"samples_(?P<task>.+)_(?P<time>\d{4}-\d{2}-\d{2}T[\d.\-]+)\.jsonl")
RESULTS: Final = "results_{time}.json"
LogRow = dict[str, Any]


@dataclass(frozen=True)
class SampleLog:
    """One benchmark's log: where it is, and what the results file says about the run it belongs to."""

    task: str
    time: str
    path: Path
    model_name: str
    config: Mapping[str, Any]
    higher_is_better: Mapping[str, bool]

    def first_filter(self) -> Iterator[LogRow]:
        """The rows of the log's first filter in its order, one a document: what other filters made of it is
        in theirs."""
        name: Any = None
        for number, row in enumerate(self.rows()):
            name = row.get("filter") if number == 0 else name
            if row.get("filter") == name:
                yield row

    def rows(self) -> Iterator[LogRow]:
        """All rows; raises DataError naming file and line for one that is not the harness's."""
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                row = parsed_json(line, f"{self.path.name}:{number}")
                missing = sorted({"doc_id", "doc", "arguments", "resps"} - set(row))
                if missing:
                    raise DatasetError(
                        f"{self.path.name}:{number}: has no '{missing[0]}', as the harness's logs do"
                    )
                yield row


def find_logs(folder: Path) -> list[SampleLog]:
    """The logs in a folder (and the folders of models in it), the latest of each benchmark and model.

    Raises ConfigError for a folder without any.
    """
    latest: dict[tuple[Path, str], tuple[str, Path]] = {}
    for path in sorted(folder.rglob("samples_*.jsonl")) if folder.is_dir() else []:
        match = NAME.fullmatch(path.name)
        if match:
            key = (path.parent, match["task"])
            latest[key] = max(latest.get(key, ("", path)), (match["time"], path))
    if not latest:
        raise ConfigError(
            f"{folder} holds no sample logs of lm-evaluation-harness (samples_<task>_<time>.jsonl)"
        )
    return [_log(task, time, path) for (_, task), (time, path) in sorted(latest.items())]


def requests_of(row: LogRow) -> list[list[Any]]:
    """The arguments of a row's requests, in their order."""
    arguments = row["arguments"]
    if isinstance(arguments, Mapping):
        groups = sorted(arguments.items(), key=lambda entry: _number(entry[0]))
        return [
            [value for _, value in sorted(group.items(), key=lambda one: _number(one[0]))]
            for _, group in groups
        ]
    return [list(group) if isinstance(group, list) else [group] for group in arguments]


def likelihoods_of(row: LogRow) -> tuple[list[float], list[bool]]:
    """Log-likelihoods and greediness of a row's requests, from the first repeat; logs hold both as text."""
    lls, greedy = [], []
    for answers in row["resps"]:
        answer = answers[0] if isinstance(answers, list) and answers else answers
        values = answer if isinstance(answer, list) else [answer, False]
        lls.append(float(values[0]))
        greedy.append(str(values[1]) == "True")
    return lls, greedy


def target_of(row: LogRow) -> Any:
    """The index or the list whose text the logged target is, else the target as it is logged. A log holds
    targets as texts: a text that reads so can be meant as well."""
    target = row.get("target")
    if isinstance(target, str) and re.fullmatch(r"-?\d+|\[.*\]", target, re.DOTALL):
        try:
            read = ast.literal_eval(target)
        except (SyntaxError, ValueError):
            return target
        return read if str(read) == target else target
    return target


def _log(task: str, time: str, path: Path) -> SampleLog:
    results = path.with_name(RESULTS.format(time=time))
    document = _document(results) if results.is_file() else {}
    configs = document.get("configs") or {}
    name = (
        task
        if task in configs
        else next((known for known in configs if re.sub(r"\W", "_", known) == task), task)
    )
    model = document.get("model_name") or path.parent.name
    better = (document.get("higher_is_better") or {}).get(name) or {}
    return SampleLog(name, time, path, str(model), configs.get(name) or {}, better)


def _document(path: Path) -> LogRow:
    document = parsed_json(path.read_bytes(), path.name)
    return document if isinstance(document, dict) else {}


def _number(name: str) -> int:
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdigit() else 0


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


def rescoring_configs(
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
    items = document_items((json_document(row["doc"], log.path.name) for row in rows), None, log.task)
    generated = config.get("output_type", "generate_until") == "generate_until"
    lines: list[dict[str, Any]] = []
    repeats = set()
    for row, item in zip(rows, items, strict=True):
        own = list(_generation_rows(row) if generated else _likelihood_rows(row, config))
        repeats.add(len(own))
        lines += [{"item_id": item.item_id, "sample_index": index, **one} for index, one in enumerate(own)]
    if len(repeats) != 1:
        raise DatasetError(
            f"{log.path.name}: documents have different numbers of responses: {sorted(repeats)}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, lines)
    return repeats.pop()


def _generation_rows(row: LogRow) -> Iterator[dict[str, Any]]:
    for response in row["resps"][0]:
        yield {"response": "" if response is None else str(response), "status": "ok"}


def _likelihood_rows(row: LogRow, config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
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
    remedy = _remedy(log.task)
    if not log.config:
        raise ConfigError(
            f"{log.path}: there is no {RESULTS.format(time=log.time)} beside it with its config; {remedy}"
        )
    # Of a generation's choices the target is an index; of others the log has the continuations.
    generated = log.config.get("output_type") == "generate_until"
    for key in (*SCORING, *(["doc_to_choice"] if generated else [])):
        if any(map(_is_source, leaves(log.config.get(key)))):
            raise ConfigError(
                f"{log.path}: '{key}' is a function, of which the results file has the source only; {remedy}"
            )
    known = {key: value for key, value in log.config.items() if key not in (*OF_ASKING, "metadata")}
    return {key: value for key, value in known.items() if key not in RECOMPUTED or not _is_source(value)}


def _remedy(task: str) -> str:
    return f"give the benchmark's definition: --tasks {task} --include-path DIR"


def _is_source(value: Any) -> bool:
    """Whether a text is how the harness writes a function: its source code, or ``<function …>``."""
    text = value.lstrip() if isinstance(value, str) else ""
    return text.startswith(
        ("def ", "@", "class ", "lambda", "<function ", "functools.partial(", "<built-in ")
    )


class LoggedBenchmark:
    """Items and requests of one sample log; ``harness["samples"]`` is its path.

    Right answers and choices come from the definition's ``doc_to_target`` and ``doc_to_choice`` where it has
    them, else from the log. That holds targets as texts: one that may be an index or a list as well, with
    other scores, raises DatasetError.
    """

    def __init__(
        self, harness: Mapping[str, Any], base_dir: str | Path, name: str, cluster: Cluster = None
    ) -> None:
        self.name = name
        self._config: dict[str, Any] = decoded(harness["config"])
        self._path = Path(base_dir) / harness["samples"]
        self._base_dir = Path(base_dir)
        self._cluster = cluster
        self._log = SampleLog(name, "", self._path, "", {}, {})
        self._output_type: str = self._config.get("output_type", "generate_until")
        self._lists: bool | None = None

    def items(self) -> Iterator[Item]:
        """The log's documents in its order, under the same ids as the benchmark's own items."""
        rows = (json_document(row["doc"], self._path.name) for row in self._log.first_filter())
        return document_items(rows, self._cluster, f"benchmark {self.name}")

    def prompt_names(self) -> tuple[str, ...]:
        """One, as in the harness."""
        return (DEFAULT_PROMPT,)

    def render(self, prompt: str, items: Iterable[Item]) -> Iterator[Rendered]:
        """The requests as they were logged."""
        rows = self._log.first_filter()
        position, row = -1, dict[str, Any]()
        fields: Fields | None = None
        for item in items:
            while position < item.doc_id:
                row = next(rows, {})
                if not row:
                    raise DatasetError(
                        f"{self._path.name}: ends before document {item.doc_id}; was it changed?"
                    )
                position += 1
            fields = fields or Fields(
                self._config, item.data.keys(), self._base_dir, f"benchmark {self.name}"
            )
            yield self._rendered(item, row, fields)

    def dataset_digest(self) -> str:
        """Digest of the log."""
        return digest({"samples": file_digest(self._path), "cluster": self._cluster})

    def render_identity(self, prompt: str) -> dict[str, Any]:
        """The log, and what says which answers are right."""
        names = sorted(set(functions_in(self._config)))
        return {
            **self._config,
            "prompt": prompt,
            "samples": file_digest(self._path),
            "functions": {"code": sources_named(names, self._base_dir)},
        }

    def _rendered(self, item: Item, row: LogRow, fields: Fields) -> Rendered:
        logged = requests_of(row)
        doc = item.data
        if self._output_type == "loglikelihood_rolling":
            text = str(logged[0][0])
            return Rendered(item, "rolling", [""], [text], references=[text], doc=doc, choices=(text,))
        target = fields.target(doc) if self._config.get("doc_to_target") is not None else None
        if self._output_type == "multiple_choice":
            return self._multiple_choice(item, row, fields, target)
        prompt = _text(logged[0][0])
        if self._output_type == "loglikelihood":
            text = str(logged[0][1])
            return Rendered(
                item,
                "loglikelihood",
                [prompt],
                [text],
                references=[text],
                doc=doc,
                gold=(0,),
                choices=(text,),
            )
        choices = fields.choices(doc) if self._config.get("doc_to_choice") is not None else None
        processed = self._config.get("process_results") is not None
        if self._config.get("doc_to_target") is None:
            target = target_of(row) if choices is not None or processed else self._logged_answer(row)
        plain = choices is None and not processed
        several = plain and isinstance(target, list) and self._answers_are_lists(row, fields)
        references = references_of(target, choices, several, processed)
        return Rendered(item, "generate", [prompt], [""], references=references, doc=doc)

    def _answers_are_lists(self, row: LogRow, fields: Fields) -> bool:
        """Whether a list is several answers and not a text: in the harness it is for all documents what it is
        for the first one."""
        if self._lists is None:
            known = self._log.first_filter() if self._first is None else [self._first]
            kinds = {isinstance(self._target(one, fields), list) for one in known}
            if len(kinds) > 1:
                raise DatasetError(
                    f"{self._path.name}: document {row['doc_id']}: its target is a list, others' are not; "
                    "whether it is several answers is told by the dataset's first document, which the log "
                    "lacks: score a log that holds it"
                )
            self._lists = kinds.pop()
        return self._lists

    def _target(self, row: LogRow, fields: Fields) -> Any:
        if self._config.get("doc_to_target") is None:
            return target_of(row)
        return fields.target(json_document(row["doc"], self._path.name))

    def _logged_answer(self, row: LogRow) -> Any:
        """The right answer of a generation; the harness compares an integer as its text, and accepts each
        entry of a list."""
        target = row.get("target")
        if isinstance(target, str) and isinstance(target_of(row), list) and not self._answers_are_texts:
            raise self._untold(row, f"the target {target!r:.80} may be a text or a list of answers")
        return target

    @cached_property
    def _answers_are_texts(self) -> bool:
        """Whether the first document's target is no list: then the harness compares all targets as texts."""
        return self._first is not None and not isinstance(target_of(self._first), list)

    @cached_property
    def _first(self) -> LogRow | None:
        """The row of the dataset's first document; None where it was not asked."""
        return next((row for row in self._log.first_filter() if row["doc_id"] == 0), None)

    def _untold(self, row: LogRow, why: str) -> DatasetError:
        return DatasetError(
            f"{self._path.name}: document {row['doc_id']}: {why}, and the log doesn't tell which; "
            f"{_remedy(self.name)}"
        )

    def _multiple_choice(self, item: Item, row: LogRow, fields: Fields, target: Any) -> Rendered:
        logged = [(str(context), str(continuation)) for context, continuation, *_ in requests_of(row)]
        conditional, alone = _split_unconditional(logged, len(likelihoods_of(row)[0]), self._config)
        delimiter = self._config.get("target_delimiter", " ")
        if self._config.get("doc_to_choice") is not None:
            choices = [str(choice) for choice in fields.choices(item.data)]
            inputs = fields.text(item.data) if self._config.get("doc_to_text") is not None else ""
        else:
            choices, inputs = [continuation.removeprefix(delimiter) for _, continuation in conditional], ""
        if self._config.get("doc_to_text") is None and len({prompt for prompt, _ in conditional}) > 1:
            raise self._untold(row, "its choices are prompts, of which 'doc_to_text' says the right one")
        if isinstance(inputs, int):
            gold = inputs
        elif self._config.get("doc_to_target") is not None:
            gold = target
        else:
            gold = self._logged_gold(row, choices)
        return Rendered(
            item, "loglikelihood", [prompt for prompt, _ in conditional], [text for _, text in conditional],
            references=[row.get("target", gold) if isinstance(inputs, int) else gold],
            doc=item.data, gold=gold_indices(gold, choices), choices=choices,
            unconditional=[text for _, text in alone],
        )  # fmt: skip

    def _logged_gold(self, row: LogRow, choices: Sequence[str]) -> Any:
        """The right choice: a target that is a choice's text, or else an index or a list of them."""
        text, read = row.get("target"), target_of(row)
        if not isinstance(text, str) or read == text or text not in choices:
            return read
        indices = gold_indices(read, choices)
        if indices != [choices.index(text)] and IGNORED_TARGET not in indices:
            raise self._untold(row, f"the target {text!r:.80} may be a choice's text or an index")
        return text


def _text(prompt: Any) -> str:
    """A prompt; the harness logs one of chat messages as a list that holds their JSON text."""
    return str(prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else prompt)


def unconditional_count(config: Mapping[str, Any], requests: int) -> int:
    """How many of a row's requests were asked without context: the second half, for mutual information."""
    return requests // 2 if asks_unconditional(config) else 0


def _split_unconditional(
    logged: list[tuple[str, str]], requests: int, config: Mapping[str, Any]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    first = len(logged) - unconditional_count(config, requests)
    return logged[:first], logged[first:]
