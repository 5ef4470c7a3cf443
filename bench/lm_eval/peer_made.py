"""Runs in the Python of an installed lm-evaluation-harness: evaluates many benchmarks one by one.

    PEER_PYTHON peer_made.py DEFINITIONS OUTPUT ARGUMENTS NAME…

Each is evaluated as if it were alone: the modules of its files are forgotten before the next. What fails
is named in ``failed.json``.
"""

import contextlib
import io
import json
import sys
import warnings
from pathlib import Path


def forget_users_modules() -> None:
    """Benchmarks' own modules keep their state for the process there; alone they begin anew."""
    for name, module in list(sys.modules.items()):
        if hasattr(module, "__mtime__"):
            del sys.modules[name]


def main(definitions: str, output: str, arguments: str, names: list[str]) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.api.registry import get_model
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    warnings.simplefilter("ignore")
    model = get_model("local-completions").create_from_arg_string(arguments)
    failed = {}
    for name in names:
        forget_users_modules()
        tracker = EvaluationTracker(output_path=str(Path(output, name)))
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                results = simple_evaluate(
                    model=model,
                    tasks=[name],
                    evaluation_tracker=tracker,
                    bootstrap_iters=0,
                    fewshot_as_multiturn=False,
                    task_manager=TaskManager(include_path=definitions, include_defaults=False),
                )
                samples = results.pop("samples")
                tracker.save_results_aggregated(results=dict(results), samples=samples)
                tracker.save_results_samples(task_name=name, samples=samples[name])
        except BaseException as error:
            failed[name] = f"{type(error).__name__}: {error}"
            if isinstance(error, KeyboardInterrupt):
                raise
    Path(output, "failed.json").write_text(json.dumps(failed))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
