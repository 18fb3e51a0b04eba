"""Agents over a real vLLM whose cache is too small for all of them, with and without turns.

Each agent sends its next turn, the prompt before and more, a moment after it has its answer.
Without turns each evicts the others; with turns those that fit keep their caches through pauses.
"""

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import msgspec
import pytest

from tests.engines.engine import VLLM_BLOCK_SIZE, Engine, vllm_engine
from tests.engines.processes import eventually, free_ports, kvmesh
from tests.engines.reuse.timing_probe import cached_tokens
from tests.engines.tiny_model import QWEN3, VOCABULARY, write_tiny_model

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

AGENTS: Final = 8
TURNS: Final = 5
FIRST_TOKENS: Final = 1200
MORE_TOKENS: Final = 64
CONTEXT_TOKENS: Final = 2048
CACHE_BLOCKS: Final = 140
"""4,480 tokens, of which vLLM keeps a block for itself: three agents fit, eight do not."""

PAUSE_S: Final = 0.3
ANSWER_TOKENS: Final = 8

LARGER: Final = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "head_dim": 64,
    "max_position_embeddings": CONTEXT_TOKENS,
}
"""So large that computing a context again takes longer than an agent pauses."""


class Turn(msgspec.Struct, frozen=True):
    """One answered turn: its place in its session, tokens of its prompt, those reused, its time."""

    number: int
    prompt: int
    cached: int
    took_s: float


class Played(msgspec.Struct, frozen=True):
    """What came of all agents together."""

    turns: list[Turn]
    all_done_s: float

    def computed(self) -> int:
        return sum(turn.prompt - turn.cached for turn in self.turns)

    def kept_share(self) -> float:
        """Return what share of their context agents found again, after the first turn."""
        later = [turn for turn in self.turns if turn.number]
        return sum(turn.cached for turn in later) / sum(turn.prompt - MORE_TOKENS for turn in later)

    def row(self, name: str) -> str:
        longest_s = max(turn.took_s for turn in self.turns)
        return (
            f"| {name} | {self.kept_share():.0%} | {self.computed():,} | {self.all_done_s:.1f} "
            f"| {longest_s:.1f} |"
        )


@pytest.fixture(scope="module")
def engine(vllm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    directory = tmp_path_factory.mktemp("programs")
    model = write_tiny_model(directory / "model")
    (model / "config.json").write_text(json.dumps({**QWEN3, **LARGER}), encoding="utf-8")
    port, events, replay = free_ports(3)
    made = vllm_engine(
        vllm,
        model,
        (port, events, replay),
        directory / "engine.log",
        blocks=CACHE_BLOCKS,
        more=("--max-model-len", str(CONTEXT_TOKENS)),
    )
    made.start()
    made.wait()
    yield made
    made.stop()


def play(engine: Engine, directory: Path, name: str, *flags: str) -> Played:
    """Play all agents through a router of its own, over an empty cache."""
    assert httpx.post(f"{engine.url}/reset_prefix_cache", timeout=30.0).status_code == 200
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    arguments = ("--http-port", str(port), "--worker", f"w0={engine.url}", "--parity-sample", "0")
    router = kvmesh("router", *arguments, *flags, log=directory / f"{name}.log")
    router.start()
    try:
        eventually(partial(trusts, url), f"{url} trusts the engine's events", within_s=60.0)
        began_s = time.monotonic()
        with ThreadPoolExecutor(AGENTS) as agents:
            played = [agents.submit(be_agent, url, f"{name}-{one}") for one in range(AGENTS)]
            turns = [turn for one in played for turn in one.result()]
        return Played(turns, time.monotonic() - began_s)
    finally:
        router.stop()


def trusts(url: str) -> bool:
    workers = httpx.get(f"{url}/v1/status", timeout=2.0).json()["workers"]
    return [one["trust"] for one in workers] == ["exact"]


def be_agent(url: str, name: str) -> list[Turn]:
    """Play one session as Claude Code names it, each turn a pause after the answer before; the
    last says that it is.
    """
    rng = random.Random(name)
    prompt = [rng.randrange(300, VOCABULARY - 50) for _ in range(FIRST_TOKENS)]
    turns: list[Turn] = []
    with httpx.Client(timeout=300.0) as client:
        for number in range(TURNS):
            body = {
                "model": "tiny",
                "prompt": prompt,
                "max_tokens": ANSWER_TOKENS,
                "ignore_eos": True,
            }
            headers = {"x-claude-code-session-id": name}
            if number == TURNS - 1:
                headers["x-kvmesh-program-final"] = "1"
            sent_s = time.monotonic()
            answer = client.post(f"{url}/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            took_s = time.monotonic() - sent_s
            turns.append(Turn(number, len(prompt), cached_tokens(answer.json()), took_s))
            prompt += [rng.randrange(300, VOCABULARY - 50) for _ in range(MORE_TOKENS)]
            if number < TURNS - 1:
                # A pause of the load, not a wait for anything.
                pause(PAUSE_S)
    return turns


def pause(seconds: float) -> None:
    """Let time go by, as an agent does that runs a tool."""
    until_s = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= until_s, "the tool is done", within_s=seconds + 60.0)


def test_governed_agents_keep_the_caches_that_others_lose(engine: Engine, tmp_path: Path) -> None:
    without = play(engine, tmp_path, "without", "--program-turns", "off")
    turns = play(engine, tmp_path, "turns", "--program-turns", "on")

    print(  # noqa: T201 - the figures are the point
        f"\n{AGENTS} agents, {TURNS} turns of {FIRST_TOKENS} to "
        f"{FIRST_TOKENS + (TURNS - 1) * MORE_TOKENS} tokens, "
        f"cache of {CACHE_BLOCKS * VLLM_BLOCK_SIZE:,}\n"
        "| turns | context kept | tokens computed | all done, s | longest turn, s |\n"
        f"|---|---|---|---|---|\n{without.row('off')}\n{turns.row('on')}"
    )
    assert len(without.turns) == len(turns.turns) == AGENTS * TURNS
    assert without.kept_share() < 0.4
    # 0.66 to 0.79, and 0.39 to 0.48, on a machine that did other things, too: a pause that lasts
    # because of them outlives its reservation.
    assert turns.kept_share() > 0.5
    assert turns.computed() < 0.65 * without.computed()
