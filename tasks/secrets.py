"""Keys from Prefect's Secret blocks, by name: no key is ever a parameter, an artifact or a log line."""

from metrics.errors import ConfigError


def secret(name: str) -> str:
    """The value of the Secret block ``name``; raises ConfigError where the server has none."""
    from prefect.blocks.system import Secret

    try:
        return str(Secret.load(name, _sync=True).get())  # type: ignore[call-arg, union-attr]
    except ValueError as error:
        raise ConfigError(
            f"api_key_secret: the Prefect server has no Secret block '{name}'; create it in the UI under "
            "Blocks, or name an environment variable in api_key_env"
        ) from error
