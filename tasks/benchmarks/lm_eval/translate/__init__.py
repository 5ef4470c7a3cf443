"""From lm-evaluation-harness's definitions to native config keys. A definition's keys become those of
``EvalConfig``; what has no counterpart is refused by name. Entered by ``tasks.benchmarks.lm_eval`` and the
config reader.
"""
