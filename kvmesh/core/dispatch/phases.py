"""How long a router takes to decide, by phase."""

from kvmesh._native import Histogram
from kvmesh.core.insight.histogram import MICROSECONDS


class Phases:
    """Seconds by phase: `tokenize` and `decide` of all requests; `hash`, `find` (in the index) and
    `score` (cost, choice, booking) of one decision in `EVERY`.
    """

    def __init__(self) -> None:
        self.tokenize = Histogram(MICROSECONDS)
        self.decide = Histogram(MICROSECONDS)
        self.hash = Histogram(MICROSECONDS)
        self.find = Histogram(MICROSECONDS)
        self.score = Histogram(MICROSECONDS)

    def named(self) -> tuple[tuple[str, Histogram], ...]:
        """Return every phase with its name."""
        return (
            ("tokenize", self.tokenize),
            ("decide", self.decide),
            ("hash", self.hash),
            ("find", self.find),
            ("score", self.score),
        )
