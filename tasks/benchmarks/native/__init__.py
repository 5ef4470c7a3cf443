"""Benchmarks of this project's own config: items rendered by Jinja2 templates. ``NativeBenchmark`` is the
door, opened by ``tasks.benchmarks``; templates and few-shot examples stand behind it.
"""
