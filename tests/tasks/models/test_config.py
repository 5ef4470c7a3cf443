"""What a config may say about a model, and what is refused."""

import pytest
from pydantic import ValidationError

from tasks.models.config import LOCAL_URL, ModelConfig, Price, SampleParams
from tasks.models.connection import probe
from tasks.models.errors import ModelError
from tasks.models.limits.spending import cost_of
from tasks.models.tally import RequestTally


def test_a_name_alone_is_a_local_endpoint():
    model = ModelConfig.model_validate("local_model")
    assert (model.type, model.config.base_url, model.served_name) == ("openai", LOCAL_URL, "local_model")


def test_a_config_survives_json():
    for fields in (
        {"name": "a", "config": {"model": "m", "stream": True}, "sample_params": {"stop": "x"}},
        {"name": "b", "type": "replay", "config": {"field": "x.y"}},
        {"name": "c", "type": "demo", "config": {"error_rate": 0.5}},
    ):
        model = ModelConfig.model_validate(fields)
        assert ModelConfig.model_validate_json(model.model_dump_json()) == model


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"config": {"base_url": "http://user:pw@host/v1"}}, "credentials"),
        ({"config": {"base_url": "http://host/v1?key=x"}}, "query"),
        ({"config": {"base_url": "host:80"}}, "http://"),
        ({"config": {"api_key": "sk"}}, "Extra inputs"),
        ({"config": {"max_concurency": 3}}, "Extra inputs"),
        ({"type": "hf"}, "in OpenAI.s protocol, after vllm serve"),
        ({"type": "replay"}, "config.path"),
        ({"type": "replay", "config": {"path": "a", "field": "b"}}, "config.path"),
        ({"type": "demo", "config": {"error_rate": 2}}, "less than or equal to 1"),
        ({"sample_params": {"temperatur": 1}}, "Extra inputs"),
        ({"sample_params": {"num_samples": 0}}, "greater than or equal to 1"),
    ],
)
def test_what_makes_no_sense_is_refused(fields, said):
    with pytest.raises(ValidationError, match=said) as refused:
        ModelConfig.model_validate({"name": "m", **fields})
    assert "pw@" not in str(refused.value).partition("input_value")[0]


def test_a_models_parameters_win_over_the_global_ones():
    merged = SampleParams(temperature=1, max_tokens=5).merged(SampleParams(temperature=0))
    assert (merged.temperature, merged.max_tokens) == (0, 5)


def test_an_endpoint_says_what_it_serves(served, endpoint):
    found = probe(endpoint(served(model="m"), name="display"))
    assert found.served == ("m",)
    assert "does not list 'demo'; it serves m" in found.warning
    assert probe(endpoint(served())).warning is None
    assert probe(ModelConfig(name="demo", type="demo")).served == ("demo",)


def test_an_endpoint_that_is_not_there_is_refused_with_its_address():
    model = ModelConfig.model_validate({"name": "m", "config": {"base_url": "http://127.0.0.1:9/v1"}})
    with pytest.raises(ModelError, match=r"http://127\.0\.0\.1:9/v1.*start the server"):
        probe(model)


def test_a_wrong_key_is_refused_and_not_shown(served, endpoint, monkeypatch):
    monkeypatch.setenv("NIGHTJAR_TEST_KEY", "sk-very-secret")
    with pytest.raises(ModelError, match="NIGHTJAR_TEST_KEY") as refused:
        probe(endpoint(served(api_key="another"), api_key_env="NIGHTJAR_TEST_KEY"))
    assert "sk-very-secret" not in str(refused.value)


def test_cost_counts_cached_tokens_at_their_price():
    assert cost_of(1_000_000, 500_000, 400_000, Price(prompt=1, completion=4)) == pytest.approx(3.0)
    assert cost_of(1_000_000, 0, 400_000, Price(prompt=1, cached=0.5)) == pytest.approx(0.8)
    assert cost_of(5, 5, 0, None) == 0


def test_tallies_add_up_and_survive_json():
    a = RequestTally(requests=2, sent=1, cost=0.5, wall_seconds=3, errors={"x": 1}, served={"m": 1})
    b = RequestTally(requests=3, wall_seconds=2, errors={"x": 2, "y": 1}, stopped="limit")
    both = a.merged(b)
    assert (both.requests, both.wall_seconds, both.errors, both.stopped) == (5, 3, {"x": 3, "y": 1}, "limit")
    assert RequestTally.from_dict(both.as_dict()) == both
