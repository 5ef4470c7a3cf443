"""Samples become item rows, and item rows become numbers with their uncertainty.

``reduce_pair`` does the first, ``aggregate_pair`` the second. The stages reduce and aggregate enter here, for
pairs and for metrics over evaluation results. Everything reads columns as arrays: a million samples take the
memory of their numbers.
"""

from tasks.reduction.aggregate import aggregate_pair
from tasks.reduction.reduce import reduce_pair
from tasks.rows.parts import FailedPart, Origin, PairIdentity, Part, from_batches

__all__ = ["FailedPart", "Origin", "PairIdentity", "Part", "aggregate_pair", "from_batches", "reduce_pair"]
