"""Names that a config may use, and the decorators that give a function such a name.

The package's modules are imported by name when something is first looked up, so that importing one costs
nothing. In keys a module that lists its package reaches all of it.

An installed distribution adds names by entry points of the groups ``nightjar.metrics``, ``.filters``,
``.providers``, ``.scorers`` and ``.servers``: plugins. One is imported when its name is first looked up.
"""

import inspect
import pkgutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

from metrics.aliases import METRIC_ALIASES, nearest
from metrics.errors import ConfigError, named, users_code
from metrics.types import OUTPUT_TYPES, OutputType

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

Patterns = Callable[..., Iterable[tuple[str, int]]]
"""Given the references of samples and a metric's arguments: regular expressions and their flags."""
RightAnswers = Callable[..., Iterable[Any]]
"""Given an item's references and a metric's arguments: answers each of which must get the best score."""
CallStyle = Literal["item", "batched", "choices", "corpus"]


@dataclass(frozen=True)
class MetricDefinition:
    """A registered metric: its function, and what a config need not say because the metric knows it.

    ``style`` says how the function is called: per item with lists of references and predictions, batched with
    columns of them, on a ``ChoiceBatch``, or as a corpus metric's class. ``higher_is_better`` None is as the
    aggregation says. ``bounds`` is the range of the value. ``variants`` names the metric that takes over for
    another output type, ``reduction`` what becomes of repeats unless a config says otherwise (``pass@k``
    takes its numbers from the argument ``k``). ``patterns`` are the regular expressions that it runs over
    texts, ``endless`` says that it may take for ever on any: such a metric is computed where it can be
    stopped. ``extra`` installs the ``libraries``. ``right_answers`` makes answers that the metric must score
    best, which are tried before a run; None: a reference is no answer to it. ``refused`` is the score of an
    answer that model or provider refused, where the metric is about just that.
    """

    name: str
    function: Callable[..., Any]
    aggregation: str = "mean"
    higher_is_better: bool | None = None
    output_types: tuple[OutputType, ...] = ("generate_until",)
    style: CallStyle = "item"
    version: int = 1
    libraries: tuple[str, ...] = ()
    bounds: tuple[float, float] = (0.0, 1.0)
    source: str = ""
    variants: Mapping[str, str] = field(default_factory=dict)
    reduction: tuple[str, ...] = ("mean",)
    patterns: Patterns | None = None
    endless: bool = False
    extra: str = ""
    right_answers: RightAnswers | None = None
    refused: float | None = None

    @property
    def summary(self) -> str:
        """First paragraph of the function's docstring."""
        return first_paragraph(self.function)


def each_reference(references: Iterable[Any], **_: Any) -> Iterable[Any]:
    """Every reference is a right answer as it stands."""
    return references


@dataclass(frozen=True)
class NamedFunction:
    """An aggregation or a reduction under its name: the function itself, or one that ``builds`` the record.

    ``span``: the range of its value, where that is not what an aggregation's bounds say, or the metric's.
    Of an aggregation: what it ``takes`` of each sample, in words, with an ``example`` of several samples'.
    """

    name: str
    function: Callable[..., Any]
    source: str = ""
    builds: bool = False
    takes: str = "a number"
    example: Sequence[Any] = (0.25, 1.0)
    span: str = ""

    @property
    def summary(self) -> str:
        """First paragraph of the function's docstring."""
        return first_paragraph(self.function)


@cache
def plugins(group: str) -> Mapping[str, EntryPoint]:
    """The plugins of a group by name, such as those of "nightjar.metrics".

    Raises ConfigError where two distributions give one name: nobody could say which of them computed a
    number.
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value or _distribution(other) != _distribution(entry):
            raise ConfigError(
                f"{group} has two plugins named {entry.name!r}: {other.value} of {_distribution(other)}, "
                f"{entry.value} of {_distribution(entry)}; uninstall one of them"
            )
    return MappingProxyType(found)


def load_plugin(entry: EntryPoint) -> Any:
    """The object that a plugin names; raises ConfigError with its distribution where that fails."""
    try:
        with users_code():
            return entry.load()
    except Exception as error:  # another's code runs here: it may raise anything
        raise ConfigError(
            f"plugin {entry.name!r} ({entry.value} of {_distribution(entry)}) does not load: "
            f"{named(error)}; upgrade or uninstall {_distribution(entry)}"
        ) from error


def plugin_origin(entry: EntryPoint) -> str:
    """The distribution that a plugin comes from, with its version."""
    return f"{_distribution(entry)} {entry.dist.version}" if entry.dist is not None else "a folder"


def _distribution(entry: EntryPoint) -> str:
    return str(entry.dist.name) if entry.dist is not None else "a folder"


class Registry(Generic[T]):
    """Name → definition. Unknown names raise ``ConfigError`` with the nearest known one."""

    def __init__(
        self,
        kind: str,
        package: str,
        deep: bool = True,
        aliases: Mapping[str, str] = MappingProxyType({}),
        group: str | None = None,
    ):
        """``deep``: modules of packages inside the package register, too; ``aliases`` are other names;
        plugins of the ``group`` are names as well."""
        self.kind = kind
        self._group = group
        self._aliases = aliases
        self._deep = deep
        self._package = package
        self._entries: dict[str, T] = {}
        self._loaded = False
        self._loading: set[int] = set()

    def add(self, name: str, definition: T) -> None:
        """Enter ``definition``; a name of this package cannot be taken over from outside it."""
        if not name:
            raise ConfigError(f"a {self.kind} needs a name that is not empty")
        old = self._entries.get(name)
        if (
            old is not None
            and module_of(old).startswith(f"{self._package}.")
            and module_of(old) != module_of(definition)
        ):
            raise ConfigError(f"{self.kind} {name!r} exists already; choose another name")
        self._entries[name] = definition

    def __getitem__(self, name: str) -> T:
        found = self.get(name)
        if found is None:
            raise ConfigError(self.unknown(name))
        return found

    def get(self, name: str) -> T | None:
        """The definition, or None if the name is not known; raises ConfigError for a plugin that does not
        load or registers another name."""
        self._load()
        found = self._entries.get(self._own(name))
        return found if found is not None or name not in self.plugins else self._of_plugin(name)

    @property
    def plugins(self) -> Mapping[str, EntryPoint]:
        """What installed distributions add, by name; nothing of it is imported. Raises ConfigError for one
        that has the name of one of this program's."""
        self._load()
        found = plugins(self._group) if self._group is not None else {}
        for name in found.keys() & self._entries.keys():
            if module_of(self._entries[name]).startswith(f"{self._package}."):
                owner = _distribution(found[name])
                raise ConfigError(
                    f"plugin {name!r} of {owner} has the name of a {self.kind} of this program; give it "
                    f"another, or uninstall {owner}"
                )
        return found

    def _of_plugin(self, name: str) -> T:
        entry = self.plugins[name]
        load_plugin(entry)
        if name not in self._entries:
            raise ConfigError(
                f"plugin {name!r} ({entry.value} of {_distribution(entry)}) registers no {self.kind} of "
                "that name when it is imported; its decorator must give this name"
            )
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        self._load()
        return isinstance(name, str) and (self._own(name) in self._entries or name in self.plugins)

    def _own(self, name: str) -> str:
        """The name itself where it is known: a user's metric may have the name of an alias."""
        return name if name in self._entries else self._aliases.get(name, name)

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted({*self._entries, *self.plugins}))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def unknown(self, name: str) -> str:
        """The sentence for a name that is not known."""
        return f"{self.kind} {name!r} is not known{nearest(name, self)} (python -m flows.catalog lists them)"

    def _load(self) -> None:
        """Imports what adds names, in each thread that comes before all of it is there: an import waits for
        that of another thread. A thread that comes from within these imports sees what is there so far."""
        thread = threading.get_ident()
        if self._loaded or thread in self._loading:
            return
        self._loading.add(thread)
        try:
            for module in pkgutil.walk_packages(import_module(self._package).__path__, f"{self._package}."):
                inner, _, name = module.name.removeprefix(f"{self._package}.").rpartition(".")
                if name.startswith("_") or (inner and not self._deep):
                    continue  # what needs an extra is imported by its user, a part of a definition by its own
                import_module(module.name)
            self._loaded = True
        finally:
            self._loading.discard(thread)


METRICS: Registry[MetricDefinition] = Registry(
    "metric", "metrics", aliases=METRIC_ALIASES, group="nightjar.metrics"
)
AGGREGATIONS: Registry[NamedFunction] = Registry("aggregation", "metrics")
REDUCTIONS: Registry[NamedFunction] = Registry("reduction", "metrics")


def metric(
    name: str | None = None,
    *,
    batched: bool = False,
    output_type: str | tuple[str, ...] = "generate_until",
    **about: Any,
) -> Callable[[F], F]:
    """Register a function, or a class of a corpus metric, as a metric.

    ``batched``: the function takes columns (of reference lists, of predictions) and returns an (n, k) array
    of statistics or ``Scores``; otherwise it takes one item and returns a number or a dictionary. Further
    keywords are the fields of ``MetricDefinition``. The function itself comes back unchanged.

    >>> @metric("shouts")
    ... def shouts(references, predictions):
    ...     return float(predictions[0].isupper())
    """
    types = (output_type,) if isinstance(output_type, str) else tuple(output_type)
    for given in types:
        if given not in OUTPUT_TYPES:
            raise ConfigError(f"output type {given!r} is not known{nearest(given, OUTPUT_TYPES)}")

    def register(function: F) -> F:
        style = about.pop("style", None) or _style(function, batched)
        entry = MetricDefinition(
            name=name if name is not None else function.__name__,
            function=function,
            output_types=types,  # type: ignore[arg-type]  # checked above
            style=style,
            **about,
        )
        METRICS.add(entry.name, entry)
        function.__metric__ = entry  # type: ignore[attr-defined]  # a config that names the function finds it here
        return function

    return register


def aggregation(name: str | None = None, *, source: str = "") -> Callable[[F], F]:
    """Register ``fn(values) -> float``, a function of all items' values, as an aggregation."""
    return _naming(AGGREGATIONS, name, source)


def reduction(name: str | None = None, *, source: str = "") -> Callable[[F], F]:
    """Register ``fn(references, predictions)``, a function of one item's scores, as a reduction."""
    return _naming(REDUCTIONS, name, source)


def _naming(registry: Registry[NamedFunction], name: str | None, source: str) -> Callable[[F], F]:
    def register(function: F) -> F:
        entry = NamedFunction(name if name is not None else function.__name__, function, source)
        registry.add(entry.name, entry)
        return function

    return register


def parameters(function: Callable[..., Any]) -> frozenset[str] | None:
    """Keywords that ``function`` takes besides its data; None if it takes any (``**kwargs``)."""
    # Of the same functions they are asked hundreds of times a run. Other callables may have no hash.
    return _read_once(function) if inspect.isfunction(function) else _parameters(function)


def _parameters(function: Callable[..., Any]) -> frozenset[str] | None:
    declared = inspect.signature(function).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in declared):
        return None
    keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    about: MetricDefinition | None = getattr(function, "__metric__", None)
    given = _OF_COLUMNS if about is not None and about.style == "batched" else _OF_ITEMS
    return frozenset(p.name for p in declared if p.kind in keyword) - given


_OF_COLUMNS = frozenset({"references", "predictions"})
_OF_ITEMS = _OF_COLUMNS | {"result", "answer", "batch", "values"}
"""Parameters that are data and no arguments of a config."""


_read_once = lru_cache(maxsize=512)(_parameters)


def _style(function: Callable[..., Any], batched: bool) -> CallStyle:
    if inspect.isclass(function):
        return "corpus"
    return "batched" if batched else "item"


def first_paragraph(function: Callable[..., Any]) -> str:
    """The first paragraph of a function's docstring as one line."""
    return " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())


def module_of(definition: object) -> str:
    """The module that a definition's function, or a callable, was made in; empty for one that was made in
    none."""
    return str(getattr(getattr(definition, "function", definition), "__module__", None) or "")
