"""The one door to benchmarks: which reader a config asks for."""

from tasks.benchmarks.config import BenchmarkFields
from tasks.benchmarks.records import Benchmark


def open_benchmark(fields: BenchmarkFields) -> Benchmark:
    """The benchmark that the config describes; raises NightjarError where a file it names can't be read."""
    if fields.harness is not None:
        from tasks.benchmarks.lm_eval import open_harness_benchmark

        return open_harness_benchmark(fields)
    from tasks.benchmarks.native.benchmark import NativeBenchmark

    return NativeBenchmark(fields)
