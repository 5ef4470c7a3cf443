"""BOS and EOS are found where transformers finds them."""

import json

import pytest

from tasks.models.tokenizers import SpecialTokens, load_tokenizer, special_tokens

END = "<|endoftext|>"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, (None, None)),
        ({"tokenizer_config.json": {"eos_token": "</s>"}}, (None, "</s>")),
        ({"tokenizer_config.json": {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}}, ("<s>", "</s>")),
        (
            {"tokenizer_config.json": {"eos_token": "</s>"}, "special_tokens_map.json": {"bos_token": "<s>"}},
            ("<s>", "</s>"),
        ),
        ({"tokenizer_config.json": {"tokenizer_class": "GPT2TokenizerFast"}}, (END, END)),
        ({"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "bos_token": None}}, (None, END)),
        ({"config.json": {"model_type": "gpt2"}}, (END, END)),
        ({"config.json": {"model_type": "unheard_of"}}, (None, None)),
    ],
    ids=["nothing", "EOS alone", "AddedToken", "two files", "class", "null decides", "model", "unknown"],
)
def test_named_in_a_file_or_known_by_the_class(tmp_path, files, expected):
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert special_tokens(tmp_path) == SpecialTokens(*expected)


def test_the_prefix_is_bos_else_eos_of_those_that_the_vocabulary_has(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "</s>": 7}, unk_token="[UNK]"))
    words.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    loaded = load_tokenizer(str(tmp_path))
    assert (loaded.prefix, loaded.end) == (7, "</s>")
