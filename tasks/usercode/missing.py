"""Says how to install a package that a user's file imports and that is not there.

Benchmarks of lm-evaluation-harness import some thirty packages beside their own files. The extra ``harness``
brings those that most of them need; the rest are named one by one.
"""

import sys
from typing import Final

EXTRA: Final = "harness"
IN_EXTRA: Final = frozenset(
    {
        "antlr4", "bs4", "datasets", "emoji", "evaluate", "fugashi", "fuzzywuzzy", "html2text",
        "immutabledict", "iso639", "jieba", "langdetect", "lm_eval", "math_verify",
        "more_itertools", "neologdn", "nltk", "pandas", "pycountry", "pymorphy3", "regex", "rouge",
        "scipy", "sklearn", "statsmodels", "sympy", "tqdm", "transformers", "wonderwords",
        "word2number",
    }
)  # fmt: skip
"""Top-level modules that the extra brings."""
BESIDE: Final = {
    "bert_score": "bert-score",
    "kstar_planner": "kstar-planner",
    "tinyBenchmarks": "git+https://github.com/felipemaiapolo/tinyBenchmarks",
}
"""Top-level module → the name it is installed by, where that is another, for what the extra leaves out."""


def missing_package(error: BaseException) -> str:
    """``"; pip install …"`` where ``error`` is the import of a package that is not installed, else an empty
    text.

    >>> missing_package(ModuleNotFoundError("No module named 'json'", name="json"))
    ''
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__ or cause.__context__
    name = cause.name if isinstance(cause, ModuleNotFoundError) else None
    if not name:
        return ""
    top = name.partition(".")[0]
    if top in sys.modules or top in sys.stdlib_module_names:
        return ""  # the package is there, and a module of it is not: installing it again would not help
    if top in IN_EXTRA:
        return f"; the extra '{EXTRA}' brings it: pip install -e '.[{EXTRA}]'"
    return f"; it is in no extra: pip install {BESIDE.get(top, top)}"
