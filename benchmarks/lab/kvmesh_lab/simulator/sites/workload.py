"""Conversations of clients near several sites: how many, how long, and what they share."""

import random
from collections.abc import Sequence
from math import exp
from typing import Final

import msgspec
import xxhash

from kvmesh.core.blocks.events import HASH_BYTES
from kvmesh.core.buckets.beginnings import DEPTHS, Beginning
from kvmesh.core.buckets.spill import CHARS_PER_TOKEN
from kvmesh.core.sites.sites import SiteRequest
from kvmesh_lab.simulator.fleet.request import FleetRequest
from kvmesh_lab.traces.trace import TraceRequest

BLOCK: Final = 16
MOST_TURNS: Final = 12
SHARED: Final = 0.5
"""So many conversations begin with one of the system prompts."""


class Load(msgspec.Struct, frozen=True):
    """Conversations a second that begin near each site; the other figures are means. Half of the
    conversations begin with one of `programs` system prompts, by Zipf's law; sites share them.
    """

    rates: Sequence[float]
    seconds: float = 240.0
    turns: float = 5.0
    pause_s: float = 8.0
    programs: int = 24
    system_tokens: int = 2500
    turn_tokens: float = 600.0
    output_tokens: float = 160.0


class Turn(msgspec.Struct, frozen=True):
    """One turn: its request, the site of its client, its pause before, and what a meta-router sees
    of it.
    """

    request: FleetRequest
    home: int
    pause_s: float
    asked: SiteRequest


def site_request(
    request: FleetRequest, block_size: int, marks: Sequence[Beginning], ends: Sequence[int]
) -> SiteRequest:
    """Return what a meta-router sees of a request: the beginnings of usual lengths beside `marks`,
    and the ends of its earlier turns behind its own.
    """
    hashes = request.hashes
    found = list(marks)
    for chars in DEPTHS:
        blocks = chars // (block_size * CHARS_PER_TOKEN)
        if 0 < blocks <= len(hashes):
            found.append(beginning(hashes, blocks, block_size))
    found.sort(key=lambda one: one.chars)
    chars = request.trace.input_tokens * CHARS_PER_TOKEN
    return SiteRequest("m", chars, tuple(found), tuple(ends))


def beginning(hashes: Sequence[int], blocks: int, block_size: int) -> Beginning:
    """Return the beginning of so many blocks."""
    return Beginning(blocks * block_size * CHARS_PER_TOKEN, hashes[blocks - 1])


class Conversation(msgspec.Struct, frozen=True):
    """Turns, each sent its pause after the one before has ended; the first at `begins_s`."""

    begins_s: float
    turns: Sequence[Turn]


def make_conversations(load: Load, seed: int) -> list[Conversation]:
    """Return the conversations of a load, in the order in which they begin."""
    rng = random.Random(seed)  # noqa: S311  a simulation, not a secret
    weights = [1.0 / (rank + 1) for rank in range(load.programs)]
    found: list[Conversation] = []
    number = 0
    for home, rate in enumerate(load.rates):
        now = 0.0
        while rate and (now := now + rng.expovariate(rate)) < load.seconds:
            program = rng.choices(range(load.programs), weights)[0] if rng.random() < SHARED else -1
            one = _conversation(load, rng, home, now, (program, number))
            number += len(one.turns)
            found.append(one)
    return sorted(found, key=lambda one: one.begins_s)


def _conversation(
    load: Load, rng: random.Random, home: int, begins_s: float, names: tuple[int, int]
) -> Conversation:
    program, number = names
    system = load.system_tokens // BLOCK if program >= 0 else 20
    hashes: list[int] = []
    _grow(hashes, f"p{program}" if program >= 0 else f"s{number}", system)
    marks = [beginning(hashes, system, BLOCK)]
    turns: list[Turn] = []
    ends: list[int] = []
    count = min(MOST_TURNS, 1 + int(rng.expovariate(1.0 / (load.turns - 1.0))))
    for turn in range(count):
        blocks = max(1, int(rng.lognormvariate(0.0, 0.8) * load.turn_tokens / exp(0.32)) // BLOCK)
        _grow(hashes, f"c{number}/{turn}", blocks)
        ends.insert(0, hashes[-1])
        if not turn:
            marks.append(beginning(hashes, len(hashes), BLOCK))
        output = max(8, int(rng.expovariate(1.0 / load.output_tokens)))
        trace = TraceRequest(number + turn, 0.0, len(hashes) * BLOCK + 8, output, ())
        request = FleetRequest(trace, list(hashes), is_first=True)
        pause_s = rng.expovariate(1.0 / load.pause_s)
        turns.append(Turn(request, home, pause_s, site_request(request, BLOCK, marks, ends)))
        _grow(hashes, f"a{number}/{turn}", output // BLOCK)
    return Conversation(begins_s, turns)


def _grow(hashes: list[int], name: str, blocks: int) -> None:
    parent = hashes[-1] if hashes else 0
    for block in range(blocks):
        content = f"{name}/{block}".encode()
        parent = xxhash.xxh3_64_intdigest(parent.to_bytes(HASH_BYTES, "little") + content)
        hashes.append(parent)
