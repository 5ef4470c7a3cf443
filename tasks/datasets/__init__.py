"""Rows of files, functions and hubs as items.

``items`` opens a dataset and is the door; ``files`` reads rows with the place that each came from,
``config`` is what a config may say. Benchmarks and the config reader enter.
"""
