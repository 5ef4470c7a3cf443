"""An evaluation method: one label, with the numbers it compared."""

import re

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def same_number(response, ground_truth, inference_result):
    """Whether the last number of the response is that of the worked solution."""
    expected, found = last_number(ground_truth), last_number(response)
    passed = found is not None and found == expected
    return {
        "label": "correct",
        "result": {
            "passed": passed,
            "score": float(passed),
            "custom_fields": {"expected": expected, "found": found},
        },
    }


def last_number(text):
    """The last number of a text without thousands separators; None without one."""
    numbers = NUMBER.findall(text)
    return float(numbers[-1].replace(",", "")) if numbers else None
