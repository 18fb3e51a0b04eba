"""A real vLLM that transcribes audio over WebSocket, directly and through a router."""

import asyncio
import base64
import itertools
import json
from collections.abc import Iterator

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.engines.conftest import interpreter
from tests.engines.engine import AUDIO_ENVIRONMENT, vllm_engine
from tests.engines.engine_venv import VLLM
from tests.engines.processes import free_ports
from tests.engines.reuse.alone import RouterAlone
from tests.engines.tiny_model import write_tiny_qwen3_asr

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

SECOND = bytes(2 * 16_000)
SECONDS = 6


@pytest.fixture(scope="module")
def urls(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """The engine's, and that of a router over it."""
    python = interpreter(request, VLLM)
    directory = tmp_path_factory.mktemp("realtime")
    model, log = write_tiny_qwen3_asr(directory / "tiny"), directory / "vllm.log"
    port, events, replay = free_ports(3)
    ports = (port, events, replay)
    engine = vllm_engine(python, model, ports, log, blocks=400, environment=AUDIO_ENVIRONMENT)
    router = RouterAlone(directory, {"ears": engine.url}, ())
    try:
        engine.start()
        engine.wait()
        router.start()
        router.wait_for_trust()
        yield engine.url, router.front_url
    finally:
        router.stop()
        engine.stop()


async def transcribe(url: str) -> list[dict[str, object]]:
    """Return the events for some seconds of silence."""
    asked = f"{url.replace('http', 'ws', 1)}/v1/realtime?model=tiny"
    async with asyncio.timeout(300), connect(asked) as socket:
        events = [json.loads(await socket.recv())]
        sound = base64.b64encode(SECOND).decode()
        chunk = {"type": "input_audio_buffer.append", "audio": sound}
        begin, end = {"type": "input_audio_buffer.commit"}, {"final": True}
        update = {"type": "session.update", "model": "tiny"}
        for one in (update, begin, *itertools.repeat(chunk, SECONDS), begin | end):
            await socket.send(json.dumps(one))
        while events[-1]["type"] not in {"transcription.done", "error"}:
            events.append(json.loads(await socket.recv()))
        return events


async def test_audio_is_transcribed_through_a_router_as_by_the_engine(
    urls: tuple[str, str],
) -> None:
    for url in urls:
        events = await transcribe(url)
        kinds = [str(one["type"]) for one in events]

        assert (kinds[0], kinds[-1]) == ("session.created", "transcription.done")
        assert set(kinds[1:-1]) == {"transcription.delta"}
        assert "".join(str(one["delta"]) for one in events[1:-1]) == events[-1]["text"]


async def test_a_model_that_nobody_serves_has_no_socket(urls: tuple[str, str]) -> None:
    with pytest.raises(InvalidStatus, match="404"):
        await connect(f"{urls[1].replace('http', 'ws', 1)}/v1/realtime?model=none")
