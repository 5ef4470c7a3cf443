"""Opens the benchmark that a config describes: the one place that chooses the class that reads it.

Each class is imported when it is chosen, so that a native benchmark loads nothing of lm-evaluation-harness.
"""

from tasks.benchmarks.config import BenchmarkFields
from tasks.datasets.item import Benchmark


def open_benchmark(fields: BenchmarkFields) -> Benchmark:
    """The benchmark that the config describes: native, a definition of the harness, or a sample log of it.

    Raises NightjarError where a file that it names can't be read, and ConfigError for what may not run.
    """
    if fields.harness is None:
        from tasks.benchmarks.native import NativeBenchmark

        return NativeBenchmark(fields)
    if "samples" in fields.harness:
        from tasks.benchmarks.lm_eval.rescoring import LoggedBenchmark

        return LoggedBenchmark(fields.harness, fields.base_dir, fields.name, fields.cluster)
    from tasks.benchmarks.lm_eval.benchmark import HarnessBenchmark

    return HarnessBenchmark(fields.harness, fields.base_dir, fields.name, fields.cluster)
