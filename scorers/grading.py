"""What a model that grades is asked: Jinja2 prompts over the sample, and the next attempt where a reply could
not be read. Judges and reward models render their requests with it; the ask stage repeats them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from metrics.aliases import nearest
from metrics.errors import ConfigError
from metrics.metric import Metric
from scorers.base import Batch, ModelReply, Scorer, ScorerError, ScorerRequest

if TYPE_CHECKING:
    import jinja2


ChatMessage = Mapping[str, str]


@dataclass(frozen=True)
class GradingPrompt:
    """A grading prompt: one text (with an optional system prompt), or chat turns, each content a template."""

    template: str | None = None
    messages: tuple[ChatMessage, ...] | None = None
    system_prompt: str | None = None

    def __post_init__(self) -> None:
        for text in self._texts():
            compiled(text)

    def render(self, variables: Mapping[str, Any], name: str) -> str | list[dict[str, str]]:
        """The prompt for one sample; raises ScorerError naming the sample and a variable that it does not
        have."""
        if self.messages is None and self.system_prompt is None:
            return render(self.template or "", variables, name)
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt is not None else []
        turns = (
            self.messages
            if self.messages is not None
            else ({"role": "user", "content": self.template or ""},)
        )
        return [
            {"role": turn["role"], "content": render(turn["content"], variables, name)}
            for turn in (*system, *turns)
        ]

    def _texts(self) -> Sequence[str]:
        texts = [self.template, self.system_prompt, *(turn["content"] for turn in self.messages or ())]
        return [text for text in texts if text is not None]


def prompt_variables(batch: Batch, row: int) -> dict[str, Any]:
    """What a grading prompt sees: the item's fields, and over them what is known of the sample.

    ``response`` is the unfiltered text, ``prediction`` what the filter left of it (empty where it found
    nothing), ``reference`` the first acceptable answer (empty where there is none), ``item`` holds all fields
    by name.
    """
    doc = batch.docs[row]
    references = list(batch.references[row])
    prediction = batch.predictions[row]
    return {
        **doc,
        "item": doc,
        "response": batch.responses[row] or "",
        "prediction": "" if prediction is None else prediction,
        "references": references,
        "reference": references[0] if references else "",
    }


def render(text: str, variables: Mapping[str, Any], name: str, what: str = "grading prompt") -> str:
    """One template filled in; raises ScorerError naming the sample. ``what`` is its name in messages."""
    from jinja2 import TemplateError, UndefinedError

    try:
        return compiled(text).render(variables)
    except UndefinedError as error:
        unknown = str(error.message or "").split("'")[1::2]
        hint = nearest(unknown[0], variables) if unknown else ""
        raise ScorerError(f"{name}: {what}: {error.message}{hint} (it sees {', '.join(variables)})") from None
    except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
        raise ScorerError(f"{name}: {what}: {error}") from error


@lru_cache(maxsize=64)
def compiled(text: str) -> "jinja2.Template":
    """The compiled template; raises ConfigError with the line of a syntax error."""
    from jinja2 import StrictUndefined, TemplateSyntaxError
    from jinja2.sandbox import SandboxedEnvironment

    try:
        # Not HTML: a grading prompt must show the answer as it is.
        return SandboxedEnvironment(
            undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
        ).from_string(text)
    except TemplateSyntaxError as error:
        raise ConfigError(f"grading prompt, line {error.lineno}: {error.message}") from None


def ask_again(
    scorer: Scorer,
    batch: Batch,
    metric: Metric,
    requests: Sequence[ScorerRequest],
    replies: Sequence[ModelReply | None],
) -> list[ScorerRequest | None]:
    """The next attempt beside each request whose reply could not be read; None beside all others.

    A request that failed has no reply yet and is not a new attempt: it is sent again as it is.
    """
    flags = scorer.unreadable(batch, metric, replies)
    return [next_attempt(request) if flag else None for request, flag in zip(requests, flags, strict=True)]


def next_attempt(request: ScorerRequest) -> ScorerRequest:
    """The same request once more: a new attempt has a sample index of its own, hence its own seed and cache
    key."""
    return replace(request, attempt=request.attempt + 1, sample_index=request.sample_index + request.repeats)
