"""Errors that a person can act on: one sentence with what was expected, what came and what to do.

::

    NightjarError (ValueError)
    ├── ConfigError      a config, an argument or a user's function that cannot be used; refused at the start
    ├── DataError        a dataset or recorded responses that cannot be read, naming file and line
    └── MetricError      a metric, reduction or aggregation could not make a number of what it was given
"""

from collections.abc import Iterable
from pathlib import PurePath
from traceback import walk_tb

from metrics.printable import printable


class NightjarError(ValueError):
    """Base of every error whose text is meant for the person who started the run."""

    def __str__(self) -> str:
        """The sentence as it may be shown: names and values in it are somebody else's."""
        return printable(super().__str__())


class ConfigError(NightjarError):
    """A config names something that does not exist, does not fit, or has the wrong type."""


class DataError(NightjarError):
    """A dataset, or a file of responses, that cannot be read."""


class MetricError(NightjarError):
    """A metric failed on its input; ``index`` is the row of the batch it failed on, None if it is not one
    row."""

    def __init__(self, message: str, index: int | None = None):
        super().__init__(message)
        self.index = index


def described(error: BaseException) -> str:
    """What a function that was called here raised, and the line of its file: ``ValueError: no (mine.py:7)``.

    The line is the last one within the function's own file, whatever it called in turn; there is none where
    the call itself did not fit.
    """
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    sentence = f"{type(error).__name__}: {error}"
    file = next((name for name, _ in frames if name != frames[0][0]), None)
    if file is None:
        return sentence
    line = [line for name, line in frames if name == file][-1]
    return f"{sentence} ({PurePath(file).name}:{line})"


ALSO_CALLED = {
    "accuracy": ("acc", "exact_match"),
    "em": ("exact_match",),
    "f1_score": ("f1", "token_f1"),
    "matthews_corrcoef": ("mcc",),
    "matthews_correlation": ("mcc",),
    "rouge": ("rouge1", "rouge2", "rougeL", "rougeLsum"),
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
