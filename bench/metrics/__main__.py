"""How fast scores and error bars are, beside the peers: ``python -m bench.metrics [--quick] [PART ...]``.

CPU seconds of one process; the ratios are what counts on a busy machine. Peers: lm-evaluation-harness where
it is installed (``pip install lm-eval``), sacrebleu, rouge-score.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from bench.metrics import peers, workloads
from metrics.build import build_column, build_metric
from metrics.config import MetricConfig, StatisticsConfig
from metrics.metric import Metric
from metrics.reductions.pass_at_k import hypergeometric_tail, tabulated
from metrics.statistics.estimate import estimate
from metrics.text import rouge as rouge_tokens

OPTIONS = StatisticsConfig()
BOOTSTRAP = StatisticsConfig(method="bootstrap")


@dataclass(frozen=True)
class Row:
    """One line of the table: our seconds, the peer's, and the ratio that was aimed at."""

    work: str
    peer: str
    ours: float
    theirs: float
    target: float


def build(entry: Any, output_type: Any = None) -> Metric:
    return build_metric(MetricConfig.model_validate(entry), _no_user_code, output_type)


def _no_user_code(reference: str) -> Any:
    raise LookupError(reference)


def corpus_metrics(docs: workloads.Documents, peer: Any) -> Iterator[Row]:
    items = [(golds[0], text) for golds, text in zip(docs.references, docs.texts, strict=True)]
    for name, target, tried in (("bleu", 500, 2), ("chrf", 1200, 1), ("chrf++", 900, 1), ("ter", 85, 0)):
        metric = build(name)

        def ours(metric: Metric = metric) -> None:
            scores = metric.evaluate(docs.references, docs.texts)
            estimate(metric.aggregation, scores.statistics, None, None, OPTIONS)

        ours()  # compiled code and imports are there
        aggregate = {"chrf++": peer.chrfpp}.get(name) or getattr(peer, name)
        if tried:
            theirs = peers.score_and_bootstrap(aggregate, items, peers.TEXT_DRAWS, tried)
        else:  # one corpus TER takes minutes: forty documents of it
            theirs = (
                peers.seconds(lambda a=aggregate: a(items[:40])) * len(items) / 40 * (peers.TEXT_DRAWS + 1)
            )
        target = 10_000 if name == "ter" and _compiled() else target
        yield Row(
            f"{name}: score and error, {len(items):,} documents",
            "lm-eval, scaled",
            _time(ours),
            theirs,
            target,
        )


def label_metrics(n: int, peer: Any) -> Iterator[Row]:
    pairs = workloads.labels(n)
    for name, aggregate in (("f1", peer.f1_score), ("matthews_corrcoef", peer.matthews_corrcoef)):
        metric = build_column(MetricConfig(metric=name, aggregation=name), _no_user_code)
        scores = metric.scores_of(pairs)
        ours = _time(
            lambda m=metric, s=scores: estimate(m.aggregation, s.statistics, s.values, None, OPTIONS)
        )
        theirs = peers.score_and_bootstrap(aggregate, pairs, peers.DRAWS, 20)
        yield Row(f"{name}: error, {n:,} items", "lm-eval, scaled", ours, theirs, 50_000)


def number_metrics(n: int, peer: Any) -> Iterator[Row]:
    values = np.random.default_rng(1).normal(-2, 1, n)
    for name, aggregate in (("median", peer.median), ("perplexity", peer.perplexity)):
        aggregation = build_column(MetricConfig(metric=name, aggregation=name), _no_user_code).aggregation
        table = values.reshape(-1, 1)
        ours = (
            _time(lambda a=aggregation, t=table: [estimate(a, t, values, None, OPTIONS) for _ in range(20)])
            / 20
        )
        theirs = peers.score_and_bootstrap(aggregate, values.tolist(), peers.DRAWS, 200)
        yield Row(f"{name}: error, {n:,} items", "lm-eval, scaled", ours, theirs, 100_000)


def bootstrap_draws(sizes: tuple[int, ...]) -> Iterator[Row]:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.significance import _bootstrap_resample

    rows = build("bleu").evaluate(*_columns(workloads.documents(300))).statistics
    assert rows is not None
    for n, target in zip(sizes, (50, 200), strict=True):
        table = np.tile(rows, (n // 300 + 1, 1))[:n] + np.random.default_rng(2).integers(0, 2, (n, 1))
        aggregation = build("bleu").aggregation
        ours = _time(lambda a=aggregation, t=table: estimate(a, t, None, None, BOOTSTRAP))
        listed = table.astype(int).tolist()
        theirs = peers.seconds(lambda s=listed: _bootstrap_resample(s, BLEU(), 1000)) * 100
        yield Row(f"bleu: 100,000 draws, {n:,} documents", "sacrebleu, 1,000 × 100", ours, theirs, target)


def text_statistics(docs: workloads.Documents) -> Iterator[Row]:
    import sacrebleu

    yield from rouge(docs)
    streams = [[golds[0] for golds in docs.references]]
    libraries = {
        "chrf": sacrebleu.CHRF(),
        "chrf++": sacrebleu.CHRF(word_order=2),
        "bleu": sacrebleu.BLEU(force=True),
    }
    for name, target in (("chrf", 14), ("chrf++", 9), ("bleu", 7)):
        metric = build(name)
        ours = _time(lambda m=metric: m.evaluate(docs.references, docs.texts))
        theirs = peers.seconds(lambda s=libraries[name]: s._extract_corpus_statistics(docs.texts, streams))
        yield Row(f"{name}: statistics, {len(docs.texts):,} documents", "sacrebleu", ours, theirs, target)


def rouge(docs: workloads.Documents) -> Iterator[Row]:
    from rouge_score.rouge_scorer import RougeScorer

    kinds = ["rouge1", "rouge2", "rougeL"]
    for stemming in (False, True):
        metrics = [build({"metric": kind, "use_stemmer": stemming}) for kind in kinds]
        scorer = RougeScorer(kinds, use_stemmer=stemming)

        def ours(metrics: list[Metric] = metrics) -> None:
            rouge_tokens.forget()  # the three share their tokens, the runs must share nothing
            for metric in metrics:
                metric.evaluate(docs.references, docs.texts)

        def theirs(scorer: Any = scorer) -> None:
            for golds, text in zip(docs.references, docs.texts, strict=True):
                scorer.score_multi(golds, text)

        work = f"ROUGE-1/2/L{', stemmed' if stemming else ''}: {len(docs.texts):,} documents"
        yield Row(work, "rouge-score", _time(ours), peers.seconds(theirs), 40)


def item_metrics(n: int, peer: Any) -> Iterator[Row]:
    references, predictions = workloads.answers(n)
    few = n // 20
    metric = build({"metric": "exact_match", "regexes_to_ignore": [",", r"\$", r"\.$"], "ignore_case": True})
    ours = _time(lambda: metric.evaluate(references, predictions))
    theirs = 20 * peers.seconds(
        lambda: peers.exact_match(peer, references[:few], predictions[:few]), repeats=5
    )
    yield Row(f"exact_match, normalised: {n:,} items", "lm-eval", ours, theirs, 20)
    names = ("acc", "acc_norm", "acc_bytes", "exact_match", "brier_score")
    batch, part = workloads.choices(n), workloads.choices(few)
    built = [build(name, "multiple_choice") for name in names]
    ours = _time(lambda: [metric.evaluate_choices(batch) for metric in built])
    theirs = 20 * peers.seconds(lambda: peers.multiple_choice(part, names))
    yield Row(f"five multiple-choice metrics: {n:,} items", "lm-eval", ours, theirs, 80)


def pass_at_k(items: int) -> Iterator[Row]:
    for mixed, target in ((False, 1000), (True, 200)):
        n, c = workloads.repeats(items, mixed)

        def ours(n: Any = n, c: Any = c) -> None:
            hypergeometric_tail.cache_clear()
            tabulated(n, c, 8, lambda repeats, right: hypergeometric_tail(repeats, right, 8, 1))

        few_n, few_c = n[: items // 50].tolist(), c[: items // 50].tolist()
        theirs = 50 * peers.seconds(lambda n=few_n, c=few_c: peers.pass_at_k(n, c, 8))
        yield Row(
            f"pass@8, {'8 to 64' if mixed else '64'} repeats: {items:,} items",
            "per-item loop",
            _time(ours),
            theirs,
            target,
        )


def _columns(docs: workloads.Documents) -> tuple[list[list[str]], list[str]]:
    return docs.references, docs.texts


def _time(work: Callable[[], Any]) -> float:
    return peers.seconds(work, repeats=5)


def _compiled() -> bool:
    from metrics.text.ter import by_sacrebleu, edit_counter

    return edit_counter() is not by_sacrebleu


def tables(quick: bool) -> dict[str, Callable[[], Iterator[Row]]]:
    """The parts of the table by the names under which they can be asked for."""
    docs = workloads.documents(300 if quick else 1319)
    peer = peers.harness()
    alone = {
        "text": lambda: text_statistics(docs),
        "draws": lambda: bootstrap_draws((1319, 10_000)),
        "pass": lambda: pass_at_k(200_000 if quick else 1_000_000),
    }
    if peer is None:
        print("lm-evaluation-harness is not installed: its rows are left out (pip install lm-eval)")
        return alone
    return alone | {
        "numbers": lambda: number_metrics(10_000, peer),
        "labels": lambda: label_metrics(10_000, peer),
        "items": lambda: item_metrics(40_000 if quick else 200_000, peer),
        "corpus": lambda: corpus_metrics(docs, peer),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.metrics", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="fewer documents and items")
    parser.add_argument(
        "parts", nargs="*", help="text, draws, pass, numbers, labels, items, corpus; else all"
    )
    options = parser.parse_args()
    made = tables(options.quick)
    unknown = sorted(set(options.parts) - set(made))
    if unknown:
        parser.error(f"no part named {unknown[0]}; there are {', '.join(made)}")
    print(f"{'work':58} {'peer':22} {'ours, s':>10} {'peer, s':>12} {'ratio':>10} {'at least':>9}")
    for row in chain.from_iterable(made[part]() for part in options.parts or made):
        ratio = row.theirs / row.ours
        print(
            f"{row.work:58} {row.peer:22} {row.ours:10.5f} {row.theirs:12.2f} {ratio:10,.0f} "
            f"{row.target:9,.0f}{'' if ratio >= row.target else '  below'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
