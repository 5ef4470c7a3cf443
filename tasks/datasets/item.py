"""The item, one row of a dataset, as every stage knows it; the kinds of request made about it; and the
protocol of a benchmark, which gives items and the requests about each.

Three classes hold to the protocol: the native benchmark, a definition of lm-evaluation-harness, and a
sample log of the harness. The load and render stages know only it; ``benchmarks.open`` chooses the class.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tasks.messages.media import Media
from tasks.store.keys import digest

RequestKind = Literal["generate", "loglikelihood", "rolling"]
"""What is asked of a model about an item: a text, a continuation's log-likelihood, or a document's."""


@dataclass(frozen=True)
class Item:
    """One row of a dataset.

    ``data`` holds the row's fields by name, ``ground_truth`` any JSON value (None: there is none),
    ``doc_id`` the position in the dataset from 0, ``cluster`` the text of the cluster field's value,
    ``digest`` that of the content, where it was made already.
    """

    item_id: str
    doc_id: int
    data: Mapping[str, Any]
    ground_truth: Any = None
    cluster: str | None = None
    digest: str | None = field(default=None, compare=False)


def item_digest(item: Item) -> str:
    """Digest of an item's content, by which two runs on the same items are joined."""
    return item.digest or digest({"data": dict(item.data), "ground_truth": item.ground_truth})


@dataclass(frozen=True)
class Rendered:
    """What is asked of a model about one item, and what is right.

    ``prompts`` and ``continuations`` stand beside each other, one entry a request: a generation has one
    prompt and an empty continuation; multiple choice one entry a choice; a rolling log-likelihood an empty
    prompt and the document as its continuation. A chat prompt is the JSON text of its list of messages.
    ``unconditional`` holds continuations that are also asked without any context (mutual information).
    ``references`` are the acceptable answers, ``gold`` the indices of the right choices, ``doc`` the row as
    filters, metrics and ``process_results`` see it, ``media`` the images and sounds that the prompts name.
    A generation that asks for a choice by its letter has a prompt for each of ``orders``, which say which
    choice stands at each position; sample i is asked with number i, counted round. Such a generation has one
    continuation, as any other. ``keeps_space``: white space at the prompts' end is not scored with the
    continuations.
    """

    item: Item
    kind: RequestKind
    prompts: Sequence[str]
    continuations: Sequence[str]
    references: Sequence[Any]
    doc: Mapping[str, Any]
    chat: bool = False
    gold: Sequence[int] = ()
    choices: Sequence[str] = ()
    unconditional: Sequence[str] = ()
    media: Sequence[Media] = ()
    orders: Sequence[Sequence[int]] = ()
    keeps_space: bool = False


class Benchmark(Protocol):
    """A dataset and the way to ask a model about its rows."""

    name: str

    def items(self) -> Iterator[Item]:
        """The dataset's rows in order; raises ConfigError naming file and line for a row it can't take."""
        ...

    def prompt_names(self) -> tuple[str, ...]:
        """Names of the prompt templates, at least one."""
        ...

    def render(self, prompt: str, items: Iterable[Item]) -> Iterator[Rendered]:
        """Renders the items with the named prompt template, in order. ``items`` may be any consecutive part
        of ``items()``; the outcome for an item does not depend on which part it came in."""
        ...

    def dataset_digest(self) -> str:
        """Digest of everything that decides what ``items()`` yields (file bytes, loader's rows, hub
        revision)."""
        ...

    def render_identity(self, prompt: str) -> dict[str, Any]:
        """Everything besides the items that decides what ``render(prompt, …)`` yields, by name: templates,
        few-shot examples and their file, delimiters, the code of user functions."""
        ...
