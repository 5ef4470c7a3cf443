"""Rows of files, functions and hubs as items.

``items`` opens a dataset and is the door, ``config`` is what a config may say. ``item`` is what all above
know of an item, and of a benchmark. Benchmarks and the config reader enter.
"""
