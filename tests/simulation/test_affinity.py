"""Noisy machines and an idle fleet: a prompt goes where its beginning is cached."""

import random

import pytest

from kvmesh.core.blocks.events import ROOT, Stored, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler

NAMES = tuple(WorkerId(f"w{number}") for number in range(4))
BLOCKS = 24
PREFIXES = 200
STEP_MS, MS_PER_TOKEN = 16.5, 0.0152
"""A prefill of all 24 blocks costs 6 ms beside a step's 16.5 ms."""


class Machine:
    """Engines of equal speed on a machine others use too: some are slow for some prompts on end."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self._slowed = dict.fromkeys(NAMES, 0.0)
        self.index = KvIndex()
        self.start()

    def start(self) -> None:
        """Start the router: it knows the caches, and nothing of the engines."""
        membership = Membership()
        for name in NAMES:
            membership.add(name, self.now)
        self.router = Scheduler(
            RouterOptions(),
            self.rng,
            membership=membership,
            sequences=new_sequences(16),
            index=self.index,
            routed=new_approx(),
        )

    def ask(self, number: int, turn: int) -> WorkerId:
        """Send the prompt `number` with a question of its own; return where it went."""
        shared = [number * 1000 + 1 + block for block in range(BLOCKS)]
        hashes = BlockHashes.of([*shared, number * 1000 + 500 + turn], 16)
        request = RouteRequest(f"{turn}-{number}", hashes, (BLOCKS + 1) * 16 + 7)
        decision = self.router.schedule(request, self.now).record.decision
        worker = decision.worker
        self._slowed[worker] = 0.8 * self._slowed[worker] + self.rng.expovariate(4.0)
        uncached = request.prompt_tokens - decision.overlap_blocks * 16
        prefill_ms = (STEP_MS + MS_PER_TOKEN * uncached) * (1.0 + self._slowed[worker])
        self.now += prefill_ms / 1000.0
        self.router.first_token(request.request_id, self.now)
        self.router.finish(request.request_id, self.now)
        self.index.apply(worker, Stored(ROOT, pack_hashes(hashes.upto(BLOCKS + 1))))
        self.now += 10.0
        return worker


@pytest.mark.parametrize("seed", range(3))
def test_noise_never_outweighs_a_cached_prefix(seed: int) -> None:
    machine = Machine(seed)
    holders = [machine.ask(number, 0) for number in range(PREFIXES)]

    through_it = [machine.ask(number, 1) for number in range(PREFIXES)]
    machine.start()
    after_restart = [machine.ask(number, 2) for number in range(PREFIXES)]

    assert {*holders} == {*NAMES}
    assert through_it == holders
    assert after_restart == holders
