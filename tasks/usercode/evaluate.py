"""``evaluate.load(name).compute(…)`` as benchmarks' files call it, computed by this program's own metrics.

The library itself fetches the code of a metric from a hub. The metrics that benchmarks use are here: the
same arguments, the same keys and the same numbers.

``evaluate.load("code_eval")`` says whether programs that a model wrote pass their tests. Nothing runs
where it is asked. A function that asks is called twice: ``collecting`` notes its programs, the stage
``execute`` runs them in a sandbox, and ``answering`` gives it their verdicts, found by digest. Many files
ask about a program of their own while they are imported, to see whether they may: outside of both it is
told that nothing passed, and nothing is scored by that.
"""

import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from metrics.aggregation import build_aggregation
from metrics.aliases import nearest
from metrics.errors import ConfigError, NightjarError
from metrics.reductions.pass_at_k import hypergeometric_tail
from metrics.registry import METRICS
from scorers.config import Program, ProgramLimits
from tasks.usercode.files import imported_files

SECONDS: Final = 3.0
"""The library's own limit, unless the caller gives one."""
MEMORY_MB: Final = 4_096
OUTPUT_KB: Final = 16_384
PROCESSES: Final = 64
"""The library limits none of these: they are wide."""
_LOADED = re.compile(r"""\bload\(\s*(?:path\s*=\s*)?["'](?:[\w.-]+/)?code_eval["']""")


class CodeVerdict(NamedTuple):
    """What came of a program: whether it passed, and that in the library's words.

    ``lost`` says why the sandbox could not run it: then nothing is known of it.
    """

    passed: bool
    result: str
    lost: str | None = None


class ProgramLostError(NightjarError):
    """The sandbox could not run a program that a metric asks about."""


Asked = dict[str, Program]
"""Digest → program, in the order in which they were asked about."""

_asked: ContextVar[Asked | None] = ContextVar("asked_programs", default=None)
_known: ContextVar[Mapping[str, CodeVerdict] | None] = ContextVar("known_programs", default=None)
_importing: ContextVar[bool] = ContextVar("importing", default=False)


@contextmanager
def collecting() -> Iterator[Asked]:
    """Inside the block programs are noted and not run; functions are told that none passed."""
    asked: Asked = {}
    token = _asked.set(asked)
    try:
        yield asked
    finally:
        _asked.reset(token)


@contextmanager
def answering(verdicts: Mapping[str, CodeVerdict]) -> Iterator[None]:
    """Inside the block functions are told ``verdicts``; asking about any other program raises ConfigError."""
    token = _known.set(verdicts)
    try:
        yield
    finally:
        _known.reset(token)


@contextmanager
def importing() -> Iterator[None]:
    """Inside the block a file is imported, which may ask about programs for no score."""
    token = _importing.set(True)
    try:
        yield
    finally:
        _importing.reset(token)


def asks_about_programs(function: Callable[..., Any] | None) -> bool:
    """Whether the file of a function, or a file beside it that it imports, loads ``code_eval``."""
    if function is None:
        return False
    try:
        source = inspect.getsourcefile(inspect.unwrap(getattr(function, "func", function)))
    except TypeError:
        return False
    return source is not None and loads_code_eval(Path(source))


def loads_code_eval(path: Path) -> bool:
    """Whether a Python file, or one beside it that it imports, loads ``code_eval``."""
    try:
        return _loads(path.resolve(), path.stat().st_mtime_ns)
    except OSError:
        return False


@cache
def _loads(path: Path, _: int) -> bool:
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in sorted(imported_files(path)))
    return any(_LOADED.search(text) for text in texts)


def program_of(candidate: str, test: str, seconds: float = SECONDS) -> Program:
    """The program that the library runs for a candidate and its test: with the packages of our own
    interpreter, and not as ``__main__``."""
    limits = ProgramLimits(
        seconds=seconds, memory_mb=MEMORY_MB, processes=PROCESSES, output_kb=OUTPUT_KB, disk_mb=64
    )
    return Program(f"{candidate}\n{test}", limits, interpreter=sys.executable, script=False)


def digest_of(program: Program) -> str:
    """Name of a program among those that are asked about, 64 hexadecimal digits."""
    text = f"{program.limits.seconds}\0{program.text}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def code_eval(
    predictions: Sequence[Sequence[str]],
    references: Sequence[str],
    k: int | Sequence[int] = (1, 10, 100),
    num_workers: int = 4,
    timeout: float = SECONDS,
) -> tuple[dict[str, Any], dict[int, list[tuple[int, dict[str, Any]]]]]:
    """The library's ``compute``: pass@k over all tests, and what came of every candidate.

    ``predictions[i]`` are candidates for the test ``references[i]``; a k is left out where a test has fewer.
    ``num_workers`` has no say here.
    """
    verdicts = [
        [_verdict(program_of(candidate, test, float(timeout))) for candidate in candidates]
        for candidates, test in zip(predictions, references, strict=False)
    ]
    results = {
        task: [(place, _result(task, place, verdict)) for place, verdict in enumerate(own)]
        for task, own in enumerate(verdicts)
        if own
    }
    counts = [(len(own), sum(verdict.passed for verdict in own)) for own in verdicts if own]
    levels = [k] if isinstance(k, int) else list(k)
    shares = {
        f"pass@{level}": np.mean([hypergeometric_tail(n, right, level, 1) for n, right in counts])
        for level in levels
        if counts and all(n >= level for n, _ in counts)
    }
    return shares, results


def _result(task: int, place: int, verdict: CodeVerdict) -> dict[str, Any]:
    return {
        "task_id": task,
        "passed": verdict.passed,
        "result": verdict.result,
        "completion_id": place,
    }


def _verdict(program: Program) -> CodeVerdict:
    name, asked, known = digest_of(program), _asked.get(), _known.get()
    if asked is not None:
        asked.setdefault(name, program)
        return CodeVerdict(False, "not run yet")
    if known is None:
        if _importing.get():
            return CodeVerdict(False, "not run")
        raise ConfigError(
            "evaluate.load('code_eval') is answered in metrics and process_results of a benchmark whose own "
            "file loads it by that name; elsewhere use scorer: {type: execution}"
        )
    if name not in known:
        raise ConfigError(
            "evaluate.load('code_eval') got a program that the function did not ask for when it was called "
            "first; it must ask for the same programs each time: nothing at random, nothing that depends "
            "on a verdict"
        )
    found = known[name]
    if found.lost is not None:
        raise ProgramLostError(found.lost)
    return found


Result = Any
Compute = Callable[..., Result]


class EvaluationModule:
    """A loaded metric: collects predictions and references, and computes one number of them."""

    def __init__(self, name: str, function: Compute) -> None:
        self.name = name
        self._function = function
        self._predictions: list[Any] = []
        self._references: list[Any] = []

    def compute(self, *, predictions: Any = None, references: Any = None, **arguments: Any) -> Result:
        """The metric of what is given and what was added before; nothing is left added."""
        self.add_batch(predictions=predictions, references=references)
        given, self._predictions = self._predictions, []
        golds, self._references = self._references, []
        return self._function(given, golds, **arguments)

    def add(self, *, prediction: Any = None, reference: Any = None, **_: Any) -> None:
        """Adds one prediction and its reference."""
        self._predictions.append(prediction)
        self._references.append(reference)

    def add_batch(self, *, predictions: Any = None, references: Any = None, **_: Any) -> None:
        """Adds several."""
        self._predictions.extend([] if predictions is None else predictions)
        self._references.extend([] if references is None else references)


def load(
    path: str, *arguments: Any, library: Callable[[], Any] = lambda: None, **options: Any
) -> EvaluationModule:
    """The metric called ``path``. One that is not here is that of ``library()``, where that gives one.

    ``compute`` of any other raises ConfigError: files load more metrics than a benchmark is scored by.
    """
    name = path.rpartition("/")[2]
    if name in METRICS_OF_EVALUATE:
        return EvaluationModule(name, METRICS_OF_EVALUATE[name])

    def elsewhere(predictions: Any, references: Any, **given: Any) -> Result:
        if name in REFUSED:
            raise ConfigError(f"evaluate.load('{path}') {REFUSED[name]}")
        theirs = library()
        if theirs is None:
            raise ConfigError(
                f"evaluate.load('{path}') needs the library itself (pip install evaluate); here are "
                f"{', '.join(METRICS_OF_EVALUATE)}{nearest(name, METRICS_OF_EVALUATE)}"
            )
        try:
            module = theirs.load(path, *arguments, **options)
        except Exception as error:
            raise ConfigError(
                f"evaluate.load('{path}') is not available: {type(error).__name__}: {error}"
            ) from error
        return module.compute(predictions=predictions, references=references, **given)

    return EvaluationModule(name, elsewhere)


def combine(
    evaluations: Sequence[str | EvaluationModule], *, library: Callable[[], Any] = lambda: None, **_: Any
) -> EvaluationModule:
    """Several metrics as one, whose result holds the entries of all."""
    modules = [load(entry, library=library) if isinstance(entry, str) else entry for entry in evaluations]

    def all_of(predictions: Any, references: Any, **arguments: Any) -> Result:
        found: dict[str, Any] = {}
        for module in modules:
            value = module.compute(predictions=predictions, references=references, **arguments)
            found |= value if isinstance(value, Mapping) else {module.name: value}
        return found

    return EvaluationModule("combined", all_of)


def _accuracy(
    predictions: Sequence[Any], references: Sequence[Any], normalize: bool = True, sample_weight: Any = None
) -> Result:
    right = np.array([own == gold for own, gold in zip(predictions, references, strict=True)], dtype=float)
    if not normalize:
        return {
            "accuracy": float(np.dot(right, np.ones(len(right)) if sample_weight is None else sample_weight))
        }
    return {"accuracy": float(np.average(right, weights=sample_weight))}


def _exact_match(predictions: Sequence[Any], references: Sequence[Any], **arguments: Any) -> Result:
    scores = METRICS["exact_match"].function(
        [[str(gold)] for gold in references], [str(own) for own in predictions], **arguments
    )
    return {"exact_match": float(np.mean(scores.score))}


def _f1(
    predictions: Sequence[Any],
    references: Sequence[Any],
    labels: Any = None,
    pos_label: Any = 1,
    average: str | None = "binary",
    sample_weight: Any = None,
) -> Result:
    if labels is not None or sample_weight is not None or average is None:
        raise ConfigError(
            "evaluate.load('f1') here takes pos_label and average: binary, macro, micro or weighted"
        )
    arguments: dict[str, Any] = {"average": average}
    if average == "binary":
        arguments["pos_label"] = pos_label
    return {"f1": _aggregated("f1", list(zip(references, predictions, strict=True)), arguments)}


def _mcc(predictions: Sequence[Any], references: Sequence[Any], sample_weight: Any = None) -> Result:
    if sample_weight is not None:
        raise ConfigError("evaluate.load('matthews_correlation') here takes no sample_weight")
    pairs = list(zip(references, predictions, strict=True))
    return {"matthews_correlation": _aggregated("matthews_corrcoef", pairs, {})}


def _squad(predictions: Sequence[Any], references: Sequence[Any]) -> Result:
    texts = {row["id"]: row["prediction_text"] for row in predictions}
    golds = [(list(row["answers"]["text"]), texts.get(row["id"])) for row in references]
    asked = [(own, text) for own, text in golds if text is not None]
    total = max(len(golds), 1)  # the library counts what was not answered as wrong
    return {
        "exact_match": _squad_mean("squad_exact_match", asked, total),
        "f1": _squad_mean("token_f1", asked, total),
    }


def _squad_mean(name: str, asked: Sequence[tuple[list[str], str]], total: int) -> float:
    if not asked:
        return 0.0
    scores = METRICS[name].function([own for own, _ in asked], [text for _, text in asked])
    return 100.0 * float(np.sum(scores)) / total


ROUGES: Final = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def _rouge(
    predictions: Sequence[str],
    references: Sequence[Any],
    rouge_types: Sequence[str] | None = None,
    use_aggregator: bool = True,
    use_stemmer: bool = False,
    tokenizer: Callable[[str], list[str]] | None = None,
) -> Result:
    kinds = list(rouge_types or ROUGES)
    if tokenizer is not None or not set(kinds) <= set(ROUGES):
        return _rouge_by_library(predictions, references, kinds, use_aggregator, use_stemmer, tokenizer)
    golds = _lists(references)
    columns = {
        kind: METRICS[kind].function(golds, list(predictions), use_stemmer=use_stemmer, scale=1.0)
        for kind in kinds
    }
    if not use_aggregator:
        return {kind: column.tolist() for kind, column in columns.items()}
    return {kind: _middle(column) for kind, column in columns.items()}


def _rouge_by_library(
    predictions: Sequence[str],
    references: Sequence[Any],
    kinds: Sequence[str],
    use_aggregator: bool,
    use_stemmer: bool,
    tokenizer: Callable[[str], list[str]] | None,
) -> Result:
    """By rouge-score, for other orders of n-grams and for a tokeniser of the caller's."""
    from rouge_score.rouge_scorer import RougeScorer

    wrapped = None
    if tokenizer is not None:
        wrapped = type("Tokenizer", (), {"tokenize": staticmethod(tokenizer)})()
    scorer = RougeScorer(list(kinds), use_stemmer=use_stemmer, tokenizer=wrapped)
    scores = [
        scorer.score(gold, own) if isinstance(gold, str) else scorer.score_multi(list(gold), own)
        for gold, own in zip(references, predictions, strict=True)
    ]
    columns = {kind: np.array([score[kind].fmeasure for score in scores]) for kind in kinds}
    return {kind: _middle(column) if use_aggregator else column.tolist() for kind, column in columns.items()}


DRAWS: Final = 1000


def _middle(column: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """The median of 1,000 bootstrapped means, as rouge-score's aggregator has it; it draws from numpy's
    global generator, and so does this: of one text it is its own score."""
    if len(column) == 1:
        return float(column[0])
    size = len(column)
    means = [np.mean(column[np.random.choice(np.arange(size), size=size)]) for _ in range(DRAWS)]
    return float(np.percentile(means, 50))


def _bleu(
    predictions: Sequence[str],
    references: Sequence[Any],
    tokenizer: Callable[[str], list[str]] | None = None,
    max_order: int = 4,
    smooth: bool = False,
) -> Result:
    golds = _lists(references)
    if tokenizer is None:
        from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

        line = Tokenizer13a()  # type: ignore[no-untyped-call]  # sacrebleu has no types

        def tokenizer(text: str) -> list[str]:
            return str(line(text)).split()

    return _nmt_bleu(
        [tokenizer(text) for text in predictions],
        [[tokenizer(gold) for gold in own] for own in golds],
        max_order,
        smooth,
    )


def _nmt_bleu(
    texts: Sequence[Sequence[str]], golds: Sequence[Sequence[Sequence[str]]], order: int, smooth: bool
) -> Result:
    """BLEU of the tensorflow/nmt script: the shortest reference's length, matches clipped by the union."""
    from collections import Counter

    def grams(tokens: Sequence[str], size: int) -> "Counter[tuple[str, ...]]":
        return Counter(tuple(tokens[at : at + size]) for at in range(len(tokens) - size + 1))

    matches, possible = [0] * order, [0] * order
    own_length = gold_length = 0
    for own, references in zip(texts, golds, strict=True):
        own_length += len(own)
        gold_length += min(map(len, references))
        for size in range(1, order + 1):
            union: Counter[tuple[str, ...]] = Counter()
            for reference in references:
                union |= grams(reference, size)
            matches[size - 1] += sum((grams(own, size) & union).values())
            possible[size - 1] += max(len(own) - size + 1, 0)
    precisions = [
        (right + 1.0) / (all_ + 1.0) if smooth else (right / all_ if all_ > 0 else 0.0)
        for right, all_ in zip(matches, possible, strict=True)
    ]
    mean = float(np.exp(sum(np.log(precisions)) / order)) if min(precisions) > 0 else 0.0
    ratio = own_length / gold_length
    brevity = 1.0 if ratio > 1.0 else float(np.exp(1 - 1.0 / ratio)) if ratio > 0 else 0.0
    return {
        "bleu": mean * brevity, "precisions": precisions, "brevity_penalty": brevity, "length_ratio": ratio,
        "translation_length": own_length, "reference_length": gold_length,
    }  # fmt: skip


def _sacrebleu(
    predictions: Sequence[str],
    references: Sequence[Any],
    smooth_method: str = "exp",
    smooth_value: float | None = None,
    force: bool = False,
    lowercase: bool = False,
    tokenize: str | None = None,
    use_effective_order: bool = False,
) -> Result:
    import sacrebleu

    chosen = {} if tokenize is None else {"tokenize": tokenize}
    output = sacrebleu.corpus_bleu(
        list(predictions), _columns(references), smooth_method=smooth_method, smooth_value=smooth_value,
        force=force, lowercase=lowercase, use_effective_order=use_effective_order, **chosen,
    )  # fmt: skip
    return {
        "score": output.score, "counts": output.counts, "totals": output.totals,
        "precisions": output.precisions, "bp": output.bp, "sys_len": output.sys_len,
        "ref_len": output.ref_len,
    }  # fmt: skip


def _chrf(
    predictions: Sequence[str],
    references: Sequence[Any],
    char_order: int = 6,
    word_order: int = 0,
    beta: int = 2,
    lowercase: bool = False,
    whitespace: bool = False,
    eps_smoothing: bool = False,
) -> Result:
    options = {
        "char_order": char_order, "word_order": word_order, "beta": beta, "lowercase": lowercase,
        "whitespace": whitespace, "eps_smoothing": eps_smoothing,
    }  # fmt: skip
    score = _aggregated("chrf", _text_pairs(predictions, references), options)
    return {"score": score, "char_order": char_order, "word_order": word_order, "beta": beta}


def _ter(
    predictions: Sequence[str],
    references: Sequence[Any],
    normalized: bool = False,
    ignore_punct: bool = False,
    support_zh_ja_chars: bool = False,
    case_sensitive: bool = False,
) -> Result:
    options = {
        "normalized": normalized, "no_punct": ignore_punct, "asian_support": support_zh_ja_chars,
        "case_sensitive": case_sensitive,
    }  # fmt: skip
    built = build_aggregation("ter", options)
    scores = built.scores(_text_pairs(predictions, references))
    edits, length = np.asarray(scores.statistics).sum(axis=0).tolist()
    value = built.value(scores.statistics, scores.values)
    return {"score": value, "num_edits": int(edits), "ref_length": length}


def _wer(predictions: Sequence[str], references: Sequence[str], **_: Any) -> Result:
    return _aggregated("wer", list(zip(references, predictions, strict=True)), {})


def _text_pairs(predictions: Sequence[str], references: Sequence[Any]) -> list[tuple[list[str], str]]:
    return list(zip(_lists(references), predictions, strict=True))


def _lists(references: Sequence[Any]) -> list[list[str]]:
    """The references of each prediction, of which it may have one alone."""
    return [[gold] if isinstance(gold, str) else list(gold) for gold in references]


def _columns(references: Sequence[Any]) -> list[list[str]]:
    """References by column, as sacrebleu takes them; every prediction has as many."""
    golds = _lists(references)
    return [list(column) for column in zip(*golds, strict=True)]


def _aggregated(name: str, values: Sequence[Any], arguments: Mapping[str, Any]) -> float:
    built = build_aggregation(name, arguments)
    scores = built.scores(values)
    return built.value(scores.statistics, scores.values)


METRICS_OF_EVALUATE: Final[Mapping[str, Compute]] = {
    "accuracy": _accuracy,
    "bleu": _bleu,
    "chrf": _chrf,
    "code_eval": code_eval,
    "exact_match": _exact_match,
    "f1": _f1,
    "matthews_correlation": _mcc,
    "rouge": _rouge,
    "sacrebleu": _sacrebleu,
    "squad": _squad,
    "ter": _ter,
    "wer": _wer,
}
REFUSED: Final[Mapping[str, str]] = {
    "perplexity": "runs a language model of its own; score log-likelihoods (output_type "
    "loglikelihood_rolling) instead",
}
