"""The error of datasets."""

from metrics.errors import ConfigError


class DataError(ConfigError):
    """A dataset, a template file or an item that can't be used; names the file and line, or the item."""
