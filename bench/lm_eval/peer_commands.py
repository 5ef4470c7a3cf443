"""Runs in the Python of an installed lm-evaluation-harness: command lines of it, one after the other.

    PEER_PYTHON peer_commands.py LINES

``LINES`` is a JSON file with the words of each. Their tasks are those of ``--include_path`` alone: reading
the 13,000 definitions of the package takes half a minute a line. Prints what went wrong with each as JSON.
"""

import contextlib
import io
import json
import sys
import traceback
from pathlib import Path


def main(path: str) -> None:
    import lm_eval.tasks as tasks
    from lm_eval.__main__ import cli_evaluate

    whole = tasks.TaskManager.__init__

    def without_defaults(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        whole(self, *args, **{**kwargs, "include_defaults": False})

    tasks.TaskManager.__init__ = without_defaults
    failed = []
    for words in json.loads(Path(path).read_text()):
        sys.argv = ["lm_eval", *words]
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                cli_evaluate()
            failed.append(None)
        except (Exception, SystemExit):
            failed.append(traceback.format_exc())
    print(json.dumps(failed))


if __name__ == "__main__":
    main(sys.argv[1])
