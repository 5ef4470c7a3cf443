"""What a destination of results is, and what it is given: a run's folder, as ``publish`` left it."""

import hashlib
import json
import math
import os
import re
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final
from urllib.parse import urlsplit
from uuid import UUID

import orjson
import pyarrow.parquet as pq
from pydantic import AfterValidator, Field

from metrics.config import WEB, Strict
from metrics.errors import ConfigError, NightjarError, named, users_code
from tasks.benchmarks.config import DEFAULT_PROMPT
from tasks.models.errors import SHORTEST_KEY, shortened
from tasks.reduction.facets import facet_text
from tasks.store.outputs import MANIFEST, RESULTS_TABLE


class PublishError(NightjarError):
    """A destination did not take a run's numbers."""


@dataclass(frozen=True)
class FinishedRun:
    """A run that was published: its manifest and its rows of results are read when they are asked for."""

    folder: Path

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """``manifest.json``."""
        found: Mapping[str, Any] = orjson.loads((self.folder / MANIFEST).read_bytes())
        return found

    @cached_property
    def results(self) -> Sequence[Mapping[str, Any]]:
        """The rows of ``results.parquet``, failed ones too."""
        rows: list[Mapping[str, Any]] = pq.read_table(self.folder / RESULTS_TABLE).to_pylist()
        return rows

    @property
    def manifest_without_samples(self) -> Mapping[str, Any]:
        """The manifest less what may quote a prompt, an answer or an error's text."""
        kept = {name: value for name, value in self.manifest.items() if name not in QUOTING}
        for role in ("models", "judges"):
            kept[role] = {
                name: {key: value for key, value in facts.items() if key != "errors"}
                for name, facts in kept[role].items()
            }
        return kept

    @property
    def run_id(self) -> str:
        """The run's id, the same for every time that it is sent."""
        return str(self.manifest["run_id"])

    def evaluated(self, model: str) -> Mapping[str, Any]:
        """What was evaluated, and how, as far as it is told in a few words: the rest is in the manifest."""
        manifest = self.manifest
        config, facts = manifest["config"], manifest["models"][model]
        dataset = config.get("dataset")
        given = {
            "benchmark": manifest["benchmark"],
            "model": facts["identity"].get("model") or model,
            "dataset": (
                {name: one for name, one in dataset.items() if one}
                if isinstance(dataset, Mapping)
                else dataset
            ),
            "dataset_digest": manifest.get("dataset_digest"),
            "config_digest": manifest.get("config_digest"),
            "limit": manifest.get("limit"),
            "answers": config.get("answers"),
            **{f"sampling.{name}": value for name, value in (facts.get("sampling") or {}).items()},
        }
        return {name: value for name, value in given.items() if value is not None}

    def numbers(self, model: str) -> Sequence[Mapping[str, Any]]:
        """The rows with a number that are about the model: by their column, or as the run's only one."""
        alone = len(self.manifest["models"]) == 1
        return [
            row
            for row in self.results
            if row["status"] != "failed"
            and is_finite(row["value"])
            and (row["model_name"] == model or (row["model_name"] is None and alone))
        ]


QUOTING: Final = ("diagnostics", "recordings", "over_budget", "published")
"""What the manifest says in sentences, which may quote."""


def is_finite(value: Any) -> bool:
    """Whether a cell holds a number that can be sent."""
    return isinstance(value, int | float) and math.isfinite(value)


_ORIGIN: Final = ("model_name", "prompt_template")
"""Facets that say where a number is from, and not of which items it is."""


def is_overall(row: Mapping[str, Any]) -> bool:
    """Whether a row is about all items, and not about those of one value of a facet or a label."""
    return row["label"] is None and set(json.loads(row["facets"])) <= set(_ORIGIN)


def number_name(row: Mapping[str, Any], text_of: Callable[[Any], str] = str) -> tuple[str, ...]:
    """What tells a model's number from its others, part by part; ``text_of`` writes the facets' values. An
    unnamed prompt and a mean over repeats go without saying."""
    prompt, facets = row["prompt_template"], json.loads(row["facets"])
    return (
        *([prompt] if prompt not in (None, DEFAULT_PROMPT) else []),
        row["metric"],
        row["filter"],
        *([row["reduction"]] if row["reduction"] != "mean" else []),
        *filter(None, (row["label"],)),
        *(f"{name}:{text_of(value)}" for name, value in facets.items() if name not in _ORIGIN),
    )


SENT: Final = ("value", "stderr", "ci_low", "ci_high", "n_scored")
"""Columns of a row; the first goes under the number's own name, the others below it."""


def named_numbers(
    rows: Sequence[Mapping[str, Any]], name_of: Callable[[Sequence[str]], str]
) -> dict[str, float]:
    """Each row's value by its name, the ends of its interval and its standard error below that."""
    named = [(name_of(number_name(row)), row) for row in rows]
    several = Counter(name for name, _ in named)
    found = {}
    for name, row in named:
        if several[name] > 1:  # what the destination's names can't hold was all that made the difference
            name = f"{name}_{identifier(*number_name(row, facet_text)).hex[:8]}"
        for column in SENT:
            if is_finite(row[column]):
                found[name if column == SENT[0] else f"{name}/{column}"] = float(row[column])
    return found


def identifier(*parts: str) -> UUID:
    """An identifier that follows from the parts: what is sent twice has the same one."""
    return UUID(bytes=hashlib.sha256("\0".join(parts).encode()).digest()[:16], version=4)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package that should hold it
        return False


def _without_password(address: str) -> str:
    if urlsplit(address).password is not None:
        raise ValueError(
            "expected an address without a password: a config is published; "
            "put the password where the destination's own client looks for it"
        )
    return address


Address = Annotated[str, Field(min_length=1), AfterValidator(_without_password)]
"""Where a destination is. A config goes into manifests and reports, so that no password stands in it."""
WebAddress = Annotated[Address, Field(pattern=WEB)]
"""One that is asked over HTTP."""


def named_key(variable: str | None, key: str) -> str | None:
    """What the environment variable holds that the config names under ``key``; None where it names none:
    the destination's own client looks for one. Raises ConfigError where it is not set."""
    if variable is None:
        return None
    found = os.environ.get(variable, "").strip()
    if not found:
        raise ConfigError(f"the environment variable {variable} ({key}) is not set")
    return found


SAMPLES: Final = "Whether samples (prompts, answers) are sent, too, and not numbers alone"


class Publisher(Strict, ABC):
    """A destination, with what its entry of ``publish:`` says."""

    extra: ClassVar[str | None] = None
    """The extra of this program that brings its client."""
    client: ClassVar[Sequence[str]] = ()
    """Modules of its client: ``send`` imports them, and no other module does."""
    key_variables: ClassVar[Sequence[str]] = ()
    """Environment variables in which its client looks for a key."""

    def check(self, models: Sequence[str]) -> None:
        """Raises ConfigError for what is known to fail before anything is asked of these models."""
        self.require_client()

    def require_client(self) -> None:
        """Raises ConfigError, with what installs it, where a module of the client is not installed."""
        absent = next((module for module in self.client if not _is_installed(module)), None)
        if absent is not None:
            raise ConfigError(
                f"needs the package '{absent}' of the extra '{self.extra}', which is not installed: "
                f"pip install -e '.[{self.extra}]'"
            )

    def publish(self, run: FinishedRun) -> Sequence[str]:
        """As ``send``; raises PublishError, which names the destination and what to do, and holds no key."""
        try:
            with users_code():
                return self.sent_in_time(run)
        except Exception as error:
            said = _without_keys(named(error), self.secrets())
            where = _without_keys(self.destination(run), self.secrets())
        raise PublishError(
            f"{where}: {shortened(said)}; {self.remedy()}, then retry this step or run the evaluation again: "
            "its scores are kept, and what is sent twice is there once"
        )

    def sent_in_time(self, run: FinishedRun) -> Sequence[str]:
        """As ``send``."""
        return self.send(run)

    def secrets(self) -> Iterable[str]:
        """Texts that no message may hold."""
        return [os.environ[name] for name in self.key_variables if name in os.environ]

    @abstractmethod
    def destination(self, run: FinishedRun) -> str:
        """Where the run's numbers go, as a message names it."""

    @abstractmethod
    def remedy(self) -> str:
        """What to do where the destination did not take them."""

    @abstractmethod
    def send(self, run: FinishedRun) -> Sequence[str]:
        """Sends a run's numbers, and says where each part is found. A second time with the same run replaces
        what the first one left. It may raise anything: the step fails, and the run's numbers stand."""


class Server(Publisher):
    """A destination that is a server."""

    timeout: float = Field(
        30,
        gt=0,
        description="Seconds that it may take for an answer; the whole is given up after ten times that",
    )

    def sent_in_time(self, run: FinishedRun) -> Sequence[str]:
        """As ``send``; raises TimeoutError where that takes too long, whatever its client waits for."""
        seconds = ANSWERS * self.timeout
        sent: Future[Sequence[str]] = Future()
        threading.Thread(target=_into, args=(sent, partial(self.send, run)), daemon=True).start()
        try:
            return sent.result(seconds)
        except TimeoutError:
            if sent.done():  # its client's own error
                raise
            raise TimeoutError(f"it did not take the run within {seconds:g} seconds (timeout)") from None

    def remedy(self) -> str:
        """What to look at: the address, the key by the names of its variables."""
        keys = f", its key ({' or '.join(self.key_names())})" if self.key_names() else ""
        return f"check its address{keys} and that it is up"

    def key_names(self) -> Sequence[str]:
        """Environment variables that may hold its key."""
        return self.key_variables


ANSWERS: Final = 10
"""How many times the seconds of one answer all of them may take."""


def _into(sent: Future[Sequence[str]], send: Callable[[], Sequence[str]]) -> None:
    try:
        sent.set_result(send())
    except BaseException as error:
        sent.set_exception(error)


_AUTHORIZATION: Final = re.compile(r"(?i)\b(basic|bearer)\s+[\w.~+/=-]+")
_PASSWORD: Final = re.compile(r"(://[^\s:/@]*):(?!\d+(?:[\s/?#]|$))\S*@")
"""User and password in an address; a port is none."""


def _without_keys(text: str, secrets: Iterable[str]) -> str:
    """A server's words may repeat the key that it was sent, and a client's the address with its password.

    >>> _without_keys("http://bob:it's/s@cret@host:80/x failed: Bearer abc.def", ())
    'http://bob:***@host:80/x failed: Bearer ***'
    """
    for secret in secrets:
        if len(secret) >= SHORTEST_KEY:
            text = text.replace(secret, "***")
    text = _PASSWORD.sub(r"\1:***@", text)
    return _AUTHORIZATION.sub(r"\1 ***", text)
