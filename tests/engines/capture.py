"""What an engine has published, byte for byte, by its own replay."""

import json
import time
from pathlib import Path

import httpx
import msgspec
import zmq

from kvmesh.app.members.engine_probe import read_facts
from kvmesh.core.engines.facts import EngineFacts
from kvmesh.core.engines.kv_events.event_source import END_OF_REPLAY
from kvmesh.transport.http.upstream.client import UpstreamPool

SILENCE_MS = 2_000
DEADLINE_S = 60.0


class Captured(msgspec.Struct, frozen=True):
    """One batch."""

    topic: str
    seq: int
    payload: bytes


async def facts_of(url: str) -> EngineFacts:
    pool = UpstreamPool()
    try:
        facts = await read_facts(pool, url)
    finally:
        await pool.close()
    assert facts is not None, url
    return facts


def capture(endpoint: str) -> list[Captured]:
    """Return every batch the replay socket at `endpoint` still has, asking until none is missing.

    Engines drop what their socket's queue does not hold.
    """
    found: list[Captured] = []
    deadline = time.monotonic() + DEADLINE_S
    with zmq.Context() as context:
        while True:
            assert time.monotonic() < deadline, f"{endpoint}: {len(found)} batches and no end"
            if _ask(context, endpoint, found):
                return found


def _ask(context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, found: list[Captured]) -> bool:
    """Add what follows, in order; return whether the end was reached."""
    with context.socket(zmq.DEALER) as socket:
        socket.set_hwm(0)
        socket.linger = 0
        socket.connect(endpoint)
        socket.send_multipart((b"", len(found).to_bytes(8, "big")))
        while socket.poll(SILENCE_MS):
            frames = socket.recv_multipart()
            seq = int.from_bytes(frames[-2], "big")
            if seq == END_OF_REPLAY:
                return True
            if seq != len(found):
                return False
            topic = frames[1].decode() if len(frames) == 4 else ""
            found.append(Captured(topic, seq, frames[-1]))
    return False


def save(batches: list[Captured], path: Path) -> None:
    """Write them in the form of tests/fixtures/engines/*_live.jsonl."""
    lines = [
        json.dumps({"topic": one.topic, "seq": one.seq, "hex": one.payload.hex()})
        for one in batches
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def clear_cache(url: str) -> None:
    """Have the engine, SGLang or vLLM, drop its cache and say so: vLLM does with its next step."""
    paths = ("/flush_cache", "/reset_prefix_cache")
    assert 200 in {httpx.post(f"{url}{path}", timeout=30.0).status_code for path in paths}
    step = {"model": "tiny", "prompt": "Go on.", "max_tokens": 1}
    httpx.post(f"{url}/v1/completions", json=step, timeout=60.0).raise_for_status()
