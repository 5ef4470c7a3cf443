"""Times as configs write them."""

from datetime import timedelta

import jsonschema
import pytest
from pydantic import TypeAdapter, ValidationError

from tasks.store.durations import Seconds, duration_text

ADAPTER = TypeAdapter(Seconds)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("90s", 90), ("10m", 600), ("6h", 21600), ("30d", 2592000), (" 1.5 h", 5400), (12, 12)],
)
def test_a_time_is_read_in_every_unit(value: object, seconds: float) -> None:
    assert ADAPTER.validate_python(value) == seconds


@pytest.mark.parametrize("value", ["6", "six hours", "-1h", "0h", "", "6h30m", 0, float("inf"), [6], "6 H"])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(value)


@pytest.mark.parametrize("value", ["36501d", "999999d", "99999999999999999999h", "9" * 400 + "w"])
def test_a_time_that_no_clock_counts_is_refused_with_the_longest_one(value: str) -> None:
    with pytest.raises(ValidationError, match=f"expected at most 36500d, got '{value}'"):
        ADAPTER.validate_python(value)
    assert ADAPTER.validate_python("36500d") == 36500 * 86400


@pytest.mark.parametrize("text", ["90s", "10m", "6h", "30d", "1500s"])
def test_a_time_is_written_as_it_was_read(text: str) -> None:
    seconds = ADAPTER.validate_python(text)
    assert ADAPTER.validate_python(duration_text(timedelta(seconds=seconds))) == seconds


def test_the_schema_takes_what_is_read() -> None:
    for value in ("20h", "2w", 1.5):
        jsonschema.validate(value, ADAPTER.json_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate("soon", ADAPTER.json_schema())
