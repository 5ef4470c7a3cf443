"""How much the anchors of a YAML file may repeat, no matter what reads it."""

from typing import Final

MOST_REPEATED: Final = 100_000
"""Values that the anchors of a YAML file may add to those written out. Who reads a config meets each of them,
and a few lines of anchors stand for billions."""
REPEATED_TOO_OFTEN: Final = f"its anchors repeat more than {MOST_REPEATED} values; write out what is meant"
