"""Benchmarks: what is asked about the items of a dataset, and what is right."""
