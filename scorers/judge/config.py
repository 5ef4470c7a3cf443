"""What a config says about a judge."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from metrics.config import BelongsTo, Gathering, NamesFile, OneOrMany, PlacedError, Strict
from metrics.errors import ConfigError


def _visible(label: str) -> str:
    if not label.strip():
        raise ValueError("a label that is empty can't be found in a reply")
    return label


_Choices = dict[Annotated[str, AfterValidator(_visible)], float]


class _Bounded(Strict):
    """Reads a number of which ``min`` and ``max`` are told."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        low, high = getattr(self, "min", None), getattr(self, "max", None)
        if getattr(self, "choices", None) and (low, high) != (None, None):
            raise ValueError("min and max are of numbers, and choices say the grades; leave them out")
        if low is not None and high is not None and low >= high:
            raise ValueError(f"min must be below max, not {low} and {high}")
        return self


class ChoiceReading(Strict):
    """The reply names one of several labels, each worth a number."""

    type: Literal["choice"] = Field("choice", description="How the reply is read")
    choices: _Choices = Field(min_length=2, description="Label → grade, such as {CORRECT: 1, INCORRECT: 0}")


class NumberReading(_Bounded):
    """The reply holds a number from ``min`` to ``max``; one outside is unreadable, never clipped."""

    type: Literal["number"] = Field("number", description="How the reply is read")
    min: float = Field(0.0, description="The lowest grade")
    max: float = Field(10.0, description="The highest grade")
    normalize: bool = Field(False, description="Map min … max to 0 … 1")


class FieldReading(_Bounded):
    """The reply holds a JSON object; the grade is one of its fields: a number, a boolean, or a label of
    ``choices``."""

    type: Literal["json"] = Field("json", description="How the reply is read")
    field: str = Field("score", description="Dotted path inside the object")
    choices: _Choices | None = Field(None, min_length=1, description="Label → grade; without it a number")
    min: float | None = Field(None, description="A number below is unreadable")
    max: float | None = Field(None, description="A number above is unreadable")


class PatternReading(_Bounded):
    """The grade is group ``group`` of a regular expression's last match: a number, or a label of
    ``choices``."""

    type: Literal["regex"] = Field("regex", description="How the reply is read")
    pattern: str = Field(description="Regular expression; its last match counts")
    group: int = Field(1, ge=0, description="The group that holds the grade; 0: the whole match")
    choices: _Choices | None = Field(None, min_length=1, description="Label → grade; without it a number")
    min: float | None = Field(None, description="A number below is unreadable")
    max: float | None = Field(None, description="A number above is unreadable")

    @model_validator(mode="after")
    def _compiles(self) -> "PatternReading":
        try:
            groups = re.compile(self.pattern).groups
        except re.error as error:
            raise ValueError(f"pattern {self.pattern!r} is not a regular expression: {error}") from None
        if self.group > groups:
            raise ValueError(f"pattern {self.pattern!r} has {groups} groups, not {self.group}")
        return self


Reading = Annotated[
    ChoiceReading | NumberReading | FieldReading | PatternReading, Field(discriminator="type")
]


class JudgeModel(Gathering):
    """A judge: the name of an entry of ``models:``, or such an entry itself (all keys besides ``name``)."""

    GATHERED = "entry"
    ALONE = "name"

    name: str = Field(min_length=1, description="Entry of models:, or a name of its own")
    entry: dict[str, Any] = Field(
        default_factory=dict, description="type, config, sample_params … as in models:"
    )


class JudgeMessage(Strict):
    """One chat message of a grading prompt; its content is a Jinja2 template."""

    role: Literal["system", "user", "assistant"] = Field(description="Whose turn it is")
    content: str = Field(description="Jinja2")


class Pairwise(Strict):
    """The response is compared with another answer, shown as ``answer_a`` and ``answer_b``."""

    baseline: str = Field(description="Jinja2: the other answer, such as {{ baseline_answer }}")
    swap: bool = Field(
        True, description="Ask again with places changed; the verdict is the mean of both orders"
    )


class CalibrationRow(BaseModel):
    """A human's verdict or grade, and the judge's on the same answer: given as ``judge``, or still to be
    asked for.

    Without ``judge`` the row holds ``response`` and the fields that the grading prompt uses.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    human: bool | float = Field(description="What a person said of the answer: true, false, or a grade")
    judge: bool | float | None = Field(None, description="What the judge said of it; without it, it is asked")
    response: str | None = Field(None, description="The answer, for a judge that is still to be asked")

    @model_validator(mode="after")
    def _can_be_judged(self) -> "CalibrationRow":
        if self.judge is None and self.response is None:
            raise ValueError(
                "a calibration row needs judge: the judge's verdict, or response: a text to be judged"
            )
        if not all(math.isfinite(grade) for grade in (self.human, self.judge or 0.0)):
            raise ValueError("human and judge are true, false or finite numbers")
        return self

    @property
    def graded(self) -> bool:
        """Whether either is a grade and not a verdict."""
        return any(grade not in (0, 1) for grade in (self.human, self.judge or 0))


CalibrationMethod = Literal["rates", "ppi"]


class JudgeConfig(Strict):
    """One or several models grade each response, beside the benchmark's metrics.

    The templates see the item's fields by name, and over them ``response`` (unfiltered), ``prediction`` (what
    the filter left; empty where it found nothing), ``reference`` (the first), ``references``, ``item`` (all
    fields), and ``answer_a``, ``answer_b`` in pairwise grading. A label in the place of a choice's grade
    speaks of answer A.
    """

    type: Literal["llm_judge"] = Field("llm_judge", description="Its name")
    prompt: str | None = Field(None, description="Jinja2: one user message")
    messages: tuple[JudgeMessage, ...] | None = Field(None, description="Chat turns instead of a prompt")
    system_prompt: str | None = Field(None, description="Jinja2: the system message before them")
    judges: Annotated[tuple[JudgeModel, ...], OneOrMany] = Field(
        min_length=1, description="Entries of models:, or entries of their own"
    )
    repeats: int = Field(1, ge=1, description="Verdicts asked of each judge")
    sample_params: dict[str, Any] = Field(
        default_factory=lambda: {"temperature": 0.0}, description="How verdicts are drawn"
    )
    parse: Reading = Field(description="How a grade is read off the reply")
    combine: Literal["mean", "majority"] = Field("mean", description="How verdicts become the sample's score")
    quorum: int | None = Field(
        None, ge=1, description="Judges that must be readable for a sample to be scored; default: all"
    )
    pairwise: Pairwise | None = Field(None, description="Compare the response with another answer")
    calibration: Annotated[str | tuple[CalibrationRow, ...] | None, NamesFile()] = Field(
        None, description="File with human verdicts, or its rows; or {path: FILE, method: ppi | rates}"
    )
    calibration_method: Annotated[CalibrationMethod, BelongsTo("calibration")] = Field(
        "rates",
        description="rates: divide by the judge's error rates; ppi: add how people differ from the judge",
    )
    threshold: Annotated[float, BelongsTo("calibration")] = Field(
        0.5, description="A score at or above counts as a positive verdict, in the corrected rate"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> "JudgeConfig":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("a judge needs prompt: or messages:, one of the two")
        names = [judge.name for judge in self.judges]
        if len(set(names)) < len(names):
            raise ValueError(f"each judge needs a name of its own, not {', '.join(names)}")
        if self.quorum is not None and self.quorum > len(names):
            raise ValueError(f"quorum is {self.quorum} of {len(names)} judges")
        if self.pairwise is not None and self.pairwise.swap and grade_range(self.parse) is None:
            raise ValueError(
                "pairwise grading with places changed needs choices, or min and max, under parse"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _split_calibration(cls, data: Any) -> Any:
        """``calibration: {path: …, method: …}`` as the two keys that it stands for."""
        if not isinstance(data, Mapping) or not isinstance(data.get("calibration"), Mapping):
            return data
        given = dict(data["calibration"])
        rows = given.pop("path", None) or given.pop("rows", None)
        said = {"calibration_method": given.pop("method")} if "method" in given else {}
        if given or rows is None:
            raise ValueError(
                "calibration takes path (a file) or rows, and method (ppi or rates)"
                + (f", not {', '.join(given)}" if given else "")
            )
        if said and "calibration_method" in data:
            raise PlacedError("calibration.method says it already; give one", "calibration_method")
        if said and said["calibration_method"] not in get_args(CalibrationMethod):
            raise PlacedError(
                f"expected rates or ppi, got '{said['calibration_method']}'", "calibration", "method"
            )
        return {**data, "calibration": rows, **said}

    @property
    def graded(self) -> bool:
        """Whether people's grades rectify the judge's, and not verdicts either's verdicts."""
        rows = self.calibration if isinstance(self.calibration, tuple) else ()
        return self.calibration_method == "ppi" and any(row.graded for row in rows)

    @property
    def labels(self) -> str:
        """Tells one set of answers that people judged from another."""
        rows = self.calibration if isinstance(self.calibration, tuple) else ()
        told = [row.model_dump(mode="json", exclude={"judge"}) for row in rows]
        return sha256(json.dumps(told, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:12]

    @model_validator(mode="after")
    def _grades_have_a_method(self) -> "JudgeConfig":
        if self.calibration == ():
            raise PlacedError("holds no row; leave it out, or give rows", "calibration")
        rows = self.calibration if isinstance(self.calibration, tuple) else ()
        if self.calibration_method == "rates" and (place := _first_grade(rows)) is not None:
            raise ValueError(
                f"calibration row {place + 1} has a grade, and error rates are those of verdicts: "
                "write true or false, or method: ppi"
            )
        return self

    def with_calibration(self, rows: Iterable[Mapping[str, Any]]) -> "JudgeConfig":
        """The config with the rows of its calibration file in place of the file's name; ConfigError naming
        the row that is none."""
        read = []
        for place, row in enumerate(rows, start=1):
            try:
                read.append(CalibrationRow.model_validate(row))
            except ValidationError as error:
                problem = error.errors()[0]
                what = ".".join(map(str, problem["loc"])) or "row"
                raise ConfigError(f"{self.calibration}, row {place}: {what}: {problem['msg']}") from None
        if not read:
            raise ConfigError(f"{self.calibration}: holds no row; leave calibration out, or fill it")
        first = _first_grade(read)
        if self.calibration_method == "rates" and first is not None:
            raise ConfigError(
                f"{self.calibration}, row {first + 1}: a grade, and error rates are those of verdicts; write "
                "true or false, or method: ppi"
            )
        return self.model_copy(update={"calibration": tuple(read)})


def _first_grade(rows: Iterable[CalibrationRow]) -> int | None:
    return next((place for place, row in enumerate(rows) if row.graded), None)


def grade_range(reading: Reading) -> tuple[float, float] | None:
    """Lowest and highest grade that a reply can give; None if the config leaves that open."""
    if isinstance(reading, NumberReading):
        return (0.0, 1.0) if reading.normalize else (reading.min, reading.max)
    if reading.choices:
        return min(reading.choices.values()), max(reading.choices.values())
    if isinstance(reading, ChoiceReading) or reading.min is None or reading.max is None:
        return None
    return reading.min, reading.max
