"""Runs in the Python of an installed lm-evaluation-harness: prints the requests it makes for definitions, as
JSON.

    PEER_PYTHON oracle.py FOLDER NAME… [--chat] [--limit N]

Its datasets are read relative to the working folder; start it in the definitions' folder.
"""

import argparse
import json
import random
import sys

import numpy as np


def requests(folder: str, names: list[str], chat: bool, limit: int | None) -> dict:
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=folder, include_defaults=False)
    found = {}
    for name in names:
        random.seed(0)
        np.random.seed(1234)
        task = manager.load([name])["tasks"][name]
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=1234)
        template = (
            (lambda turns, add_generation_prompt=True: json.dumps(turns, ensure_ascii=False))
            if chat
            else None
        )
        task.build_all_requests(
            limit=limit, apply_chat_template=chat, fewshot_as_multiturn=chat, chat_template=template
        )
        found[name] = {
            "docs": [doc for _, doc in task.doc_iterator(limit=limit)],
            "targets": [task.doc_to_target(doc) for _, doc in task.doc_iterator(limit=limit)],
            "requests": [
                {
                    "doc": one.doc_id,
                    "type": one.request_type,
                    "args": [arg for arg in one.args if isinstance(arg, str)],
                }
                for one in task.instances
            ],
        }
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    out = requests(options.folder, options.names, options.chat, options.limit)
    json.dump(out, sys.stdout, default=str, ensure_ascii=False)
