"""Ten agents over two real vLLM whose caches hold about half of them, with and without turns.

Each agent plays sessions one after the other; each turn is the prompt before and more, sent a
moment after the answer. Nobody says which turn is the last. Without turns each agent evicts the
others; with turns those that fit keep their caches through pauses. Both are played in turn, over
empty caches and a new router.
"""

import json
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Final

import httpx
import msgspec
import pytest

from tests.engines.engine import VLLM_BLOCK_SIZE, Engine, vllm_engine
from tests.engines.processes import eventually, free_ports, kvmesh
from tests.engines.reuse.timing_probe import cached_tokens
from tests.engines.tiny_model import QWEN3, VOCABULARY, write_tiny_model

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

ROUNDS: Final = 3
ENGINES: Final = 2
AGENTS: Final = 10
SESSIONS: Final = 2
"""Of each agent, one after the other."""

TURNS: Final = (6, 14)
FIRST_TOKENS: Final = (900, 1300)
MORE_TOKENS: Final = (30, 90)
"""At least and at most, drawn for each session and turn."""

CONTEXT_TOKENS: Final = 3072
CACHE_BLOCKS: Final = 112
"""3,584 tokens, of which vLLM keeps a block for itself: two or three agents fit an engine."""

PAUSES_S: Final = (0.0, 0.6)
ANSWER_TOKENS: Final = 8

LARGER: Final = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "head_dim": 64,
    "max_position_embeddings": CONTEXT_TOKENS,
}
"""So large that computing a context again takes longer than an agent pauses."""


class Turn(msgspec.Struct, frozen=True):
    """One answered turn: its place in its session, tokens of its prompt, those reused; when it was
    sent, and how long its first token and its end took, s.
    """

    session: str
    number: int
    prompt: int
    cached: int
    sent_s: float
    ttft_s: float
    took_s: float


class Played(msgspec.Struct, frozen=True):
    """What came of all agents together."""

    turns: list[Turn]

    def figures(self) -> dict[str, float]:
        spans: dict[str, tuple[float, float]] = {}
        for turn in self.turns:
            first_s, last_s = spans.get(turn.session, (turn.sent_s, turn.sent_s))
            end_s = turn.sent_s + turn.took_s
            spans[turn.session] = min(first_s, turn.sent_s), max(last_s, end_s)
        ttft = quantiles([turn.ttft_s for turn in self.turns], n=100, method="inclusive")
        return {
            "session mean, s": fmean(last_s - first_s for first_s, last_s in spans.values()),
            "TTFT p50, s": ttft[49],
            "TTFT p90, s": ttft[89],
            "TTFT p99, s": ttft[98],
            "longest TTFT, s": max(turn.ttft_s for turn in self.turns),
            "prompt tokens reused, %": 100.0 * self.reused(),
            "tokens computed": sum(turn.prompt - turn.cached for turn in self.turns),
            "all done, s": max(last_s for _, last_s in spans.values())
            - min(first_s for first_s, _ in spans.values()),
        }

    def reused(self) -> float:
        prompts = sum(turn.prompt for turn in self.turns)
        return sum(turn.cached for turn in self.turns) / prompts


@pytest.fixture(scope="module")
def engines(vllm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    directory = tmp_path_factory.mktemp("programs")
    model = write_tiny_model(directory / "model")
    (model / "config.json").write_text(json.dumps({**QWEN3, **LARGER}), encoding="utf-8")
    more = ("--max-model-len", str(CONTEXT_TOKENS))
    made: list[Engine] = []
    try:
        for number in range(ENGINES):
            port, events, replay = free_ports(3)
            log = directory / f"engine{number}.log"
            ports = (port, events, replay)
            made.append(vllm_engine(vllm, model, ports, log, blocks=CACHE_BLOCKS, more=more))
            made[-1].start()
        for engine in made:
            engine.wait()
        yield made
    finally:
        for engine in made:
            engine.stop()


def play(engines: Sequence[Engine], log: Path, seed: int, *flags: str) -> Played:
    """Play all agents of a seed through a router of its own, over empty caches."""
    for engine in engines:
        cleared = httpx.post(f"{engine.url}/reset_prefix_cache", timeout=30.0)
        assert cleared.status_code == 200
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    workers = [f"--worker=w{number}={engine.url}" for number, engine in enumerate(engines)]
    router = kvmesh("router", "--http-port", str(port), *workers, *flags, log=log)
    router.start()
    try:
        eventually(partial(trusts, url), f"{url} trusts the engines' events", within_s=60.0)
        with ThreadPoolExecutor(AGENTS) as agents:
            played = [agents.submit(be_agent, url, f"{seed}-{one}") for one in range(AGENTS)]
            return Played([turn for one in played for turn in one.result()])
    finally:
        router.stop()


def trusts(url: str) -> bool:
    workers = httpx.get(f"{url}/v1/status", timeout=2.0).json()["workers"]
    return [one["trust"] for one in workers] == ["exact"] * ENGINES


def be_agent(url: str, name: str) -> list[Turn]:
    """Play an agent's sessions, as Claude Code names them; the first begins within a second."""
    rng = random.Random(name)
    pause(rng.random())
    with httpx.Client(timeout=600.0) as client:
        sessions = (play_session(client, url, f"{name}-{one}") for one in range(SESSIONS))
        return [turn for session in sessions for turn in session]


def play_session(client: httpx.Client, url: str, name: str) -> list[Turn]:
    rng = random.Random(name)
    count = rng.randint(*TURNS)
    prompt = words(rng, FIRST_TOKENS)
    turns: list[Turn] = []
    for number in range(count):
        if number:
            pause(rng.uniform(*PAUSES_S))
            prompt += words(rng, MORE_TOKENS)
        turns.append(take_turn(client, url, name, number, prompt))
    return turns


def take_turn(client: httpx.Client, url: str, name: str, number: int, prompt: list[int]) -> Turn:
    body = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": ANSWER_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"x-claude-code-session-id": name}
    sent_s = time.monotonic()
    first_s, cached = 0.0, 0
    with client.stream("POST", f"{url}/v1/completions", json=body, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            first_s = first_s or time.monotonic() - sent_s
            event = json.loads(line.removeprefix("data: "))
            if event.get("usage"):
                cached = cached_tokens(event)
    took_s = time.monotonic() - sent_s
    return Turn(name, number, len(prompt), cached, sent_s, first_s, took_s)


def words(rng: random.Random, count: tuple[int, int]) -> list[int]:
    return [rng.randrange(300, VOCABULARY - 50) for _ in range(rng.randint(*count))]


def pause(seconds: float) -> None:
    """Let time go by, as an agent does that runs a tool: part of the load, no wait for anything."""
    until_s = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= until_s, "the tool is done", within_s=seconds + 60.0)


def ratio(with_turns: Sequence[Played], without: Sequence[Played], figure: str) -> list[float]:
    """Return what each round with turns took of the same round without, the least first."""
    pairs = zip(with_turns, without, strict=True)
    return sorted(one.figures()[figure] / other.figures()[figure] for one, other in pairs)


def test_governed_agents_keep_the_caches_that_others_lose(
    engines: list[Engine], tmp_path: Path
) -> None:
    played: dict[str, list[Played]] = {"off": [], "on": []}
    for number in range(ROUNDS):
        for turns in sorted(played, reverse=bool(number % 2)):
            log = tmp_path / f"{turns}-{number}.log"
            played[turns].append(play(engines, log, number, "--program-turns", turns))

    without, turns_on = played["off"], played["on"]
    lines = ["| | turns off | on | on / off, each round |", "|---|---|---|---|"]
    for figure in without[0].figures():
        off, on = (median(one.figures()[figure] for one in runs) for runs in (without, turns_on))
        rounds = ", ".join(f"{one:.2f}" for one in ratio(turns_on, without, figure))
        lines.append(f"| {figure} | {off:,.2f} | {on:,.2f} | {rounds} |")
    print(  # noqa: T201 - the figures are the point
        f"\n{AGENTS} agents, {SESSIONS} sessions each, {ENGINES} caches of "
        f"{CACHE_BLOCKS * VLLM_BLOCK_SIZE:,} tokens",
        *lines,
        sep="\n",
    )
    assert len(without[0].turns) == len(turns_on[0].turns)
    assert max(one.reused() for one in without) < 0.4
    # What a machine that does other things, too, still shows: its figures are in
    # docs/measured/programs-cost.md.
    assert min(one.reused() for one in turns_on) > 0.5
    assert median(ratio(turns_on, without, "session mean, s")) < 0.9
