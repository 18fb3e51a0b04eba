"""Real vLLM killed in the middle of its answers: streams go on at another, none is cut, and what
clients get is what an undisturbed run gives.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import httpx
import msgspec
import pytest

from tests.engines.conftest import interpreter
from tests.engines.engine import Engine
from tests.engines.engine_venv import VLLM
from tests.engines.pair import running_pair
from tests.engines.processes import eventually
from tests.engines.tiny_model import QWEN3

pytestmark = [pytest.mark.engines, pytest.mark.timeout(3600)]

CUTS = int(os.environ.get("KVMESH_STREAM_CUTS", "24"))
"""Streams that a killed engine cuts, of each form; docs/measured/streams.md has 100."""
AT_ONCE = int(os.environ.get("KVMESH_STREAMS_AT_ONCE", "4"))
TOKENS = 96
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
EXACT: Mapping[str, dict[str, Any]] = {
    "chat": {},
    "chat with tools": {"tools": [TOOL]},
    "chat with stop strings": {"stop": ["never said", "nor this"]},
    "chat with a penalty": {"frequency_penalty": 0.5},
    "completion": {"prompt": True},
}


class Answered(msgspec.Struct):
    """What a client got of one stream. Ids, times and fingerprints are the engine's own."""

    head: Mapping[str, str]
    texts: list[str] = []
    calls: list[object] = []
    reason: str = ""
    usage: object = None
    done: bool = False
    error: str = ""
    ids: set[str] = set()
    roles: int = 0

    @property
    def said(self) -> tuple[object, ...]:
        """Return all that has to be as in an undisturbed run."""
        usage = dict(self.usage) if isinstance(self.usage, dict) else {}
        usage.pop("prompt_tokens_details", None)
        text = "".join(self.texts)
        return text, self.calls, self.reason, usage, self.done, self.error, self.roles


class Fleet(msgspec.Struct):
    engines: Sequence[Engine]
    client: httpx.Client

    def ask(self, number: int, form: dict[str, Any], passed: SimpleQueue[str] | None) -> Answered:
        """Return a stream; `passed` gets its worker when it is somewhere in the middle, "" where it
        never was.
        """
        rng = random.Random(number)
        text = f"story {number} of many, told slowly"
        body: dict[str, Any] = {
            "model": "tiny",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "temperature": 0,
            **form,
        }
        path = "/v1/chat/completions"
        if body.pop("prompt", None):
            body["prompt"], path = text, "/v1/completions"
        else:
            body["messages"] = [{"role": "user", "content": text}]
        stop_at = rng.randrange(1, TOKENS - 10)
        with self.client.stream("POST", path, json=body) as response:
            found = Answered(dict(response.headers))
            for line in response.iter_lines():
                if line.startswith("data: "):
                    take(found, line.removeprefix("data: "))
                if passed is not None and len(found.texts) >= stop_at:
                    passed.put(found.head["x-kvmesh-worker"])
                    passed = None
        if passed is not None:
            passed.put("")  # a busy engine sends several tokens at a time
        return found


def take(found: Answered, data: str) -> None:
    if data == "[DONE]":
        found.done = True
        return
    event = json.loads(data)
    if "error" in event:
        found.error = json.dumps(event)
        return
    found.ids.add(event["id"])
    found.usage = event.get("usage") or found.usage
    for choice in event["choices"]:
        delta = choice.get("delta") or {}
        found.roles += "role" in delta
        found.texts.append(choice.get("text") or delta.get("content") or "")
        found.calls += delta.get("tool_calls") or []
        found.reason = choice["finish_reason"] or found.reason


@pytest.fixture(scope="module")
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    python = interpreter(request, VLLM)
    folder = tmp_path_factory.mktemp("streams")
    # Of bfloat16 the likeliest token hangs on who else is in the batch.
    config = {**QWEN3, "torch_dtype": "float32"}
    more = (
        *("--dtype", "float32", "--enable-auto-tool-choice"),
        *("--tool-call-parser", "hermes", "--seed", "0"),
    )
    with running_pair(python, folder, config, blocks=2048, more=more) as pair:
        yield Fleet(pair.engines, pair.client)


def port_of(engine: Engine) -> str:
    return engine.url.rpartition(":")[2]


def status_of(fleet: Fleet) -> list[bool]:
    workers = fleet.client.get("/v1/status").json()["workers"]
    return [one["usable"] for one in workers]


@pytest.mark.parametrize("name", EXACT)
def test_no_stream_of_an_exact_form_is_cut_or_changed(fleet: Fleet, name: str) -> None:
    form, cut, equal, number = EXACT[name], 0, 0, 0
    wrong: Counter[str] = Counter()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        while cut < CUTS:
            numbers = range(number, number + AT_ONCE)
            number += AT_ONCE
            calm = list(threads.map(lambda one: fleet.ask(one, form, None), numbers))
            assert all(one.done and not one.error for one in calm), calm
            passed: SimpleQueue[str] = SimpleQueue()
            leader = random.Random(number).choice(numbers)  # at its token its engine dies
            asked = [
                threads.submit(fleet.ask, one, form, passed if one == leader else None)
                for one in numbers
            ]
            if not (worker := passed.get(timeout=600)):
                continue
            victim = next(one for one in fleet.engines if port_of(one) in worker)
            victim.kill()
            port = port_of(victim)
            for one, before in zip(asked, calm, strict=True):
                after = one.result()
                if port not in after.head["x-kvmesh-worker"]:
                    continue
                assert after.head["x-kvmesh-resumable"] == "exact"
                cut += 1
                equal += after.said == before.said and len(after.ids) == 1
                if after.said != before.said:
                    wrong[f"{before.said} != {after.said}"[:2000]] += 1
            print(f"{name}: {equal} of {cut}", flush=True)  # noqa: T201
            victim.start()
            victim.wait()
            eventually(lambda: all(status_of(fleet)), "all are usable", within_s=60.0)
    print(f"{name}: {equal} of {cut} streams that were cut came out equal")  # noqa: T201
    assert equal == cut, wrong
