"""A decoder that is edited in a copy of the program takes effect in the same store, and nobody is asked."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
CONFIG = """
name: mended
dataset: {path: data.jsonl}
prompt_template: "Question: {{question}}\\nAnswer:"
target: "NOTHING"
models: [{name: demo, type: demo}]
sample_params: {temperature: 0, max_tokens: 64}
metric_list: [exact_match]
"""
DECODER = Path("tasks/models/providers/openai/generation.py")
READ, MENDED = (
    "return self.parsed(text, text_or_none(reasoning), calls)",
    'return self.parsed("NOTHING", None, calls)',
)


def test_an_edited_decoder_takes_effect_in_the_same_store_without_a_request(
    tmp_path: Path, own_environment: dict[str, str]
) -> None:
    clone = tmp_path / "clone"
    for package in ("flows", "tasks", "scorers", "metrics"):
        shutil.copytree(PROJECT / package, clone / package)  # with what is compiled
    shutil.copy(PROJECT / "pyproject.toml", clone)
    question = "Tom has 2 apples. He buys 3 bags with 6 apples each. How many apples does he have now?"
    (tmp_path / "data.jsonl").write_text(json.dumps({"question": question}) + "\n")
    (tmp_path / "mended.yaml").write_text(CONFIG)

    def evaluated() -> dict[str, Any]:
        command = [sys.executable, "-m", "flows.eval", str(tmp_path / "mended.yaml"), "--json"]
        command += ["--store", str(tmp_path / "store"), "--output", str(tmp_path / "out")]
        done = subprocess.run(
            command, cwd=clone, env=own_environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    before = evaluated()
    assert (before["requests"]["sent"], before["results"][0]["value"]) == (1, 0.0)
    source = (clone / DECODER).read_text()
    assert READ in source
    (clone / DECODER).write_text(source.replace(READ, MENDED))
    after = evaluated()
    assert (after["requests"]["sent"], after["requests"]["cached"]) == (0, 1)
    assert after["steps"]["infer"]["computed"] == 1
    assert after["results"][0]["value"] == 1.0
