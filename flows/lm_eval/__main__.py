"""What ``python -m flows.lm_eval`` takes: the harness's ``run``, ``ls`` and ``validate``.

Flags without one of these words are those of ``run``, as there.
"""

from flows.command_line import clear_status, status

if __name__ == "__main__":
    status("reading the command")  # before the imports below, which take a second

import typer

from flows.command_line import App, examples
from metrics.errors import ConfigError

app = App()
COMMANDS = ("run", "ls", "validate")


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    },
    epilog=examples(
        "python -m flows.lm_eval run --model local-completions --tasks gsm8k \\",
        "    --model_args model=qwen,base_url=http://localhost:8000/v1/completions \\",
        "    --include_path lm-evaluation-harness/lm_eval/tasks",
        "python -m flows.lm_eval run --config eval_config.yaml --limit 0.5",
        "python -m flows.lm_eval run --help",
        "python -m flows.lm_eval ls groups --include_path my_tasks",
        "python -m flows.lm_eval validate --tasks gsm8k --include_path my_tasks",
    ),
)
def lm_eval_command(context: typer.Context) -> None:
    """Runs command lines of lm-evaluation-harness: run, ls, validate, with its flags and their meaning."""
    words = list(context.args)
    if not words:
        raise ConfigError("expected run, ls or validate; python -m flows.lm_eval run --help lists the flags")
    command, rest = (words[0], words[1:]) if words[0] in COMMANDS else ("run", words)
    if command == "run":
        from flows.lm_eval.arguments import read_arguments
        from flows.lm_eval.run import run

        raise typer.Exit(run(read_arguments(rest)))
    from flows.lm_eval.listing import list_definitions, validate_definitions

    clear_status()
    raise typer.Exit(list_definitions(rest) if command == "ls" else validate_definitions(rest))


main = app.main

if __name__ == "__main__":
    main()
