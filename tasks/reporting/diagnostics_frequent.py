"""The most frequent text of a stream, in bounded memory (Misra and Gries 1982)."""

from collections import Counter


class Frequent:
    """Counts texts with at most ``size`` counters.

    A text's count is a lower bound that errs by at most ``total / size``, so that with 200 counters a text
    that makes up half of the stream is found and its share is right to half a per cent.
    """

    def __init__(self, size: int = 200) -> None:
        self.size = size
        self.total = 0
        self._counts: Counter[str] = Counter()

    def add(self, text: str) -> None:
        """Counts one text."""
        self.total += 1
        if text in self._counts or len(self._counts) < self.size:
            self._counts[text] += 1
            return
        self._counts = Counter({kept: times - 1 for kept, times in self._counts.items() if times > 1})

    def top(self) -> tuple[str, int]:
        """The most frequent text and at least how often it came; ("", 0) for an empty stream."""
        return self._counts.most_common(1)[0] if self._counts else ("", 0)

    def top_share(self) -> float:
        """At least what share of the stream the most frequent text makes up."""
        return self.top()[1] / self.total if self.total else 0.0
