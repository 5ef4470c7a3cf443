"""References to artifacts: what tasks hand each other instead of rows."""

from pydantic import BaseModel, ConfigDict


class ArtifactRef(BaseModel):
    """Names an artifact in the store, and says what must be found there.

    No path is in it: the store's root is configuration, so a store can be moved. Two references with equal
    ``digest`` hold the same bytes, whatever made them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    """The stage that made it, which is its folder in the store."""
    key: str
    """The cache key it was made under, 64 hexadecimal digits."""
    digest: str
    """SHA-256 of the file, 64 hexadecimal digits."""
    rows: int
    bytes: int
    retryable: int = 0
    """Rows worth asking again (requests that failed for now). Above zero the reference is never served from
    a cache."""

    @property
    def name(self) -> str:
        """Path of the file below the store's root.

        The digest is part of it, so that two workers that compute the same key at the same time, with
        answers that arrived at different seconds, never replace a file that another reader has been
        promised.
        """
        return f"{self.kind}/{self.key}.{self.digest[:16]}.parquet"
