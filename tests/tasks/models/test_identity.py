"""What makes two requests the same, and what does not."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from metrics.errors import ConfigError
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.identity import RequestExpansion, model_identity
from tasks.store.schemas import REQUESTS

BASE: dict[str, Any] = {"name": "a", "config": {"model": "m", "base_url": "http://localhost:1/v1"}}


def model(**fields: Any) -> ModelConfig:
    config = fields.pop("config", {})
    return ModelConfig.model_validate({**BASE, **fields, "config": {**BASE["config"], **config}})


def keys(model: ModelConfig, params: SampleParams, base_dir: Path = Path(), **row: Any) -> list[bytes]:
    fields = {
        "item_id": "i", "doc_id": 0, "item_digest": "d", "cluster": None, "prompt_template": "t",
        "kind": "generate", "chat": False, "prompts": ["p"], "continuations": [""], "unconditional": [],
        "references_json": "[]", "gold": [], "choices": [], "doc_json": "{}", "first_sample": 0, **row,
    }  # fmt: skip
    batch = pa.RecordBatch.from_pylist([fields], schema=REQUESTS)
    return [request.key for request in next(RequestExpansion.of(model, params, base_dir).rows(batch))]


MATTERS = [
    {"config": {"model": "other"}},
    {"config": {"base_url": "http://localhost:2/v1"}},
    {"config": {"api": "completions"}},
    {"config": {"extra_body": {"top_a": 1}}},
    {"identity": "elsewhere"},
    {"tokenizer": "t"},
    {"max_length": 99},
    {"reasoning": {"opened": True}},
]
DISPLAYED = [
    {"name": "b"},
    {"metadata": {"step": 5}},
    {"config": {"max_concurrency": 3}},
    {"config": {"timeout": 3}},
    {"config": {"max_retries": 1}},
    {"config": {"deadline": 1}},
    {"config": {"api_key_env": "KEY"}},
    {"config": {"api_key_secret": "block"}},
    {"config": {"stream": True}},
    {"config": {"client": "openai"}},
    {"config": {"concurrency_limit": "l"}},
    {"config": {"requests_per_minute": 9}},
    {"config": {"tokens_per_minute": 9}},
    {"config": {"batch_size": 4}},
    {"config": {"batch": {"wait": "24h"}}},
]


@pytest.mark.parametrize("fields", MATTERS, ids=str)
def test_what_can_change_an_answer_changes_the_key(fields):
    assert keys(model(**fields), SampleParams()) != keys(model(), SampleParams())


@pytest.mark.parametrize("fields", DISPLAYED, ids=str)
def test_what_cannot_change_an_answer_does_not(fields):
    assert keys(model(**fields), SampleParams()) == keys(model(), SampleParams())


SERVED = {"path", "peft", "checkpoints", "serve"}


def test_every_config_field_is_in_one_of_the_two_lists():
    from tasks.models.providers.openai.config import EndpointConfig

    taken = {name for fields in MATTERS + DISPLAYED for name in fields.get("config", {})}
    assert taken == set(EndpointConfig.model_fields)
    own = {name for fields in MATTERS + DISPLAYED for name in fields}
    # Of a served model the content of its weights counts: tests/tasks/serving.
    assert own == set(ModelConfig.model_fields) - {"type", "sample_params", *SERVED}


SAMPLING = {
    "seed": 1, "temperature": 0.5, "max_tokens": 5, "max_completion_tokens": 5, "top_p": 0.5, "top_k": 4,
    "min_p": 0.1, "stop": ["x"], "presence_penalty": 1.0, "frequency_penalty": 1.0, "repetition_penalty": 1.1,
    "logit_bias": {"5": 1}, "logprobs": True, "top_logprobs": 2, "response_format": {"type": "json_object"},
    "reasoning_effort": "low", "n": 2, "tool_choice": "required",
}  # fmt: skip


def test_every_sampling_field_is_tested():
    assert set(SAMPLING) | {"num_samples"} == set(SampleParams.model_fields)


@pytest.mark.parametrize("name", SAMPLING)
def test_every_sampling_field_changes_the_key(name):
    assert keys(model(), SampleParams(**{name: SAMPLING[name]})) != keys(model(), SampleParams())


@pytest.mark.parametrize(
    "row",
    [{"prompts": ["q"]}, {"chat": True}, {"kind": "loglikelihood"}, {"kind": "rolling"}],
    ids=str,
)
def test_what_is_asked_changes_the_key(row):
    assert keys(model(), SampleParams(), **row) != keys(model(), SampleParams())


def test_the_continuation_changes_the_key():
    first, second = keys(
        model(), SampleParams(), kind="loglikelihood", prompts=["p", "p"], continuations=["a", "b"]
    )
    assert first != second


@pytest.mark.parametrize(
    "row", [{"item_id": "j"}, {"doc_id": 4}, {"prompt_template": "u"}, {"cluster": "c"}], ids=str
)
def test_names_do_not_change_the_key(row):
    assert keys(model(), SampleParams(), **row) == keys(model(), SampleParams())


def test_samples_have_keys_of_their_own_and_the_first_eight_of_sixteen_are_those_of_eight():
    eight, sixteen = (keys(model(), SampleParams(num_samples=n, seed=3)) for n in (8, 16))
    assert len(set(sixteen)) == 16
    assert sixteen[:8] == eight


def test_the_first_of_samples_together_keeps_its_key_and_the_others_may_not():
    """Whoever was asked first was always sent the config's own seed; others were sent it, too, and repeat the
    first where they went in another request."""
    before = ["38118763d2ff", "cf78399897e7", "2dd8b3d148a8", "dc891f791a16"]
    params = SampleParams(num_samples=4, n=2, seed=3)
    found = keys(model(), params)
    kept = [key.hex()[:12] == old for key, old in zip(found, before, strict=True)]
    assert kept == [True, False, False, False]
    assert found[1:] == keys(model(), SampleParams(num_samples=3, n=2, seed=3), first_sample=1)
    assert not set(found) & set(keys(model(), SampleParams(num_samples=4, seed=3)))


def test_a_later_first_sample_is_another_sample():
    params = SampleParams(num_samples=2, seed=3)
    assert keys(model(), params, first_sample=1) == keys(model(), SampleParams(num_samples=3, seed=3))[1:]


def test_text_cannot_move_between_prompt_and_continuation():
    row = {"kind": "loglikelihood", "prompts": ["ab"], "continuations": ["c"]}
    other = {"kind": "loglikelihood", "prompts": ["a"], "continuations": ["bc"]}
    assert keys(model(), SampleParams(), **row) != keys(model(), SampleParams(), **other)


COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKENIZED = [({"api": "completions"}, {}), ({}, {"kind": "loglikelihood"}), ({}, {"kind": "rolling"})]


def write_tokenizer(folder: Path, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": number}}}))


@pytest.mark.parametrize(("config", "row"), TOKENIZED, ids=str)
def test_a_tokenizer_counts_by_its_files_where_it_decides_what_is_sent(tmp_path, config, row):
    def found(folder: str) -> list[bytes]:
        return keys(model(tokenizer="tok", config=config), SampleParams(), tmp_path / folder, **row)

    for folder, number in (("one", 1), ("same", 1), ("other", 2)):
        write_tokenizer(tmp_path / folder / "tok", number)
    first = found("one")
    assert found("same") == first
    assert found("other") != first
    (tmp_path / "one" / "tok" / "tokenizer_config.json").write_text('{"eos_token": "a"}')
    assert found("one") != first


def test_a_chat_is_sent_no_tokens_and_keeps_its_key_whatever_its_tokenizer_holds(tmp_path):
    write_tokenizer(tmp_path / "tok", 1)
    said = model(tokenizer="tok")
    assert keys(said, SampleParams(), tmp_path) == keys(said, SampleParams())


def test_a_hubs_tokenizer_counts_by_its_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    by_name = model(tokenizer="org/t", config={"api": "completions"})
    unknown = keys(by_name, SampleParams())
    refs = tmp_path / "models--org--t" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(COMMIT)
    known = keys(by_name, SampleParams())
    (refs / "main").write_text(COMMIT[::-1])
    assert len({*unknown, *known, *keys(by_name, SampleParams())}) == 3


def test_keys_of_a_run_hold_the_tokenizer_as_it_was_at_first(tmp_path):
    write_tokenizer(tmp_path / "tok", 1)
    said = model(tokenizer="tok", config={"api": "completions"})
    expansion = RequestExpansion.of(said, SampleParams(), tmp_path)
    before = expansion.encoding("generate")
    write_tokenizer(tmp_path / "tok", 22)
    assert expansion.encoding("generate") == before


def test_an_explicit_identity_stands_for_the_address():
    moved = {"config": {"base_url": "http://elsewhere:9/v1"}, "identity": "farm"}
    assert model_identity(model(**moved)) == model_identity(model(identity="farm"))


def test_the_embedded_server_is_known_by_its_parameters_and_not_its_place():
    demo = model_identity(ModelConfig(name="d", type="demo"))
    assert demo == model_identity(
        ModelConfig.model_validate({"name": "e", "type": "demo", "config": {"latency": 1}})
    )
    assert demo != model_identity(
        ModelConfig.model_validate({"name": "d", "type": "demo", "config": {"error_rate": 0.5}})
    )


def test_recorded_responses_are_known_by_their_bytes(tmp_path):
    def identity(text: str) -> dict[str, Any]:
        (tmp_path / "r.jsonl").write_text(text)
        recorded = ModelConfig.model_validate({"name": "r", "type": "replay", "config": {"path": "r.jsonl"}})
        return model_identity(recorded, tmp_path)

    assert identity("a") == identity("a")
    assert identity("a") != identity("b")


def test_a_missing_recording_is_refused_by_name(tmp_path):
    recorded = ModelConfig.model_validate({"name": "r", "type": "replay", "config": {"path": "gone.jsonl"}})
    with pytest.raises(ConfigError, match=r"gone\.jsonl"):
        model_identity(recorded, tmp_path)
