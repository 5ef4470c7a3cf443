"""Runs in the Python of an installed lm-evaluation-harness: evaluates a model that is served over HTTP.

    PEER_PYTHON peer_served.py OUTPUT MODEL ARGUMENTS NAME… [--chat] [--limit N]

The definitions are those of the working folder, which data files are relative to. Writes the results and the
sample logs of its own form; bootstrapped standard errors are left out, since they are not compared.
"""

import argparse


def main() -> None:
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("model")
    parser.add_argument("arguments")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    tracker = EvaluationTracker(output_path=options.output)
    results = simple_evaluate(
        model=options.model,
        model_args=options.arguments,
        tasks=options.names,
        limit=options.limit,
        evaluation_tracker=tracker,
        bootstrap_iters=0,
        apply_chat_template=options.chat,
        fewshot_as_multiturn=options.chat,
        task_manager=TaskManager(include_path=".", include_defaults=False),
    )
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=dict(results), samples=samples)
    for name in results["configs"]:
        tracker.save_results_samples(task_name=name, samples=samples[name])


if __name__ == "__main__":
    main()
