"""From statistics of samples to rows of items to numbers: the engine behind reduce and aggregate."""
