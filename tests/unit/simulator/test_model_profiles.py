"""Sizes of engines by model and GPUs."""

import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.simulator.model_profiles import DYNAMO, MODEL_PROFILES, EngineSize, engine_size


def test_a_70b_in_fp8_on_two_h100_holds_some_236_thousand_tokens() -> None:
    usable = 2 * (0.9 * 81_559 * 2**20 - 3e9) - 70.6e9

    assert MODEL_PROFILES["70b-2xh100"].kv_tokens() == pytest.approx(usable / 327_680, abs=1)
    assert MODEL_PROFILES["70b-2xh100"].kv_tokens() == pytest.approx(236_000, rel=0.01)


def test_the_profile_follows_the_timing_unless_it_is_named() -> None:
    assert engine_size(None, None).name == "8b-1xh100"
    assert engine_size(None, None).timing == "dynamo"
    assert engine_size(None, "preble-70b,decode_base=18").name == "70b-2xh100"
    named = engine_size("8b-1xh100", "preble-70b")
    assert (named.name, named.timing) == ("8b-1xh100", "preble-70b")
    assert engine_size(DYNAMO, "linear").timing == "linear"
    assert engine_size("70b-2xh100", None).timing == "preble-70b"


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'7b' is none of 8b-1xh100.*dynamo-mocker"):
        engine_size("7b", None)


def test_a_profile_may_be_a_file() -> None:
    path = "benchmarks/quality/profiles/llama3-8b-1xa100.json"

    assert engine_size(path, None) == EngineSize(path, 444_407, 131_072, path)
    assert engine_size(path, "dynamo").timing == "dynamo"
