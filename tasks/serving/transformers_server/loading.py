"""Loads a folder's model and tokenizer, and says what would help where that fails."""

import argparse
import re
import sys
import traceback
from typing import Any

REMEDIES = (
    (
        r"trust_remote_code|custom code",
        "its code is in its folder: read it, then allow it with serve: {args: --trust-remote-code}",
    ),
    (
        r"out of memory|not enough memory|can't allocate|cannot allocate|MemoryError|bad_alloc",
        "it does not fit: give it dtype: bfloat16, device_map: auto, more GPUs, or end what holds the memory",
    ),
    (
        r"does not recognize this architecture|model type .{1,80} but Transformers|KeyError: '\w+'$",
        "this transformers does not know it: install a newer one, or name an interpreter that has one in "
        "serve.python",
    ),
    (
        r"no file named|does not appear to have a file|Error no file|Unable to load weights|SafetensorError",
        "its folder lacks files, or they are still being written: compare it with where it came from",
    ),
)
"""What an error of loading says, and what would help."""
_PACKAGES = (
    re.compile(r"No module named '([\w.]+)'"),
    re.compile(r"packages? that were not found in your environment: ([\w, -]+)"),
    re.compile(r"pip install (?:-\S+ )*[`'\"]?(\w[\w.\[\]-]*)"),
    re.compile(r"requires (?:the )?[`'\"]?([\w-]+)[`'\"]?(?: library| package|:)"),
)


def remedy(error: BaseException) -> str | None:
    """What would help against an error of loading; None: nobody knows.

    >>> remedy(ModuleNotFoundError("No module named 'mamba_ssm'"))
    'a package is missing: install mamba_ssm for the interpreter of the server'
    """
    said = f"{type(error).__name__}: {error}"
    known = next((help_ for pattern, help_ in REMEDIES if re.search(pattern, said, re.IGNORECASE)), None)
    if known is not None:
        return known
    package = next((found[1] for one in _PACKAGES if (found := one.search(said))), None)
    if package is None:
        return None
    name = package.partition(".")[0].strip()
    return f"a package is missing: install {name} for the interpreter of the server"


def load(told: argparse.Namespace, device: str, dtype: Any) -> tuple[Any, Any]:
    """The model, ready to be asked, and its tokenizer; a quantised folder as its config says.

    Ends the program with the error's last line and what would help where that fails.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        trust = {"trust_remote_code": told.trust_remote_code}
        tokenizer = AutoTokenizer.from_pretrained(told.model, **trust)
        placed = {} if told.device_map is None else {"device_map": told.device_map}
        model = AutoModelForCausalLM.from_pretrained(told.model, dtype=dtype, **placed, **trust)
        if not placed and not getattr(model, "is_quantized", False):
            model.to(device)  # what is quantised is placed where it was loaded
    except Exception as error:
        traceback.print_exc()
        helps = remedy(error)
        sys.exit(f"{told.model} can't be loaded: {last_line(error)}" + (f"; {helps}" if helps else ""))
    return model.eval(), tokenizer


def last_line(error: BaseException) -> str:
    """What an error says, as the last line of its trace does."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]
