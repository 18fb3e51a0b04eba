"""How long a router takes to decide, by phase."""

from kvmesh._native import Histogram
from kvmesh.core.insight.histogram import MICROSECONDS


class Phases:
    """Seconds by phase: `tokenize` and `decide` of all requests; `hash`, `find` (in the index) and
    `score` (cost, choice, booking) of one in 32 of those that are decided as they were scanned.
    """

    def __init__(self) -> None:
        self.tokenize = Histogram(MICROSECONDS)
        self.decide = Histogram(MICROSECONDS)
        self.hash = Histogram(MICROSECONDS)
        self.find = Histogram(MICROSECONDS)
        self.score = Histogram(MICROSECONDS)

    def of_decisions(self) -> tuple[Histogram, Histogram, Histogram, Histogram]:
        """Return those that the compiled core observes: hash, find, score and decide."""
        return self.hash, self.find, self.score, self.decide

    def named(self) -> tuple[tuple[str, Histogram], ...]:
        """Return every phase with its name."""
        return (
            ("tokenize", self.tokenize),
            ("decide", self.decide),
            ("hash", self.hash),
            ("find", self.find),
            ("score", self.score),
        )
