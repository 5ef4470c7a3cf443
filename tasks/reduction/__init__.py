"""Samples become item rows, and item rows become numbers with their uncertainty.

``reduce`` does the first, ``aggregate`` the second, for pairs and for metrics over evaluation results. The
stages enter, each by its own module. Everything reads columns as arrays: a million samples take the memory of
their numbers.
"""
