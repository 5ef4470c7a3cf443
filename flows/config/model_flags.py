"""What ``--model``, ``--base-url``, ``--api`` and ``--api-key-env`` make of a config's models.

The outcome is an override like any ``--set``, so that everything after it knows only overrides.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from metrics.errors import ConfigError
from scorers.config import RewardModelConfig, ScorerConfig
from scorers.judge.config import JudgeConfig
from tasks.models.config import EndpointConfig, ModelConfig
from tasks.models.providers import flags_for


@dataclass(frozen=True)
class ModelFlags:
    """The flags as they were given; ``names`` may be empty."""

    names: tuple[str, ...] = ()
    base_url: str | None = None
    api: str | None = None
    api_key_env: str | None = None

    def __bool__(self) -> bool:
        """Whether any was given."""
        return bool(self.names or self._endpoint())

    def overrides(self, models: Sequence[ModelConfig], scorer: ScorerConfig | None = None) -> tuple[str, ...]:
        """``models=[…]``: the named models instead of the config's ``models``; and where ``scorer`` asks one
        of those that are left out, its entry in the scorer's own keys.

        A name that the config has keeps its entry; another one is asked like the config's first endpoint.
        What the flags say of address, interface and key lies over both, and without ``--model`` over every
        endpoint of the config. Raises ConfigError.
        """
        known = {model.name: model for model in models}
        names = self.names or tuple(known)
        if not names:
            raise ConfigError("--base-url, --api and --api-key-env belong to a model: add --model NAME")
        endpoints = [model for model in models if model.type == "openai"]
        first = _written(endpoints[0].config) if endpoints else {}
        first.pop("model", None)
        entries = [
            self._entry(known[name]) if name in known else self._new(name, first)
            for name in dict.fromkeys(names)
        ]
        asked = self._asked({name: model for name, model in known.items() if name not in names}, scorer)
        return (f"models={json.dumps(entries)}", *asked)

    def _asked(self, left_out: Mapping[str, ModelConfig], scorer: ScorerConfig | None) -> Iterator[str]:
        """The scorer's models with entries of their own, where they stand among the models left out."""

        def entry(name: str) -> dict[str, Any]:
            return left_out[name].model_dump(mode="json", exclude_unset=True)

        if isinstance(scorer, JudgeConfig) and any(judge.name in left_out for judge in scorer.judges):
            judges = [
                {"name": judge.name, **judge.entry}
                if judge.entry or judge.name not in left_out
                else entry(judge.name)
                for judge in scorer.judges
            ]
            yield f"scorer.judges={json.dumps(judges)}"
        elif isinstance(scorer, RewardModelConfig) and scorer.model in left_out:
            yield f"scorer.model={json.dumps(entry(str(scorer.model)))}"

    def _entry(self, model: ModelConfig) -> dict[str, Any]:
        entry = model.model_dump(mode="json", exclude_unset=True)
        if model.type == "openai":
            entry["config"] = _checked({**_written(model.config), **self._endpoint()})
        elif self._endpoint() and self.names:
            raise ConfigError(
                f"--model {model.name}: the config has it as {model.type}, which takes no address; "
                "name it differently, or leave --base-url, --api and --api-key-env out"
            )
        return entry

    def _new(self, name: str, first: dict[str, Any]) -> dict[str, Any]:
        if self.base_url is None and (known := flags_for(name)) is not None:
            raise ConfigError(f"--model {name}: an address and a key are needed; write\n  {known}")
        # Another address has another key: that of the config's own endpoint is not sent there.
        kept = {key: value for key, value in first.items() if self.base_url is None or "api_key" not in key}
        return {"name": name, "config": _checked({**kept, **self._endpoint()})}

    def _endpoint(self) -> dict[str, str]:
        given = {"base_url": self.base_url, "api": self.api, "api_key_env": self.api_key_env}
        return {key: value for key, value in given.items() if value is not None}


def _written(config: Any) -> dict[str, Any]:
    return dict(config.model_dump(mode="json", exclude_unset=True))


def _checked(endpoint: dict[str, Any]) -> dict[str, Any]:
    try:
        EndpointConfig.model_validate(endpoint)
    except ValidationError as error:
        problem = error.errors()[0]
        flag = str(problem["loc"][0]).replace("_", "-")
        raise ConfigError(f"--{flag}: {problem['msg'].removeprefix('Value error, ')}") from error
    return endpoint


NO_FLAGS: Final = ModelFlags()
