"""``nightjar init [DIR]`` (``python -m flows.init``): a small benchmark, a suite and a schedule to start.

What it writes runs as it is, on the embedded model. Each line says what it is for.
"""

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from flows.command_line import App, examples
from metrics.errors import ConfigError
from metrics.names import LONGEST_NAME

QUESTIONS = """\
question,answer,topic
Mara has 14 shells. She finds 8 more. How many shells does Mara have?,22,addition
Ben has 9 stamps. He buys 6 more. How many stamps does Ben have?,15,addition
Lia has 20 cards. She gets 5 more. How many cards does Lia have?,25,addition
Tom has 31 coins. He finds 4 more. How many coins does Tom have?,35,addition
Ida has 12 eggs. She uses 5 of them. How many eggs are left?,7,subtraction
Max has 30 balls. He loses 11 of them. How many balls are left?,19,subtraction
Eva has 25 nuts. She eats 9 of them. How many nuts are left?,16,subtraction
Jan has 18 pens. He gives 3 of them away. How many pens are left?,15,subtraction
A baker makes 4 trays of 6 rolls. How many rolls does he make?,24,multiplication
Ann buys 3 bags of 5 apples. How many apples does Ann buy?,15,multiplication
Leo packs 7 boxes of 8 books. How many books does Leo pack?,56,multiplication
A farmer fills 5 baskets of 9 pears. How many pears are there?,45,multiplication
"""
BENCHMARK = """\
# A benchmark: questions, what is asked, and how answers are scored. Paths are relative to this file.
# Try it: nightjar eval {folder}/benchmark.yaml
name: "{name}"  # results and history go by this name
output_type: generate_until  # the model writes an answer; multiple_choice: it picks one
dataset: questions.csv  # a row a question; or .jsonl, .json, .parquet
prompt_template: "Question: {{{{question}}}}\\nAnswer:"  # what the model is asked; {{{{…}}}} names a column
target: "{{{{answer}}}}"  # the right answer
sample_params: {{temperature: 0, max_tokens: 256}}  # num_samples: 4 asks each question four times
models:  # one entry a model
  - {{name: demo, type: demo}}  # the embedded model: it needs no GPU and no key; replace it by yours:
  # - {{name: qwen, config: {{model: Qwen/Qwen3-8B, base_url: "http://localhost:8000/v1"}}}}
filter_list:  # what is taken from an answer, and how it is scored
  - name: last-number  # the name in tables
    filter: [last_number, normalize_number]  # the answer's last number, written alike (1,000 is 1000)
    metric_list: [exact_match]  # 1 if it is the right answer, else 0
facets: [model_name, topic]  # a row for each model and each value of the column topic
"""
SUITE = """\
# A suite: benchmarks that run every night, compared with the last night that passed.
# Try it: nightjar suite {folder}/suite.yaml
name: "{name}_nightly"  # the nights go by this name
benchmarks: [benchmark.yaml]  # as many as you like
answers: fresh  # every night asks again: kept answers say nothing of the model as it is tonight
baseline: last-passed  # tonight is compared with the last night that passed
gate:  # when a night is called a regression
  margin: 0.1  # a loss of up to 0.1 is acceptable; with more questions, choose less
  pairs: {{"exact_match,last-number": {{facets: overall}}}}  # all questions together decide
retries: 1  # an evaluation that failed is tried once more; what it has computed stays
timeout: 6h  # a night that takes longer ends
"""
SCHEDULE = """\
#!/bin/sh
# The schedule: every night at 02:30. Run it once: sh {folder}/schedule.sh
cd "$(dirname "$0")"  # the suite is beside this file
nightjar deploy suite.yaml --cron "30 2 * * *" --timezone Europe/Berlin  # minute hour day month weekday
"""
FILES = {
    "questions.csv": QUESTIONS,
    "benchmark.yaml": BENCHMARK,
    "suite.yaml": SUITE,
    "schedule.sh": SCHEDULE,
}
_LONGEST: Final = LONGEST_NAME - len("_nightly")

app = App()


@app.command(epilog=examples("python -m flows.init my_benchmark"))
def init_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder; made if it is not there")] = Path(
        "my_benchmark"
    ),
) -> None:
    """Writes a small benchmark, a suite and a schedule, with a comment on each line."""
    write_start(folder)
    print(f"wrote {', '.join(str(folder / name) for name in FILES)}")
    print(f"next: nightjar eval {folder / 'benchmark.yaml'}")


def write_start(folder: Path) -> None:
    """Writes the files; raises ConfigError, having written none, where one of them is there already."""
    name = re.sub(r"\W+", "_", folder.resolve().name).strip("_").encode()[:_LONGEST].decode(errors="ignore")
    name = name or "my_benchmark"
    try:
        there = [str(folder / file) for file in FILES if (folder / file).exists()]
        if there:
            raise ConfigError(
                f"{', '.join(there)} is there already: nothing was written; name another folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in FILES.items():
            written = text if file.endswith(".csv") else text.format(name=name, folder=folder)
            (folder / file).write_text(written, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder} can't be written: {error.strerror or error}") from error


main = app.main

if __name__ == "__main__":
    main()
