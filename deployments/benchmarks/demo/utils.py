"""The six metrics of GSM8K as a process_results function."""

import re
from functools import lru_cache

ROUGE = ("rouge1", "rouge2", "rougeL")
STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
NUMBER = re.compile(
    r"(?:(?<![\w)\]])[-\u2212])?\$?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+|(?=\.[0-9]))(?:\.[0-9]+)?"
)


def process_results(doc, results):
    """Scores of one response. BLEU is of the corpus: its value is the pair that the aggregation takes."""
    response, solution = results[0], doc["answer"]
    gold = normalised(solution.rpartition("#### ")[2])
    strict = STRICT.search(response)
    numbers = [found.group() for found in NUMBER.finditer(response)]
    return {
        "exact_match,strict-match": float(strict is not None and normalised(strict[1]) == gold),
        "exact_match,flexible-extract": float(bool(numbers) and normalised(numbers[-1]) == gold),
        "bleu": (solution, response),
        **{name: 100 * score.fmeasure for name, score in rouge_scorer().score(solution, response).items()},
    }


def normalised(number):
    """A number without thousands separators, dollar signs and a trailing period."""
    return re.sub(r"\.$", "", number.replace(",", "").replace("$", "").lower())


@lru_cache(maxsize=1)
def rouge_scorer():
    """Made at the first response: the library takes longer to import than the benchmark to load."""
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(ROUGE), use_stemmer=True)
