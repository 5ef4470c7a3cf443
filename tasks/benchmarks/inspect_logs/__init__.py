"""Evaluations of Inspect: its logs as benchmarks whose scores came with the responses."""

from tasks.benchmarks.inspect_logs.configs import logged_configs

__all__ = ["logged_configs"]
