"""Tasks of Inspect as benchmarks: inspect_ai runs them, in processes of its own, and their samples are scored
as they were there.

``inspect_keys`` makes native keys of a config's ``inspect:``, ``check_model`` and ``check_client`` refuse a
model that Inspect can't ask, ``run_block`` evaluates samples of one, ``task_numbers`` calls Inspect's own
metrics. ``inspect_side`` alone imports inspect_ai; nothing imports that.
"""

from tasks.inspecting.block import FOLDER, Block, block_rows, forget, run_block
from tasks.inspecting.config import InspectFound, InspectRun, InspectTask
from tasks.inspecting.described import OWN_KEYS, inspect_keys
from tasks.inspecting.models import check_client, check_model
from tasks.inspecting.numbers import task_numbers

__all__ = [
    "FOLDER", "OWN_KEYS", "Block", "InspectFound", "InspectRun", "InspectTask", "block_rows", "check_client",
    "check_model", "forget", "inspect_keys", "run_block", "task_numbers",
]  # fmt: skip
