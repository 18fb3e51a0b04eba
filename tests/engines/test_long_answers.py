"""Real vLLM whose answers take long: none is lost, whatever others took; one that hangs is found.

The engine's core is stopped by signals while its API server answers on: health checks and metrics
are those of an engine that compiles, is slow, or hangs.
"""

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import msgspec
import pytest

from benchmarks.faults.cells import Load
from tests.engines.conftest import interpreter
from tests.engines.engine import Engine
from tests.engines.engine_venv import VLLM
from tests.engines.pair import running_pair
from tests.engines.reuse.alone import RouterAlone
from tests.engines.tiny_model import QWEN3

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

LONGEST = 4096
CONTEXT = 8192
BLOCKS = 8192
RUN_S = 0.02
FOUND_S = 10.0


class Fleet(msgspec.Struct):
    engines: Sequence[Engine]
    router: RouterAlone
    client: httpx.Client

    def ask(self, number: int, tokens: int) -> tuple[str, float]:
        """Return what became of a whole answer of so many tokens, and how long it took."""
        began = time.monotonic()
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": f"story {number} of many"}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        try:
            answer = self.client.post("/v1/chat/completions", json=body)
        except httpx.HTTPError as error:
            return repr(error), time.monotonic() - began
        took_s = time.monotonic() - began
        if answer.status_code != 200:
            return f"{answer.status_code}: {answer.text[:200]}", took_s
        counted = answer.json()["usage"]["completion_tokens"]
        return ("whole" if counted == tokens else f"{counted} tokens of {tokens}"), took_s

    def ask_many(self, count: int, longest: int, in_flight: int) -> tuple[Counter[str], float]:
        """Ask for answers of 1 to `longest` tokens, even by their logarithm; the longest time."""
        load = Load("", count, in_flight, longest=longest)
        sizes = [load.tokens(number) or 1 for number in range(count)]
        with ThreadPoolExecutor(in_flight) as threads:
            found = list(threads.map(self.ask, range(count), sizes))
        return Counter(what for what, _ in found), max(took_s for _, took_s in found)

    def signal(self, engine: int, number: signal.Signals) -> None:
        for one in cores_of(self.engines[engine]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, number)

    def stop(self, *engines: int) -> None:
        for one in engines:
            self.signal(one, signal.SIGSTOP)

    def go_on(self, *engines: int) -> None:
        for one in engines:
            self.signal(one, signal.SIGCONT)

    @contextlib.contextmanager
    def slowed(self, times: float) -> Iterator[None]:
        """Have all engines run for a part of the time only."""
        over = threading.Event()

        def slow() -> None:
            while not over.wait(RUN_S):
                self.stop(0, 1)
                over.wait(RUN_S * (times - 1))
                self.go_on(0, 1)

        thread = threading.Thread(target=slow)
        if times > 1:
            thread.start()
        yield
        over.set()
        if times > 1:
            thread.join()


def cores_of(engine: Engine) -> list[int]:
    """Return the processes that compute for an API server, of its group."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            if os.getpgid(pid) == engine.process.pid and pid != engine.process.pid:
                name = (entry / "cmdline").read_bytes() + (entry / "comm").read_bytes()
                if b"EngineCor" in name:
                    found.append(pid)
    return found


@pytest.fixture(scope="module")
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    python = interpreter(request, VLLM)
    folder = tmp_path_factory.mktemp("long")
    config = {**QWEN3, "max_position_embeddings": CONTEXT}
    more = ("--max-model-len", str(CONTEXT))
    with running_pair(python, folder, config, blocks=BLOCKS, more=more) as pair:
        yield Fleet(pair.engines, pair.router, pair.client)


def test_first_calls_may_pause_for_a_minute(fleet: Fleet) -> None:
    assert cores_of(fleet.engines[0])
    fleet.stop(0, 1)
    with ThreadPoolExecutor(1) as waiting:
        asked = waiting.submit(fleet.ask_many, 40, 64, 40)
        time.sleep(60.0)
        fleet.go_on(0, 1)
        became, longest_s = asked.result()

    assert became == {"whole": 40}
    assert longest_s > 60.0


@pytest.mark.parametrize(
    ("slowdown", "count", "longest"), [(1.0, 1000, LONGEST), (5.0, 200, 1024), (20.0, 80, 512)]
)
def test_long_whole_answers_after_short_ones_are_not_lost(
    fleet: Fleet, slowdown: float, count: int, longest: int
) -> None:
    short, _ = fleet.ask_many(24, 5, 8)
    with fleet.slowed(slowdown):
        became, longest_s = fleet.ask_many(count, longest, 64)

    print(f"{slowdown:g} x slower: {dict(became)}, the longest took {longest_s:.0f} s")  # noqa: T201
    assert short == {"whole": 24}
    assert became == {"whole": count}


def test_an_engine_that_hangs_is_found_and_loses_nothing(fleet: Fleet) -> None:
    fleet.ask_many(24, 16, 8)
    with ThreadPoolExecutor(1) as waiting:
        asked = waiting.submit(fleet.ask_many, 16, 64, 16)
        fleet.stop(0)
        became, longest_s = asked.result()
    fleet.go_on(0)

    print(f"a hang: {dict(became)}, the longest took {longest_s:.1f} s")  # noqa: T201
    assert became == {"whole": 16}
    assert longest_s < FOUND_S + 5.0
