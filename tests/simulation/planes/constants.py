"""Buffers, bounds and times of every actor: as the planes have them, or drawn from a seed."""

import random
from typing import Final

import msgspec

from kvmesh.core.journal.event_sender import SenderLimits
from kvmesh.core.journal.recovery import RecoveryOptions

SKEW_S: Final = 3 * 3600.0
DRIFT: Final = 0.02
"""Forty times as fast as NTP corrects a clock."""


class Constants(msgspec.Struct, frozen=True):
    """What production has as one number, here as a plane is run with. Times in seconds.

    `sweep_budget` to `mismatch_pause_s` are the indexer's, `every_messages` to `keep_s` the
    snapshotter's, `sync_events` to `state_pause_s` those of shared bookings. With `by_clock` an
    epoch is what the process's clock says, in place of a count of its lives.
    """

    sender: SenderLimits
    recovery: RecoveryOptions = RecoveryOptions()
    flush_s: float = 0.003
    sweep_budget: int = 4096
    check_s: float = 0.25
    retain_s: float = 60.0
    first_beats_s: float = 1.2
    mismatch_pause_s: float = 10.0
    every_messages: int = 20
    every_s: float = 0.5
    keep_s: float = 2.0
    sync_events: int = 4
    sync_bytes: int = 64 * 1024
    sync_flush_s: float = 0.005
    state_slice: int = 3
    state_pause_s: float = 0.5
    by_clock: bool = False


USUAL: Final = Constants(SenderLimits(flush_events=8, window=16, max_pending_events=64, ring_s=3.0))


def draw_constants(rng: random.Random) -> Constants:
    """Return constants, each drawn from few: 1, 10, what production has, and a tenth of it.

    A bound of 1 shows what is wrong where a buffer is full, and one of 10 where it is full at
    times; each of them is a legal setting, or was one number among others when it was chosen.
    Source: FoundationDB's knobs, which its simulation draws ("buggified").
    """
    sender = SenderLimits(
        flush_events=rng.choice((1, 10, 64)),
        window=rng.choice((1, 10, 256)),
        deadline_s=rng.choice((0.1, 1.0, 3.0)),
        ring_s=rng.choice((0.1, 1.0, 10.0)),
        max_pending_events=rng.choice((1, 10, 64, 16_384)),
        resync_pause_s=rng.choice((0.1, 1.0, 10.0)),
    )
    recovery = RecoveryOptions(
        grace_s=rng.choice((0.1, 0.3, 1.0)),
        behind_s=rng.choice((0.1, 1.0, 10.0)),
        repeat_s=rng.choice((0.2, 2.0, 10.0)),
        degraded_s=rng.choice((1.0, 5.0, 10.0)),
        outdated_s=rng.choice((1.0, 5.0, 10.0)),
    )
    return Constants(
        sender,
        recovery,
        flush_s=rng.choice((0.0, 0.003, 0.1)),
        sweep_budget=rng.choice((1, 10, 4096)),
        check_s=rng.choice((0.05, 0.25, 1.0)),
        retain_s=rng.choice((1.0, 10.0, 60.0)),
        first_beats_s=rng.choice((0.1, 1.2, 10.0)),
        mismatch_pause_s=rng.choice((1.0, 10.0)),
        every_messages=rng.choice((1, 10, 100_000)),
        every_s=rng.choice((0.1, 1.0, 10.0)),
        keep_s=rng.choice((0.1, 1.0, 10.0)),
        sync_events=rng.choice((1, 10, 1024)),
        sync_bytes=rng.choice((1, 1024, 64 * 1024)),
        sync_flush_s=rng.choice((0.0, 0.005, 0.1)),
        state_slice=rng.choice((1, 10, 128)),
        state_pause_s=rng.choice((0.1, 0.5, 1.0)),
        by_clock=True,
    )
