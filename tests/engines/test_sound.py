"""A real vLLM that hears: what routers predict behind a sound is what the engine reuses."""

import base64
import io
import random
import wave
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.conftest import interpreter
from tests.engines.engine_venv import VLLM
from tests.engines.media import QUESTION, routed, sent
from tests.engines.reuse.alone import RouterAlone
from tests.engines.tiny_model import SOUND_RATE, write_tiny_qwen2_audio

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

SECOND_TOKENS = 25


@pytest.fixture(scope="module")
def router(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RouterAlone]:
    directory = tmp_path_factory.mktemp("sound")
    model = write_tiny_qwen2_audio(directory / "tiny")
    with routed(interpreter(request, VLLM), directory, model, 1) as routers:
        yield routers[0]


def noise(seed: int, seconds: float) -> str:
    """Return a WAV of so many seconds, in base64."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(SOUND_RATE)
        writer.writeframes(random.Random(seed).randbytes(int(2 * SOUND_RATE * seconds)))
    return base64.b64encode(file.getvalue()).decode()


def sound(data: str, kind: str) -> dict[str, Any]:
    if kind == "input_audio":
        return {"type": kind, kind: {"data": data, "format": "wav"}}
    return {"type": kind, kind: {"url": f"data:audio/wav;base64,{data}"}}


@pytest.mark.parametrize("kind", ["input_audio", "audio_url"])
def test_turns_behind_a_sound_are_predicted_once_it_was_heard(
    router: RouterAlone, kind: str
) -> None:
    heard, longer = sound(noise(1, 1.0), kind), sound(noise(2, 2.0), kind)

    first, *more = (sent(router, QUESTION, heard, QUESTION, turns=n) for n in range(3))
    several = [sent(router, longer, QUESTION, heard, turns=n) for n in range(4)]

    assert first.unforeseen == "media"
    assert [one.unforeseen for one in more] == [""] * 2
    assert [one.predicted for one in more] == [one.cached for one in more]
    assert all(one.cached > SECOND_TOKENS for one in more)
    assert [one.predicted for one in several[1:]] == [one.cached for one in several[1:]]
    assert several[3].cached > 3 * SECOND_TOKENS
