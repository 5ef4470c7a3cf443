"""From lm-evaluation-harness's documents to requests: templates, few-shot examples, chat turns and targets as
the harness makes them. ``LmEvalBenchmark`` is the door, opened by ``tasks.benchmarks``.
"""
