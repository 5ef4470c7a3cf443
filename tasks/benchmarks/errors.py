"""An error of a config's cross rules that knows which key it is about."""


class PlacedError(ValueError):
    """What is wrong, and where below the value that was looked at: ``("models", 1)``."""

    def __init__(self, message: str, *location: str | int) -> None:
        super().__init__(": ".join(part for part in (".".join(map(str, location)), message) if part))
        self.message = message
        self.location = location
