"""How long a router takes to decide, by phase."""

import time
from typing import Final

from kvmesh.core.insight.histogram import MICROSECONDS, Histogram
from kvmesh.core.routing.decision import Decision, RouteRequest
from kvmesh.core.routing.scheduler import Scheduler

EVERY: Final = 32
"""Of so many decisions one is taken apart: that costs it a second look into the index."""


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
        self._decisions = 0

    def named(self) -> tuple[tuple[str, Histogram], ...]:
        """Return every phase with its name."""
        return (
            ("tokenize", self.tokenize),
            ("decide", self.decide),
            ("hash", self.hash),
            ("find", self.find),
            ("score", self.score),
        )

    def schedule(self, scheduler: Scheduler, request: RouteRequest, now: float) -> Decision:
        """Decide and book; see `Scheduler.schedule`."""
        self._decisions += 1
        if self._decisions % EVERY == 1:
            return self._schedule_apart(scheduler, request, now)
        began = time.perf_counter()
        decision = scheduler.schedule(request, now)
        self.decide.observe(time.perf_counter() - began)
        return decision

    def _schedule_apart(self, scheduler: Scheduler, request: RouteRequest, now: float) -> Decision:
        began = time.perf_counter()
        request.hashes.upto(len(request.hashes))
        hashed = time.perf_counter()
        scheduler.overlaps.find_groups(request.hashes, now)
        found = time.perf_counter()
        decision = scheduler.schedule(request, now)
        done = time.perf_counter()
        whole, finding = done - found, found - hashed
        self.hash.observe(hashed - began)
        self.find.observe(finding)
        # The decision looked into the index once more.
        self.score.observe(max(0.0, whole - finding))
        self.decide.observe(hashed - began + whole)
        return decision
