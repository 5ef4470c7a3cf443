"""Many definitions validated in one process, nothing imported and no dataset opened."""

from pathlib import Path

from tasks.benchmarks.lm_eval import resolve_many

BASE = """dataset_path: json
dataset_kwargs: {data_files: not_there.jsonl}
test_split: test
doc_to_text: q
doc_to_target: a
"""


def test_every_path_gets_its_status_and_reason(tmp_path: Path):
    (tmp_path / "utils.py").write_text("import a_library_that_nobody_has\ndef process(docs): return docs\n")
    texts = {
        "good": "task: good\nprocess_docs: !function utils.process\n" + BASE,
        "typo": "task: typo\ndoc_to_txt: x\n" + BASE,
        "audio": "task: audio\ndoc_to_audio: i\n" + BASE,
        "group": "group: group\ntask: [good, typo]\n",
        "broken": "task: [\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    paths = [tmp_path / f"{name}.yaml" for name in texts] + [tmp_path / "gone.yaml"]
    found = {Path(entry["path"]).stem: entry for entry in resolve_many(paths)["configs"]}
    statuses = {name: entry["status"] for name, entry in found.items()}
    assert statuses == {
        "good": "ok",
        "typo": "ok",
        "audio": "refused",
        "group": "ok",
        "broken": "refused",
        "gone": "refused",
    }
    assert found["good"]["reason"] is None
    assert found["audio"]["reason"].endswith(
        "audio.yaml:2: 'doc_to_audio' plays the model audio, which the harness's chat messages have no place "
        "for; a native config has one: messages with a part {audio: …}"
    )
    assert "broken.yaml:" in found["broken"]["reason"]
    assert "can't be read" in found["gone"]["reason"]
    assert "unknown key 'doc_to_txt'" in found["typo"]["warnings"][0]


def test_members_of_a_group_are_looked_up_in_the_given_folders(tmp_path: Path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "x.yaml").write_text("task: x\n" + BASE)
    (tmp_path / "g.yaml").write_text("group: g\ntask: [x]\n")
    (alone,) = resolve_many([tmp_path / "g.yaml"])["configs"]
    assert alone["status"] == "refused"
    (together,) = resolve_many([tmp_path / "g.yaml"], [tmp_path / "lib"])["configs"]
    assert together["status"] == "ok"
