"""Loads a folder's model and tokenizer, and says what would help where that fails."""

import argparse
import re
import sys
import traceback
from pathlib import Path
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


def adapted(model: Any, folder: str, tokens: int) -> Any:
    """The model with an adapter's layers in it, as the package peft puts them there; ``tokens`` are those
    that its tokenizer knows, which may be more than the model's.
    """
    from peft import PeftModel

    if tokens > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(tokens)
    over = PeftModel.from_pretrained(model, folder)
    if over.active_peft_config.is_prompt_learning:
        kind = over.active_peft_config.peft_type.value
        raise ValueError(f"{folder} learned a prompt ({kind}); adapters of layers, such as LoRA, are served")
    return over.get_base_model()


def load(told: argparse.Namespace, device: str, dtype: Any) -> tuple[Any, Any]:
    """The model, ready to be asked, and its tokenizer; a quantised folder as its config says, with the
    adapter over it that was named.

    Ends the program with the error's last line and what would help where that fails.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        known = {"trust_remote_code": told.trust_remote_code, "revision": told.revision or "main"}
        own = told.peft is not None and (Path(told.peft) / "tokenizer_config.json").is_file()
        tokenizer = AutoTokenizer.from_pretrained(told.peft if own else told.model, **known)
        placed = {} if told.device_map is None else {"device_map": told.device_map}
        model = AutoModelForCausalLM.from_pretrained(told.model, dtype=dtype, **placed, **known)
        if told.peft is not None:
            model = adapted(model, told.peft, len(tokenizer))
        if not placed and device != "cpu" and next(model.parameters()).device.type == "cpu":
            model.to(device)  # some quantised ones are there already, and refuse to be moved
    except Exception as error:
        traceback.print_exc()
        helps = remedy(error)
        sys.exit(f"{told.model} can't be loaded: {last_line(error)}" + (f"; {helps}" if helps else ""))
    return model.eval(), tokenizer


def last_line(error: BaseException) -> str:
    """What an error says, as the last line of its trace does."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]
