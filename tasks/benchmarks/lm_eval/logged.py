"""A benchmark whose documents and requests are those of a sample log: for scoring again without dataset and
model."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.benchmarks.lm_eval.fields import Fields
from tasks.benchmarks.lm_eval.functions import decoded, functions_in
from tasks.benchmarks.lm_eval.identity import numbered_items
from tasks.benchmarks.lm_eval.plain import plain_row
from tasks.benchmarks.lm_eval.sample_logs import Row, SampleLog, likelihoods_of, requests_of, target_of
from tasks.benchmarks.lm_eval.targets import gold_indices, references_of
from tasks.benchmarks.records import Item, Rendered
from tasks.datasets.errors import DataError
from tasks.store.keys import digest, file_digest

PROMPT = "default"


class LoggedBenchmark:
    """Items and requests of one sample log; ``harness["samples"]`` is its path.

    Right answers and choices come from the definition's ``doc_to_target`` and ``doc_to_choice`` where it has
    them, else from the log, which holds targets as text.
    """

    def __init__(
        self, harness: Mapping[str, Any], base_dir: str | Path, name: str, cluster: str | None = None
    ) -> None:
        self.name = name
        self._config: dict[str, Any] = decoded(harness["config"])
        self._path = Path(base_dir) / harness["samples"]
        self._base_dir = Path(base_dir)
        self._cluster = cluster
        self._log = SampleLog(name, "", self._path, "", {}, {})
        self._output_type: str = self._config.get("output_type", "generate_until")

    def items(self) -> Iterator[Item]:
        """The log's documents in its order, under the same ids as the benchmark's own items."""
        rows = (plain_row(row["doc"], self._path.name) for row in self._log.first_filter())
        return numbered_items(rows, self._cluster, f"benchmark {self.name}")

    def prompt_names(self) -> tuple[str, ...]:
        """One, as in the harness."""
        return (PROMPT,)

    def render(self, prompt: str, items: Iterable[Item]) -> Iterator[Rendered]:
        """The requests as they were logged."""
        rows = self._log.first_filter()
        position, row = -1, dict[str, Any]()
        fields: Fields | None = None
        for item in items:
            while position < item.doc_id:
                row = next(rows, {})
                if not row:
                    raise DataError(f"{self._path.name}: ends before document {item.doc_id}; was it changed?")
                position += 1
            fields = fields or Fields(
                self._config, item.data.keys(), self._base_dir, f"benchmark {self.name}"
            )
            yield self._rendered(item, row, fields)

    def dataset_digest(self) -> str:
        """Digest of the log."""
        return digest({"samples": file_digest(self._path), "cluster": self._cluster})

    def render_digest(self, prompt: str) -> str:
        """Digest of the log and of what says which answers are right."""
        from tasks.benchmarks.lm_eval.standin import load_user_function
        from tasks.store.fingerprint import fingerprint

        code = [
            fingerprint(load_user_function(name, self._base_dir))
            for name in sorted(set(functions_in(self._config)))
        ]
        return digest(
            {"samples": file_digest(self._path), "config": self._config, "prompt": prompt, "code": code}
        )

    def _rendered(self, item: Item, row: Row, fields: Fields) -> Rendered:
        asked = requests_of(row)
        doc = item.data
        if self._output_type == "loglikelihood_rolling":
            text = str(asked[0][0])
            return Rendered(item, "rolling", [""], [text], references=[text], doc=doc, choices=(text,))
        target = fields.target(doc) if self._config.get("doc_to_target") is not None else target_of(row)
        if self._output_type == "multiple_choice":
            return self._multiple_choice(item, row, fields, target)
        prompt = _text(asked[0][0])
        if self._output_type == "loglikelihood":
            text = str(asked[0][1])
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
        references = references_of(target, choices, isinstance(target, list), processed)
        return Rendered(item, "generate", [prompt], [""], references=references, doc=doc)

    def _multiple_choice(self, item: Item, row: Row, fields: Fields, target: Any) -> Rendered:
        asked = [(str(context), str(continuation)) for context, continuation, *_ in requests_of(row)]
        conditional, alone = _split_unconditional(asked, len(likelihoods_of(row)[0]), self._config)
        delimiter = self._config.get("target_delimiter", " ")
        if self._config.get("doc_to_choice") is not None:
            choices = [str(choice) for choice in fields.choices(item.data)]
            inputs = fields.text(item.data) if self._config.get("doc_to_text") is not None else ""
            gold = inputs if isinstance(inputs, int) else target
        else:
            choices, gold = [continuation.removeprefix(delimiter) for _, continuation in conditional], target
        return Rendered(
            item, "loglikelihood", [prompt for prompt, _ in conditional], [text for _, text in conditional],
            references=[gold], doc=item.data, gold=gold_indices(gold, choices), choices=choices,
            unconditional=[text for _, text in alone],
        )  # fmt: skip


def _text(prompt: Any) -> str:
    """A prompt; the harness logs one of chat messages as a list that holds their JSON text."""
    return str(prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else prompt)


def unconditional_count(config: Mapping[str, Any], requests: int) -> int:
    """How many of a row's requests were asked without context: the second half, for mutual information."""
    asks = any(entry.get("metric") == "acc_mutual_info" for entry in config.get("metric_list") or ())
    return requests // 2 if asks else 0


def _split_unconditional(
    asked: list[tuple[str, str]], requests: int, config: Mapping[str, Any]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    first = len(asked) - unconditional_count(config, requests)
    return asked[:first], asked[first:]
