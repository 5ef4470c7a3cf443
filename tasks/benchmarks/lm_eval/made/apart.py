"""Trials of definitions in a process that can be killed: what never returns costs itself only.

A function may wait for a network, or be in a library's code that no signal reaches; it may exit the process,
or leave its packages imported by half. The next definition then finds a new process.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from metrics.errors import ConfigError, NightjarError
from tasks.sandboxes.killable import GaveUp, KillableProcess
from tasks.usercode.trust import trust_what_is_named, trusting

if TYPE_CHECKING:
    from scorers.config import ScoringConfig
    from tasks.benchmarks.lm_eval.made.trial import Trial

SECONDS: Final = 90.0
"""CPU time of one import, and of one trial."""
WAITING: Final = 4
"""How many times that may pass by the clock of the wall."""

Asked = tuple[Mapping[str, Any], str, "ScoringConfig | None"]


class Trials:
    """``import_functions`` and ``try_definition``, in a process that starts with the first call."""

    def __init__(self) -> None:
        target = "tasks.benchmarks.lm_eval.made.apart:doing"
        self._process = KillableProcess(target, [trusting()], SECONDS, WAITING, setting=None)

    def __enter__(self) -> "Trials":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._process.close()

    def import_functions(self, harness: Mapping[str, Any], base_dir: str | Path) -> None:
        """Imports every function that a definition names; raises ConfigError for one that can't be."""
        said = self._process((harness, str(base_dir), None))
        if isinstance(said, GaveUp):
            task = harness.get("task")
            raise ConfigError(f"benchmark {task}: its functions can't be imported: {said.reason}")
        if said is not None:
            raise ConfigError(said)

    def try_definition(
        self, harness: Mapping[str, Any], base_dir: str | Path, scoring: "ScoringConfig"
    ) -> "Trial":
        """The trial of a definition on made rows; raises ConfigError for what can't be imported or built.

        A definition without functions runs no code but ours, and is tried here.
        """
        from tasks.benchmarks.lm_eval.made.shapes import Shape
        from tasks.benchmarks.lm_eval.made.trial import Trial, try_definition
        from tasks.benchmarks.lm_eval.read.yaml import decoded, functions_in

        if not any(functions_in(decoded(harness["config"]))):
            return try_definition(harness, base_dir, scoring)
        said = self._process((harness, str(base_dir), scoring))
        if isinstance(said, GaveUp):
            self.import_functions(harness, base_dir)  # raises where that is what never returned
            return Trial(False, said.reason, Shape(), {})
        if isinstance(said, str):
            raise ConfigError(said)
        trial: Trial = said
        return trial


def doing(trusted: bool) -> "Callable[[Asked], Trial | str | None]":
    """What the process calls: the trial, without ``scoring`` None for an import alone; or, as text, why it
    is refused.

    ``trusted``: what is named is trusted, as by ``--trust``.
    """
    from tasks.benchmarks.lm_eval.made.trial import import_functions, try_definition

    trust_what_is_named(trusted)

    def call(asked: Asked) -> "Trial | str | None":
        harness, base_dir, scoring = asked
        try:
            if scoring is None:
                import_functions(harness, Path(base_dir))
                return None
            return try_definition(harness, base_dir, scoring)
        except NightjarError as error:
            return str(error)

    return call
