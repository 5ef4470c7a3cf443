"""BOS and EOS are found where transformers finds them."""

import json
import shutil
import sys

import pytest

from metrics.errors import ConfigError
from tasks.models.config import ModelConfig
from tasks.models.connection import probe
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


def write_words(folder, number):
    tokenizers = pytest.importorskip("tokenizers")
    folder.mkdir(exist_ok=True)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": number}, unk_token="[UNK]"))
    words.save(str(folder / "tokenizer.json"))


def test_a_tokenizer_is_found_beside_the_config_and_loaded_anew_when_it_has_changed(tmp_path):
    write_words(tmp_path / "tok", 7)
    assert load_tokenizer("tok", tmp_path).encode("a") == [7]
    write_words(tmp_path / "tok", 12)
    assert load_tokenizer("tok", tmp_path).encode("a") == [12]


def test_a_tokenizer_that_was_loaded_stays_when_its_folder_is_removed(tmp_path):
    write_words(tmp_path / "tok", 7)
    loaded = load_tokenizer(str(tmp_path / "tok"))
    shutil.rmtree(tmp_path / "tok")
    assert load_tokenizer(str(tmp_path / "tok")) is loaded


def test_a_tokenizer_in_a_home_of_nobody_is_refused_as_one_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=rf"tokenizer\.json at {tmp_path}/~nobody_here/tok"):
        load_tokenizer("~nobody_here/tok", tmp_path)


def test_a_tokenizer_that_is_not_there_is_refused_before_anything_is_asked(tmp_path):
    model = ModelConfig.model_validate({"name": "m", "tokenizer": "tok", "config": {"api": "completions"}})
    with pytest.raises(ConfigError, match=f"no tokenizer.json at {tmp_path}/tok"):
        probe(model, "generate", base_dir=tmp_path)
