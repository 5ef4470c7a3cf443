"""Keys of requests as stores hold them: a change here makes every kept answer of the kind a missing one."""

import hashlib
from typing import Any

import pyarrow as pa
import pytest

from tasks.models.config import ModelConfig, SampleParams
from tasks.models.identity import RequestExpansion
from tasks.store.schemas import REQUESTS

ENDPOINT: dict[str, Any] = {"name": "a", "config": {"model": "m", "base_url": "http://localhost:1/v1"}}
MODELS: dict[str, dict[str, Any]] = {
    "chat": ENDPOINT,
    "completions": {"name": "a", "config": {**ENDPOINT["config"], "api": "completions"}, "tokenizer": "t"},
    "official": {"name": "a", "config": {**ENDPOINT["config"], "client": "openai", "stream": True}},
    "extra": {"name": "a", "config": {**ENDPOINT["config"], "extra_body": {"b": 1, "a": [2]}}},
    "thinking": {**ENDPOINT, "reasoning": {"effort": "low", "marks": "mistral", "opened": True}},
    "named": {**ENDPOINT, "identity": "farm", "max_length": 2048},
    "demo": {"name": "d", "type": "demo", "config": {"error_rate": 0.25, "api": "completions"}},
}
ROWS: dict[str, dict[str, Any]] = {
    "text": {}, "messages": {"chat": True, "prompts": ['[{"role":"user","content":"p"}]']}, "pairs": {"kind":
    "loglikelihood", "prompts": ["p", "p"], "continuations": [" a", " b"], "unconditional": [" a"]},
    "rolling": {"kind": "rolling", "prompts": [""], "continuations": ["a document"]},
}  # fmt: skip
PARAMS: dict[str, SampleParams] = {
    "plain": SampleParams(),
    "drawn": SampleParams(num_samples=2, seed=3, temperature=0.7, max_tokens=9, stop=("x", "y")),
    "together": SampleParams(num_samples=2, n=2, logprobs=True, top_logprobs=3),
}
GOLDEN: dict[str, str] = {
    "chat text plain": "e5f29cc6baff 8509331ce54c",
    "chat text drawn": "e5f29cc6baff e297c78a7799",
    "chat text together": "e5f29cc6baff 4314ecd253a0",
    "chat messages plain": "e5f29cc6baff 3ccf5695e182",
    "chat messages drawn": "e5f29cc6baff 6033ed1f0f11",
    "chat messages together": "e5f29cc6baff abdfbe10e51f",
    "chat pairs plain": "e5f29cc6baff d10beab91016",
    "chat pairs drawn": "e5f29cc6baff d10beab91016",
    "chat pairs together": "e5f29cc6baff d10beab91016",
    "chat rolling plain": "e5f29cc6baff ba28fbca4f49",
    "chat rolling drawn": "e5f29cc6baff ba28fbca4f49",
    "chat rolling together": "e5f29cc6baff ba28fbca4f49",
    "completions text plain": "6f6eb1d08826 2f0636a44098",
    "completions text drawn": "6f6eb1d08826 579198ca23bf",
    "completions text together": "6f6eb1d08826 fa204303b139",
    "completions messages plain": "6f6eb1d08826 d28bffb24a5e",
    "completions messages drawn": "6f6eb1d08826 eb510c4adfab",
    "completions messages together": "6f6eb1d08826 4f6bbf81ac6e",
    "completions pairs plain": "6f6eb1d08826 9fd5c078bca5",
    "completions pairs drawn": "6f6eb1d08826 9fd5c078bca5",
    "completions pairs together": "6f6eb1d08826 9fd5c078bca5",
    "completions rolling plain": "6f6eb1d08826 f30b4235aba0",
    "completions rolling drawn": "6f6eb1d08826 f30b4235aba0",
    "completions rolling together": "6f6eb1d08826 f30b4235aba0",
    "official text plain": "e5f29cc6baff 8509331ce54c",
    "official text drawn": "e5f29cc6baff e297c78a7799",
    "official text together": "e5f29cc6baff 4314ecd253a0",
    "official messages plain": "e5f29cc6baff 3ccf5695e182",
    "official messages drawn": "e5f29cc6baff 6033ed1f0f11",
    "official messages together": "e5f29cc6baff abdfbe10e51f",
    "official pairs plain": "e5f29cc6baff d10beab91016",
    "official pairs drawn": "e5f29cc6baff d10beab91016",
    "official pairs together": "e5f29cc6baff d10beab91016",
    "official rolling plain": "e5f29cc6baff ba28fbca4f49",
    "official rolling drawn": "e5f29cc6baff ba28fbca4f49",
    "official rolling together": "e5f29cc6baff ba28fbca4f49",
    "extra text plain": "2069be430acb daf05b0c478e",
    "extra text drawn": "2069be430acb 00bfcfe8daf6",
    "extra text together": "2069be430acb 77a95415470b",
    "extra messages plain": "2069be430acb b513019abcb5",
    "extra messages drawn": "2069be430acb e93b33983754",
    "extra messages together": "2069be430acb 76aa5272df93",
    "extra pairs plain": "2069be430acb 962d3418ada0",
    "extra pairs drawn": "2069be430acb 962d3418ada0",
    "extra pairs together": "2069be430acb 962d3418ada0",
    "extra rolling plain": "2069be430acb 503138f507f1",
    "extra rolling drawn": "2069be430acb 503138f507f1",
    "extra rolling together": "2069be430acb 503138f507f1",
    "thinking text plain": "7499af560b4f 182de18b9166",
    "thinking text drawn": "7499af560b4f 18e13b4d6ad4",
    "thinking text together": "7499af560b4f 1a645f1369c8",
    "thinking messages plain": "7499af560b4f 1ef544f892e3",
    "thinking messages drawn": "7499af560b4f 13dfc24b85e1",
    "thinking messages together": "7499af560b4f 40b4c8096104",
    "thinking pairs plain": "7499af560b4f cd569a85f80e",
    "thinking pairs drawn": "7499af560b4f cd569a85f80e",
    "thinking pairs together": "7499af560b4f cd569a85f80e",
    "thinking rolling plain": "7499af560b4f 448aa8131090",
    "thinking rolling drawn": "7499af560b4f 448aa8131090",
    "thinking rolling together": "7499af560b4f 448aa8131090",
    "named text plain": "7e8cbb65c350 a9803f1095cd",
    "named text drawn": "7e8cbb65c350 671e3c5e9a5e",
    "named text together": "7e8cbb65c350 322f1a9e52ce",
    "named messages plain": "7e8cbb65c350 1fe080fe1b03",
    "named messages drawn": "7e8cbb65c350 07c8bd83db10",
    "named messages together": "7e8cbb65c350 cee1fafacbbc",
    "named pairs plain": "7e8cbb65c350 5ec0e642bb8c",
    "named pairs drawn": "7e8cbb65c350 5ec0e642bb8c",
    "named pairs together": "7e8cbb65c350 5ec0e642bb8c",
    "named rolling plain": "7e8cbb65c350 b19f7867fab9",
    "named rolling drawn": "7e8cbb65c350 b19f7867fab9",
    "named rolling together": "7e8cbb65c350 b19f7867fab9",
    "demo text plain": "255112912b76 00dbdc410463",
    "demo text drawn": "255112912b76 a262a4b50a00",
    "demo text together": "255112912b76 c00843d73c1f",
    "demo messages plain": "255112912b76 6deefcc3dbfa",
    "demo messages drawn": "255112912b76 7ad4ba56258a",
    "demo messages together": "255112912b76 6e4991c573e7",
    "demo pairs plain": "255112912b76 80bb3f9969c0",
    "demo pairs drawn": "255112912b76 80bb3f9969c0",
    "demo pairs together": "255112912b76 80bb3f9969c0",
    "demo rolling plain": "255112912b76 9470ae89f4c9",
    "demo rolling drawn": "255112912b76 9470ae89f4c9",
    "demo rolling together": "255112912b76 9470ae89f4c9",
}


def keys_of(model: str, row: str, params: str) -> str:
    fields = {
        "item_id": "i", "doc_id": 0, "item_digest": "d", "cluster": None, "prompt_template": "t",
        "kind": "generate", "chat": False, "prompts": ["p"], "continuations": [""], "unconditional": [],
        "references_json": "[]", "gold": [], "choices": [], "doc_json": "{}", "first_sample": 0, **ROWS[row],
    }  # fmt: skip
    batch = pa.RecordBatch.from_pylist([fields], schema=REQUESTS)
    expansion = RequestExpansion.of(ModelConfig.model_validate(MODELS[model]), PARAMS[params])
    keys = [request.key for request in next(expansion.rows(batch))]
    return f"{expansion.identity[:12]} {hashlib.sha256(b''.join(keys)).hexdigest()[:12]}"


CASES = [(model, row, params) for model in MODELS for row in ROWS for params in PARAMS]


@pytest.mark.parametrize("model", MODELS)
def test_keys_of_requests_are_what_they_were(model: str) -> None:
    found = {" ".join(case): keys_of(*case) for case in CASES if case[0] == model}
    assert found == {name: key for name, key in GOLDEN.items() if name.startswith(f"{model} ")}
