"""A booking in the model and in the compiled core."""

from kvmesh._native import Booking
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.loads import MOST_TOKENS
from tests.reference.workers import loads as model

W = WorkerId("w")


def make_bookings(
    name: str, tokens: int, uncached: int, keys: int, *, streams: bool
) -> tuple[model.Booking, Booking]:
    """Return a booking as the model has it, and as the compiled core does."""
    tokens, uncached = min(tokens, MOST_TOKENS), min(uncached, tokens, MOST_TOKENS)
    needs = (tokens, uncached, uncached, 0.0, 0.0, 0.0, streams, tuple(range(keys)), None)
    blocks = (tokens // 7, uncached // 5)
    return model.Booking(name, W, "", *needs, *blocks), Booking(name, W, "", *needs, *blocks)
