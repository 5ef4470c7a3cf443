"""Evaluations of other programs: what was answered and scored there is a run of ours, and nothing is asked.

``PROGRAMS`` says whose; a flag ``--from-…`` of the command line takes each one's files.
"""

from tasks.benchmarks.recorded.programs import PROGRAMS, recorded_configs

__all__ = ["PROGRAMS", "recorded_configs"]
