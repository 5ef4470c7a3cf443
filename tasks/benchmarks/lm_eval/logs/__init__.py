"""lm-evaluation-harness's own logs: sample logs and results, read to be scored again and written beside our
files. Entered by the publish stage's exports and by ``--from-samples``.
"""
