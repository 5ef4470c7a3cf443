"""Renders documents of lm-evaluation-harness as requests: templates, few-shot examples, chat turns and
targets as the harness makes them. ``benchmark.HarnessBenchmark`` is the entrance, for ``benchmarks.open``.
"""
