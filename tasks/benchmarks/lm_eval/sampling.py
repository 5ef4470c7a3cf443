"""``generation_kwargs`` of the harness as native sampling parameters."""

from collections.abc import Mapping
from typing import Any, Final

from metrics.errors import ConfigError

MAX_TOKENS: Final = 256  # what the harness asks an endpoint for where a benchmark says nothing
SEED: Final = 1234  # what it sends with every request
# In the order of precedence that endpoints have in the harness.
LENGTH_KEYS: Final = ("max_tokens", "max_gen_toks")
# Its other models take these for the same; to an endpoint it says MAX_TOKENS nevertheless.
OTHER_LENGTH_KEYS: Final = ("max_new_tokens", "max_completion_tokens")
PASSED_ON: Final = ("top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


def generation_arguments(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The mapping that the harness logs and sends: its defaults in place, a missing ``until`` the few-shot
    delimiter."""
    delimiter = config.get("fewshot_delimiter", "\n\n")
    given = config.get("generation_kwargs")
    if given is None:
        return {"temperature": 0.0, "do_sample": False, "max_gen_toks": MAX_TOKENS, "until": [delimiter]}
    arguments = dict(given)
    if "temperature" in arguments:
        try:
            arguments["temperature"] = float(arguments["temperature"])
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: generation_kwargs.temperature is not a number: {error}") from error
    arguments.setdefault("until", [delimiter])
    return arguments


def translate_sampling(config: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[str]]:
    """``sample_params`` and warnings; raises ConfigError for an argument that no endpoint here would be
    sent."""
    arguments = generation_arguments(config, where)
    warnings: list[str] = []
    until = arguments.pop("until")
    stops = [until] if isinstance(until, str) else until or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ConfigError(f"{where}: generation_kwargs.until takes a text or a list of texts, got {until!r}")
    lengths = {key: arguments.pop(key) for key in LENGTH_KEYS if key in arguments}
    length = next((value for value in lengths.values() if value is not None), MAX_TOKENS)
    ignored = [key for key in OTHER_LENGTH_KEYS if arguments.pop(key, None) is not None]
    if ignored and length == MAX_TOKENS:
        warnings.append(
            f"{where}: generation_kwargs.{ignored[0]} has no effect on endpoints, as in the harness: "
            f"{MAX_TOKENS} tokens are asked for; use max_gen_toks"
        )
    parameters: dict[str, Any] = {
        "max_tokens": _count(length, where),
        "seed": arguments.pop("seed", SEED),
        "num_samples": config.get("repeats", 1),
    }
    parameters["temperature"] = arguments.pop("temperature", 0.0)
    if stops:
        # Repeating a stop sequence changes nothing, and an empty one would stop before the first letter.
        parameters["stop"] = list(dict.fromkeys(stop for stop in stops if stop))
    sampled = arguments.pop("do_sample", None)
    if sampled is False and parameters["temperature"] > 0:
        warnings.append(
            f"{where}: do_sample is false and temperature {parameters['temperature']}; endpoints "
            "are sent the temperature, as the harness does"
        )
    parameters |= {key: arguments.pop(key) for key in PASSED_ON if arguments.get(key) is not None}
    if arguments.pop("num_beams", 1) not in (1, None):
        warnings.append(f"{where}: num_beams has no effect: endpoints offer no beam search")
    unknown = sorted(key for key, value in arguments.items() if value is not None)
    if unknown:
        known = ", ".join(("until", "do_sample", "temperature", "seed", *LENGTH_KEYS, *PASSED_ON))
        raise ConfigError(f"{where}: generation_kwargs.{unknown[0]} is not supported; supported are {known}")
    return parameters, warnings


def _count(value: Any, where: str) -> int:
    try:
        count = int(value)
    except (TypeError, ValueError):
        count = 0
    if count < 1:
        raise ConfigError(f"{where}: the most tokens to generate is an integer of at least 1, got {value!r}")
    return count
