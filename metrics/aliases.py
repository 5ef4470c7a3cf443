"""Other names under which documents write metrics, arguments and keys, and what is meant by a name that is
none.

An alias is looked up where the name itself is, so that results keep the name that the config writes. What is
only ``ALSO_CALLED`` so is refused, and the refusal names it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

METRIC_ALIASES: Final[Mapping[str, str]] = {
    "f1_score": "token_f1",
    "rouge": "rougeL",
    "rouge_1": "rouge1",
    "rouge_2": "rouge2",
    "rouge_l": "rougeL",
    "rouge_lsum": "rougeLsum",
}
"""Name in a metric list → the metric's own."""

ARGUMENT_ALIASES: Final[Mapping[tuple[str, str], str]] = {
    ("regex", "pattern"): "regex_pattern",
    ("regex", "group"): "group_select",
    ("multi_choice_regex", "pattern"): "regex_pattern",
}
"""Filter and argument → the argument's own name."""


def own_arguments(function: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A filter's arguments under their own names; an alias beside its own name stays, to be refused.

    >>> own_arguments("regex", {"pattern": "a"})
    {'regex_pattern': 'a'}
    """
    named = {key: ARGUMENT_ALIASES.get((function, key), key) for key in given}
    return {key if own in given else own: given[key] for key, own in named.items()}


ALSO_CALLED = {
    "prompt": ("prompt_template",),
    "template": ("prompt_template",),
    "data": ("dataset",),
    "metrics_list": ("metric_list",),
    "filters": ("filter_list",),
    "accuracy": ("acc", "exact_match"),
    "em": ("exact_match",),
    "matthews_corrcoef": ("mcc",),
    "matthews_correlation": ("mcc",),
    "rouge_score": ("rouge1", "rouge2", "rougeL", "rougeLsum"),
    "sacrebleu": ("bleu",),
    "squad": ("squad_exact_match", "token_f1"),
    "squad_f1": ("token_f1",),
    "levenshtein": ("edit_similarity",),
    "bits_per_character": ("bpb", "bits_per_byte"),
    "loglikelihood": ("logprob",),
    "ppl": ("perplexity", "word_perplexity"),
    "pattern": ("regex_pattern",),
    "regexp": ("regex",),
    "first": ("take_first",),
    "majority": ("majority_vote", "maj@k"),
}
"""Names of the field, and what they are called here; several: each of them is a part of it, or one use."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A half-sentence ``; did you mean 'x'?`` for what ``name`` is called here, or the known name closest to
    it; empty if none is close."""
    from difflib import get_close_matches  # only when something is wrong already

    known = list(known)
    called = [other for other in ALSO_CALLED.get(name.lower(), ()) if other in known]
    if called:
        return f"; did you mean {' or '.join(map(repr, called))}?"
    found = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""
