"""The logs of lm-evaluation-harness: sample logs that are scored again (``rescoring``, for
``--from-samples``), and result files written as the harness writes them (``results``, for the command
line).
"""
