"""How long a router takes to decide, by phase."""

from kvmesh.core.insight.histogram import MICROSECONDS, Histogram, new_histogram


class Phases:
    """Seconds by phase: `tokenize` and `decide` of all requests; `hash`, `find` (in the index) and
    `score` (cost, choice, booking) of one decision in `EVERY`.
    """

    def __init__(self) -> None:
        self.tokenize = new_histogram(MICROSECONDS)
        self.decide = new_histogram(MICROSECONDS)
        self.hash = new_histogram(MICROSECONDS)
        self.find = new_histogram(MICROSECONDS)
        self.score = new_histogram(MICROSECONDS)

    def named(self) -> tuple[tuple[str, Histogram], ...]:
        """Return every phase with its name."""
        return (
            ("tokenize", self.tokenize),
            ("decide", self.decide),
            ("hash", self.hash),
            ("find", self.find),
            ("score", self.score),
        )
