"""From statistics of samples to rows of items to numbers: the engine behind reduce and aggregate."""

from tasks.reduction.aggregate import aggregate_pair
from tasks.reduction.reduce import reduce_pair
from tasks.rows.parts import FailedPart, Origin, PairIdentity, Part, from_batches

__all__ = ["FailedPart", "Origin", "PairIdentity", "Part", "aggregate_pair", "from_batches", "reduce_pair"]
