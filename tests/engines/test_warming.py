"""A second real engine joins: a router has it compute what is shared before it serves."""

import contextlib
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final, NamedTuple

import httpx
import pytest

from tests.engines.processes import Process, eventually, free_ports, kvmesh
from tests.engines.reuse.kinds import KINDS, Kind
from tests.engines.stack import Plan, plan_of
from tests.engines.tiny_model import VOCABULARY
from tests.engines.traffic import read_usage

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

SHARED_TOKENS: Final = 384
OWN_TOKENS: Final = 48
QUESTIONS: Final = 40
WARMED: Final = "kvmesh_warmed_tokens_total "
SHARE: Final = 0.5
"""So few tokens are computed here that 3 % of them would be no prompt."""


@pytest.fixture(params=["vllm", "sglang"])
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Plan]:
    """Run two engines of a kind."""
    venv: str = request.param
    python: Path = request.getfixturevalue(venv)
    kind: Kind = next(one for one in KINDS.values() if one.venv.engine == venv)
    made = plan_of(kind, python, tmp_path)
    try:
        for engine in made.engines.values():
            engine.start()
        for engine in made.engines.values():
            engine.wait()
        yield made
    finally:
        for engine in made.engines.values():
            engine.stop()


class Answered(NamedTuple):
    """One answer: tokens of the prompt, those that were foretold to be reused, and those reused."""

    worker: str
    trust: str
    tokens: int
    foretold: int
    reused: int


class Asked:
    """Questions behind one shared beginning, and what a router and engines say of them."""

    def __init__(self, url: str, block_size: int) -> None:
        self.client = httpx.Client(base_url=url, timeout=60.0)
        self.made: list[Answered] = []
        self._rng = random.Random(1)
        self._shared = self._words(SHARED_TOKENS)
        self._block_size = block_size

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Ask one question after the other as long as the block lasts."""
        over = Event()

        def ask_on() -> None:
            while not over.wait(0.05):
                self.ask()

        with ThreadPoolExecutor(1) as askers:
            asking = askers.submit(ask_on)
            try:
                eventually(lambda: len(self.made) >= QUESTIONS, "they ask", within_s=60.0)
                yield
            finally:
                over.set()
            asking.result()

    def ask(self, worker: str = "") -> None:
        """Ask one question, and note what came of it."""
        prompt = [*self._shared, *self._words(OWN_TOKENS)]
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 1}
        headers = {"x-kvmesh-worker-id": worker} if worker else {}
        answer = self.client.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        foretold = int(answer.headers["x-kvmesh-overlap-blocks"]) * self._block_size
        tokens, reused = read_usage(answer.json()["usage"])
        told = answer.headers
        self.made.append(
            Answered(told["x-kvmesh-worker"], told["x-kvmesh-trust"], tokens, foretold, reused)
        )

    def workers(self) -> dict[str, Any]:
        rows = self.client.get("/v1/status").json()["workers"]
        return {one["worker"]: one for one in rows}

    def usable(self, *names: str) -> bool:
        found = self.workers()
        return all(
            name in found and found[name]["usable"] and found[name]["trust"] == "exact"
            for name in names
        )

    def warmed(self) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        return next(float(one.split()[1]) for one in lines if one.startswith(WARMED))

    def _words(self, count: int) -> list[int]:
        return [self._rng.randrange(300, VOCABULARY - 50) for _ in range(count)]


@pytest.fixture
def router(plan: Plan, tmp_path: Path) -> Iterator[Asked]:
    [port] = free_ports(1)
    file = tmp_path / "workers.txt"
    file.write_text(f"first={next(iter(plan.engines.values())).url}\n")
    flags = ("--http-port", str(port), "--discover", f"file:{file}", "--warm-share", str(SHARE))
    process: Process = kvmesh("router", *flags, *plan.options(), log=tmp_path / "router.log")
    process.start()
    asked = Asked(f"http://127.0.0.1:{port}", plan.block_size)
    try:
        eventually(partial(asked.usable, "first"), "the first is trusted", within_s=60.0)
        yield asked
    finally:
        asked.client.close()
        process.stop()


def test_the_first_request_of_a_newcomer_is_a_hit(
    plan: Plan, router: Asked, tmp_path: Path
) -> None:
    first, late = (one.url for one in plan.engines.values())
    with router.asking():
        (tmp_path / "workers.txt").write_text(f"first={first}\nlate={late}\n")
        eventually(partial(router.usable, "first", "late"), "the newcomer serves", within_s=30.0)
        router.ask("late")

    there = [one for one in router.made if one.worker == "late"]
    computed = sum(one.tokens - one.reused for one in router.made)
    assert {(one.trust, one.foretold, one.reused) for one in there} == {
        ("exact", SHARED_TOKENS, SHARED_TOKENS)
    }
    assert SHARED_TOKENS <= router.warmed() <= SHARE * computed
