"""From statistics of samples to rows of items to numbers: the engine behind the stages reduce and aggregate.

``reduce`` groups samples by item, facets and label and reduces repeats; ``aggregate`` makes numbers with
error bars of the item rows. The stages enter, each by its own module: what one runs is not in the key of the
other.
"""
