"""What a config says about metrics and about error bars."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

WEB: Final = r"^https?://"
"""What an address begins with that is asked over HTTP."""


@dataclass(frozen=True)
class NamesFile:
    """Marks a field of a config whose text names a file that a run reads.

    From the mark follow whether the config may name that file, and whether the run's output lies over it.
    """


@dataclass(frozen=True)
class RunsProgram:
    """Marks a field of a config that says what is run on this machine: it is code, as functions are."""


@dataclass(frozen=True)
class AsWritten:
    """Marks a field of a config whose numbers are texts that a model reads: they are what the file has
    (``1.10``, ``0.00001``), and not Python's spelling of them. ``indices``: a whole number is none of these,
    but the place of a choice."""

    indices: bool = False


@dataclass(frozen=True)
class BelongsTo:
    """Marks a field of a config that is read only where ``key`` beside it is given, or is one of ``values``.
    Anywhere else it would be taken and change nothing: it is refused."""

    key: str
    values: tuple[str, ...] = ()

    def lacking(self, config: BaseModel) -> str | None:
        """Why this config does not read the field; None where it does."""
        found = getattr(config, self.key)
        if self.values:
            wanted = f"{self.key}: {' or '.join(self.values)}"
            return None if found in self.values else f"belongs to {wanted}, and here it is {found}"
        return f"belongs to {self.key}, and there is none" if found is None else None


class PlacedError(ValueError):
    """What is wrong, and where below the value that was looked at: ``("models", 1)``."""

    def __init__(self, message: str, *location: str | int) -> None:
        super().__init__(": ".join(part for part in (".".join(map(str, location)), message) if part))
        self.message = message
        self.location = location


class Strict(BaseModel):
    """What somebody writes in a config: keys that are not declared, numbers that are not finite and values
    that nothing reads are refused, and nothing changes it afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
    ALONE: ClassVar[str | None] = None
    """The key that a value alone, in the place of the whole mapping, stands for."""
    ALONE_TYPE: ClassVar[type] = str

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, value: Any) -> Any:
        alone = isinstance(value, cls.ALONE_TYPE) and not isinstance(value, bool)
        return {cls.ALONE: value} if cls.ALONE is not None and alone else value

    @model_validator(mode="after")
    def _every_value_is_read(self) -> Self:
        for name, info in type(self).model_fields.items():
            for mark in info.metadata:
                if not isinstance(mark, BelongsTo) or (said := mark.lacking(self)) is None:
                    continue
                if getattr(self, name) != info.get_default(call_default_factory=True, validated_data={}):
                    raise PlacedError(f"{said}; leave it out", name)
        return self


@dataclass(frozen=True)
class TakesFunction:
    """Marks a field of a config under which ``!function`` may stand, as a name or as a whole entry."""


FunctionRef = Annotated[str, TakesFunction()]
"""``"file.py:fn"`` or ``"module:fn"``: a user's function; a colon is what tells it from a registered name."""


def marks_of(info: FieldInfo) -> Iterator[Any]:
    """The marks of a config's field, those of its alternatives and entries too."""
    yield from info.metadata
    waiting = [info.annotation]
    for annotation in waiting:
        yield from getattr(annotation, "__metadata__", ())
        waiting += get_args(annotation)


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str | Mapping) else value


OneOrMany: Final = BeforeValidator(_one_or_many)
"""Marks a list of a config of which a single entry may be written without the brackets."""


class Gathering(Strict):
    """What takes arguments of any name: they stand beside its own keys, or under a key of their own."""

    GATHERED: ClassVar[str] = "kwargs"

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        own = {key: value for key, value in data.items() if key in cls.model_fields}
        beside = {key: value for key, value in data.items() if key not in own}
        given = {} if own.get(cls.GATHERED) is None else own[cls.GATHERED]
        # What is no mapping stays as it is, to be refused at its place.
        return {**own, cls.GATHERED: {**given, **beside} if isinstance(given, Mapping) else given}


class MetricConfig(Gathering):
    """One entry of a ``metric_list``; a bare name is enough, and keys not named here are the metric's
    arguments.

    >>> MetricConfig.model_validate("bleu").metric
    'bleu'
    >>> MetricConfig.model_validate({"metric": "exact_match", "ignore_case": True}).kwargs
    {'ignore_case': True}
    """

    ALONE = "metric"

    metric: FunctionRef = Field(description="Registered name, or file.py:fn")
    alias: str | None = Field(None, description="Name of the result; default: the metric's")
    function: FunctionRef | None = Field(
        None, description="file.py:fn that computes it; `metric` is then its name"
    )
    reduction: Annotated[list[FunctionRef], OneOrMany] | None = Field(
        None, description="How repeats become one row: mean, pass@8, maj@8 …"
    )
    aggregation: FunctionRef | None = Field(None, description="How items become one number")
    higher_is_better: bool | None = Field(
        None, description="Default: as the metric says, else the aggregation"
    )
    depends_on: tuple[str, ...] = Field(
        (), description="Files and folders that its function reads unseen, through other processes say"
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments of the metric")

    @model_validator(mode="before")
    @classmethod
    def _take_its_name(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "metric" not in data and isinstance(data.get("function"), str):
            return {**data, "metric": data["function"].rpartition(":")[2]}
        return data


class StatisticsConfig(Strict):
    """How error bars are made. ``bootstrap_iters`` of 0 or less: no standard errors at all."""

    ci_level: float = Field(0.95, gt=0, lt=1, description="Coverage of the intervals")
    bootstrap_iters: int = Field(
        100_000, description="Draws where a bootstrap is used; <= 0: no standard errors"
    )
    seed: int = Field(0, ge=0, description="Of the bootstrap and permutation draws")
    method: Literal[
        "auto", "analytic", "delta", "jackknife", "bootstrap", "bca", "clopper_pearson", "jeffreys"
    ] = Field(
        "auto",
        description="auto: the method documented for each aggregation; clopper_pearson, jeffreys: of shares",
    )
