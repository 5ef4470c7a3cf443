"""A definition of the harness as the pipeline's benchmark: items and prompts."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval.data.items import numbered_items
from tasks.benchmarks.lm_eval.data.splits import Splits
from tasks.benchmarks.lm_eval.read.yaml import decoded, functions_in
from tasks.benchmarks.lm_eval.render.rendering import Prompter
from tasks.benchmarks.records import Rendered
from tasks.datasets.item import Item
from tasks.store.fingerprint import fingerprint
from tasks.store.keys import digest
from tasks.usercode.load import load_function

PROMPT: Final = "default"
# Keys that decide which documents there are; all others besides those below decide how they are asked.
OF_DATASET: Final = (
    "custom_dataset", "dataset_path", "dataset_name", "dataset_kwargs", "test_split", "validation_split",
    "process_docs",
)  # fmt: skip
OF_SCORING: Final = (
    "task_alias", "process_results", "metric_list", "filter_list", "generation_kwargs", "repeats",
    "should_decontaminate", "doc_to_decontamination_query", "unsafe_code",
)  # fmt: skip


class HarnessBenchmark:
    """Items and prompts of one definition; ``harness`` is what ``translate`` put under that key.

    ``apply_chat_template`` there asks chat models with messages, few-shot examples as turns
    (``fewshot_as_multiturn``) or in the user's message; ``system_instruction`` stands before the description.
    """

    def __init__(
        self, harness: Mapping[str, Any], base_dir: str | Path, name: str, cluster: str | None = None
    ) -> None:
        self.name = name
        self._harness = harness
        self._config: dict[str, Any] = decoded(harness["config"])
        self._base_dir = Path(base_dir)
        self._cluster = cluster
        self._where = f"benchmark {harness.get('task', name)}"
        if self._config.get("unsafe_code") and not harness.get("allow_unsafe_code"):
            raise ConfigError(
                f"{self._where} runs code that the model writes (unsafe_code); allow it with "
                "--set harness.allow_unsafe_code=true on a machine that it can't harm"
            )
        if (
            harness.get("apply_chat_template")
            and self._config.get("output_type", "generate_until") != "generate_until"
        ):
            raise ConfigError(
                f"{self._where}: output_type {self._config['output_type']} asks for log-likelihoods, which "
                "chat endpoints don't give; use api: completions"
            )
        self._splits = Splits(self._config, self._base_dir, self._where)

    def items(self) -> Iterator[Item]:
        """The evaluated documents in order. An id is derived from the content; equal documents are
        numbered."""
        return numbered_items(self._splits.evaluated(), self._cluster, self._where)

    def prompt_names(self) -> tuple[str, ...]:
        """The harness has one prompt a definition."""
        return (PROMPT,)

    def render(self, prompt: str, items: Iterable[Item]) -> Iterator[Rendered]:
        """The items' requests. Few-shot examples are those of the whole dataset's sequence, whatever part
        this is."""
        if prompt != PROMPT:
            raise ConfigError(f"{self._where} has one prompt, named {PROMPT}; got '{prompt}'")
        prompter = Prompter(self._harness, self._config, self._splits, self._base_dir)
        return prompter.rendered(items)

    def dataset_digest(self) -> str:
        """Digest of the files (or the hub's rows), the splits and the code of ``process_docs``."""
        kept = {key: self._config.get(key) for key in OF_DATASET if key not in ("dataset_kwargs",)}
        return digest(
            {
                "keys": kept,
                "source": self._splits.source.digest(),
                "code": self._code(kept),
                "cluster": self._cluster,
            }
        )

    def render_digest(self, prompt: str) -> str:
        """Digest of templates, few-shot examples and their split, delimiters, seeds and user functions."""
        kept = {key: value for key, value in self._config.items() if key not in OF_SCORING}
        knobs = ("apply_chat_template", "fewshot_as_multiturn", "system_instruction", "fewshot_seed")
        return digest(
            {
                "prompt": prompt,
                "keys": kept,
                "knobs": {key: self._harness.get(key) for key in knobs},
                "source": self._splits.source.digest(),
                "code": self._code(kept),
                "unconditional": _asks_unconditional(self._config),
            }
        )

    def _code(self, value: Any) -> list[str]:
        names = sorted(set(functions_in(value)))
        return [fingerprint(load_function(name, self._base_dir)) for name in names]


def _asks_unconditional(config: Mapping[str, Any]) -> bool:
    return any(entry.get("metric") == "acc_mutual_info" for entry in config.get("metric_list") or ())
