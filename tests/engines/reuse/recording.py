"""Records what an engine told of its cache and what it reused.

`python -m tests.engines.reuse.recording` makes the recordings of tests/fixtures/engines.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.engines.capture import Captured, capture
from tests.engines.engine import VLLM_BLOCK_SIZE, Engine, vllm_engine
from tests.engines.engine_venv import VLLM
from tests.engines.processes import free_ports
from tests.engines.tiny_model import GEMMA3, LFM2, VOCABULARY, Config, write_tiny_model
from tests.engines.traffic import Traffic, read_usage
from tests.unit.core.engines.recordings import FIXTURES, Batch, Recorded, save


class _Sent(msgspec.Struct, frozen=True):
    at_s: float
    recorded: Recorded


def record(engine: Engine, replay: str, count: int) -> list[Recorded | Batch]:
    """Send `count` requests one by one, return them among the batches that the engine told."""
    sent: list[_Sent] = []
    with httpx.Client(base_url=engine.url, timeout=120.0) as http:
        for _, path, body in Traffic(1, VLLM_BLOCK_SIZE, VOCABULARY).requests():
            prompt = body.get("prompt") or _tokens(http, body)
            at_s = time.time()
            answer = http.post(path, json=body)
            tokens, cached = read_usage(answer.raise_for_status().json()["usage"])
            assert tokens == len(prompt)
            sent.append(_Sent(at_s, Recorded(prompt, cached)))
            if len(sent) == count:
                break
    return list(_in_order(sent, capture(replay)))


def _tokens(http: httpx.Client, body: dict[str, Any]) -> list[int]:
    messages = {"model": body["model"], "messages": body["messages"]}
    answer = http.post("/tokenize", json=messages | {"add_generation_prompt": True})
    tokens: list[int] = answer.raise_for_status().json()["tokens"]
    return tokens


def _in_order(sent: list[_Sent], batches: list[Captured]) -> Iterator[Recorded | Batch]:
    """A batch begins with the time it was made, s since 1970."""
    waiting = iter(sent)
    due = next(waiting, None)
    for batch in batches:
        made_s: float = msgspec.msgpack.decode(batch.payload)[0]
        while due is not None and due.at_s < made_s:
            yield due.recorded
            due = next(waiting, None)
        yield Batch(batch.payload.hex())
    if due is not None:
        yield due.recorded
    yield from (one.recorded for one in waiting)


def _record_vllm(name: str, config: Config, blocks: int, count: int) -> None:
    python = VLLM.python()
    assert python is not None, VLLM.why_not_built()
    with tempfile.TemporaryDirectory() as directory:
        model = write_tiny_model(Path(directory) / "tiny", config)
        ports = free_ports(3)
        log = Path(directory) / "engine.log"
        engine = vllm_engine(python, model, (ports[0], ports[1], ports[2]), log, blocks=blocks)
        engine.start()
        try:
            engine.wait()
            recording = record(engine, f"tcp://127.0.0.1:{ports[2]}", count)
        finally:
            engine.stop()
    path = FIXTURES / f"vllm_{VLLM.version}_{name}.recording.gz"
    save(recording, path)
    cached = [one.cached for one in recording if isinstance(one, Recorded)]
    print(f"{path}: {len(cached)} requests, {sum(cached)} tokens reused", file=sys.stderr)  # noqa: T201


def main() -> None:
    """Record a sliding-window model and a mamba hybrid under eviction."""
    _record_vllm("gemma3", GEMMA3, 400, 60)
    _record_vllm("lfm2", LFM2, 130, 60)


if __name__ == "__main__":
    main()
