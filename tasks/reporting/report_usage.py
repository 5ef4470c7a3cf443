"""What a run used, by model: counted over its samples, since the manifest knows totals only."""

from dataclasses import dataclass, field

from tasks.reporting.view import SampleView


@dataclass
class ModelUsage:
    """Samples of one model: how many, how many without an answer, tokens, and seconds an answer took."""

    samples: int = 0
    failed: int = 0
    cut: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    timed: int = 0
    seconds: float = 0.0

    @property
    def seconds_each(self) -> float | None:
        """Mean time of an answer; None if no endpoint reported any."""
        return self.seconds / self.timed if self.timed else None


@dataclass
class Usage:
    """Counts by model, and the number of distinct samples, in the order in which models appear."""

    models: dict[str, ModelUsage] = field(default_factory=dict)

    def add(self, sample: SampleView) -> None:
        """Takes one sample into account."""
        usage = self.models.setdefault(sample.model_name, ModelUsage())
        for response in sample.responses:
            usage.samples += 1
            usage.failed += not response.ok
            usage.cut += response.finish_reason == "length"
            usage.prompt_tokens += response.prompt_tokens or 0
            usage.completion_tokens += response.completion_tokens or 0
            if response.seconds is not None:
                usage.timed += 1
                usage.seconds += response.seconds

    @property
    def samples(self) -> int:
        """Samples of all models."""
        return sum(usage.samples for usage in self.models.values())

    @property
    def failed(self) -> int:
        """Samples without an answer, of all models."""
        return sum(usage.failed for usage in self.models.values())
