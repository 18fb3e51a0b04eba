from pathlib import Path

import msgspec
import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import PROFILES, StepLoad, parse_profile


def load(prefill: int = 0, decoding: int = 0, context: int = 0, active: int = 0) -> StepLoad:
    return StepLoad(prefill, prefill * prefill / 2, decoding, context, active)


def test_dynamo_prefill_is_its_published_polynomial() -> None:
    expected = 16.50142 + 0.01518344 * 8192 + 4.209989e-7 * 8192**2

    assert PROFILES["dynamo"].step_ms(load(prefill=8192)) == pytest.approx(expected)


def test_dynamo_decode_depends_on_active_tokens_up_to_its_capacity() -> None:
    profile = PROFILES["dynamo"]

    assert profile.step_ms(load(decoding=1)) == pytest.approx(5.74)
    assert profile.step_ms(load(decoding=1, active=524_288)) == pytest.approx(26.31)
    assert profile.step_ms(load(decoding=1, active=1 << 20)) == pytest.approx(34.01)
    assert profile.step_ms(load(decoding=1, active=1 << 24)) == pytest.approx(34.01)


def test_preble_reads_the_weights_once_in_a_mixed_step() -> None:
    profile = PROFILES["preble-70b"]
    alone = profile.step_ms(load(prefill=1000))
    decode = profile.step_ms(load(decoding=10, context=100_000))

    assert decode == pytest.approx(19 + 0.8 + 6)
    assert profile.step_ms(load(1000, 10, 100_000)) == pytest.approx(alone + decode - 18.7)


def test_a_profile_is_named_and_may_be_changed() -> None:
    assert parse_profile("linear") == PROFILES["linear"]
    assert parse_profile("linear, decode_base = 8").decode_base == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast", "none of dynamo, instant"),
        ("linear,bass=1", "bass"),
        ("linear,decode_base", "could not convert"),
        ("linear,decode_base=nan", "finite"),
        ("linear,active_capacity=0", "above 0"),
    ],
)
def test_a_wrong_profile_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_profile(text)


def test_options_vllm_would_refuse_are_refused() -> None:
    with pytest.raises(ConfigError, match="block_size is 0"):
        EngineOptions(block_size=0)
    with pytest.raises(ConfigError, match="must be at least"):
        EngineOptions(max_num_seqs=100, max_num_batched_tokens=99)


def file_of(folder: Path, **changes: object) -> str:
    """Write a profile's file; return its path."""
    body = {
        "source": "a test",
        "kv_tokens": 1000,
        "kv_bytes_per_token": 8,
        "timing": {"decode_base": 1.0, "steps": [[1, 10.0], [100, 20.0], [200, 40.0]]},
    }
    path = folder / "engine.json"
    path.write_bytes(msgspec.json.encode(body | changes))
    return str(path)


def test_measured_steps_are_read_from_a_file_and_joined_by_lines(tmp_path: Path) -> None:
    profile = parse_profile(file_of(tmp_path))

    times = [profile.step_ms(StepLoad(tokens, 0.0, 0, 0, 0)) for tokens in (0, 1, 100, 150, 400)]
    assert times == pytest.approx([0.0, 10.0, 20.0, 30.0, 80.0])
    # What decodes is computed in the same step.
    assert profile.step_ms(StepLoad(99, 0.0, 1, 5, 5)) == pytest.approx(21.0)
    assert parse_profile(f"{file_of(tmp_path)},decode_base=2").decode_base == 2.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"timing": {"steps": [[1, 2.0]]}}, "give steps of two or more tokens that rise"),
        ({"timing": {"steps": [[2, 2.0], [1, 3.0]]}}, "that rise"),
        ({"timing": {"steps": "fast"}}, "Expected `array`"),
        ({"kv_tokens": 0}, "must be above 0"),
        ({"name": "x"}, "unknown field"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_profile(file_of(tmp_path, **changes))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.json: No such file"):
        parse_profile(str(tmp_path / "none.json"))
