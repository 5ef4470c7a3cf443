"""What can go wrong between a response and its score.

::

    NightjarError (ValueError)
    ├── FilterError      a filter could not work on a response, or gave back another shape than it may
    └── ScorerError      a scorer could not score an item: the message names it
"""

from metrics.errors import NightjarError


class FilterError(NightjarError):
    """A filter met a response it is not made for, or returned something that is not a list per item."""


class ScorerError(NightjarError):
    """A scorer, or the user's function inside it, failed on an item that the message names."""
