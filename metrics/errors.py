"""The errors that people see.

NightjarError            one sentence: what was expected, what came, what to do
├─ ConfigError           a config, an argument or a user's function that can't be used; refused before anything starts
├─ DataError             a dataset or recorded responses that can't be read, naming file and line
└─ MetricError           a metric that raised on an item, naming the row
"""


class NightjarError(ValueError):
    """Base of every error whose message is meant for the person who started the run."""


class ConfigError(NightjarError):
    """A config, argument or user function that can't be used."""


class DataError(NightjarError):
    """A dataset or a file of responses that can't be read."""


class MetricError(NightjarError):
    """A metric that raised; ``index`` is the row of the batch it raised on."""

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index
