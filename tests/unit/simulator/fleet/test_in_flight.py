"""Many requests in flight at one engine: what was predicted against what it found."""

import random

import xxhash

from kvmesh.core.blocks.events import HASH_BYTES, ROOT
from kvmesh.core.routing.decision import Decision, RouterOptions
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import FleetRequest
from kvmesh_lab.traces.trace import TraceRequest

SIZE, IN_FLIGHT, REQUESTS = 16, 16, 400


def follow(hashes: list[int], words: list[str]) -> list[int]:
    """Return a prompt's hashes with one more for each word."""
    grown = list(hashes)
    for word in words:
        parent = grown[-1] if grown else ROOT
        content = parent.to_bytes(HASH_BYTES, "little") + word.encode()
        grown.append(xxhash.xxh3_64_intdigest(content))
    return grown


def conversations(seed: int) -> tuple[FleetRequest, ...]:
    """Return turns of chats over ten shared beginnings; each waits for the 16th before it."""
    rng = random.Random(seed)
    systems = [
        follow([], [f"s{one}/{n}" for n in range(rng.randrange(4, 20))]) for one in range(10)
    ]
    chats: list[list[int]] = []
    made: list[FleetRequest] = []
    for place in range(REQUESTS):
        new = not chats or rng.random() < 0.4
        chat = rng.choice(systems) if new else rng.choice(chats[-48:])
        hashes = follow(chat, [f"u{place}/{n}" for n in range(rng.randrange(1, 8))])
        chats.append(hashes)
        tokens = len(hashes) * SIZE + rng.randrange(SIZE)
        trace = TraceRequest(place, 0.0, tokens, rng.randrange(4, 64), (), delay_ms=0.0)
        after = place + IN_FLIGHT
        made.append(
            FleetRequest(trace, hashes, place < IN_FLIGHT, (after,) if after < REQUESTS else ())
        )
    return tuple(made)


def play(seed: int, cache: float) -> list[tuple[RequestOutcome, Decision]]:
    """Return each outcome with its decision, at a cache of so many times what is in flight."""
    requests = conversations(seed)
    tokens = sum(one.trace.input_tokens + one.trace.output_tokens for one in requests)
    blocks = int(cache * IN_FLIGHT * tokens / REQUESTS / SIZE)
    engine = EngineOptions(block_size=SIZE, num_gpu_blocks=blocks, timing=PROFILES["linear"])
    options = FleetOptions(engines=1, engine=engine)
    fleet = SimulatedFleet(options, RouterOptions(block_size=SIZE), requests, random.Random(seed))
    decided: dict[str, Decision] = {}
    fleet.routers[0].decided = lambda one: decided.update({one.request_id: one})
    return [(one, decided[str(one.index)]) for one in fleet.run()]


def test_of_sixteen_in_flight_nearly_all_are_right_where_the_cache_holds_twice_as_much() -> None:
    played = [one for seed in range(2) for one in play(seed, 2.0)]

    right = [
        abs((decision.overlap_blocks or 0) - outcome.cached_tokens // SIZE) <= 1
        for outcome, decision in played
    ]
    assert sum(right) / len(right) >= 0.95
    assert sum(outcome.cached_tokens > 0 for outcome, _ in played) > REQUESTS


def test_the_share_of_an_overlap_that_is_lost_is_the_share_that_was_doubted() -> None:
    doubted = lost = overlap = 0.0
    for seed in range(2):
        for outcome, decision in play(seed, 0.75):
            if decision.chosen.lost_tokens:
                found = outcome.cached_tokens // SIZE
                overlap += decision.overlap_blocks
                lost += max(0, decision.overlap_blocks - found)
                doubted += decision.chosen.lost_tokens / SIZE

    assert overlap > 0
    assert abs(lost - doubted) / overlap < 0.15
