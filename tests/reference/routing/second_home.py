"""Naive model of `find_second_home` in kvmesh/native/decide/choose.c."""

from collections.abc import Sequence
from typing import Final

from kvmesh._native import WorkerState
from kvmesh.core.blocks.graded import key_count, key_depth
from tests.reference.routing.weighing import Weighing, shared_blocks

NEW_HOME: Final = 0.5
"""A worker that holds more than this share of what the best one does is a home already."""

REST: Final = 16.0
"""Its last prefill is so many times as long ago as this one takes: copies cost an idle worker a
sixteenth of its time at most, and a worker that is asked again and again makes none.
"""

DELAY: Final = 0.25
"""The one request that computes it waits longer for its first token by this share of a usual
request's stay at most.
"""


def find_second_home(
    best: WorkerState, states: Sequence[WorkerState], weighing: Weighing
) -> WorkerState:
    """Return the worker at rest that shall compute the request's prefix in place of `best`, the
    cheapest of `states`; `best` where there is none.

    Formulas weigh a request by itself, and alone it is always served sooner where its prefix is:
    an idle fleet behind one system prompt would work on as many workers as happened to be asked
    at once at first, for ever, each request slowed by those beside it. So where requests that are
    being served share all that `best` holds of this one, this one's prefill moves: nobody else
    waits at a worker at rest. What a session has of its own is shared with nobody.
    """
    overlap, speeds = weighing.overlaps.get(best.worker, 0), weighing.speeds
    whole = key_depth(key_count(overlap))
    if not whole or shared_blocks(best.loads.shared, weighing.keys, overlap) < whole:
        return best
    found, least_ms = best, DELAY * speeds.residence_ms(best.worker)
    for state in states:
        loads, held = state.loads, weighing.overlaps.get(state.worker, 0)
        if loads.active_requests or state.failure_share or held > NEW_HOME * overlap:
            continue
        tokens = (overlap - held) * weighing.block_size
        ms = speeds.fleet_ms_per_token * state.prefill.factor * tokens
        ms += state.prefill.slow_ms * weighing.answer_tokens
        if ms < least_ms and (weighing.now - loads.progress_s) * 1000.0 >= REST * ms:
            found, least_ms = state, ms
    return found
