"""What requests are decided by, compiled: a mode, a formula with its weights, a temperature."""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import astuple

from kvmesh.compiled import Native
from kvmesh.core.blocks.hashing import NO_HASHES
from kvmesh.core.cost.catalogue import Pricing
from kvmesh.core.cost.quick import native_formula
from kvmesh.core.cost.selection import choose_softmax
from kvmesh.core.dispatch.inputs import Maker
from kvmesh.core.dispatch.wishes import Wishes
from kvmesh.core.rollout.arms import Arm
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.scheduler import Scheduler

MOST_COURSES: Final = 64
"""Policies of requests that are kept compiled; beyond it all are made anew."""

NO_WISHES: Final = Wishes()

MODES: Final = frozenset({"kv", "round-robin", "random", "least-loaded", "power-of-two"})
"""Those that the compiled core chooses by."""


class Course(NamedTuple):
    """What requests are decided by, compiled: by what workers cost (`priced`), and if it `draws` by
    chance, too. `kept` is the same for a request of a session at its worker.
    """

    native: object
    looks: bool
    priced: bool
    draws: bool
    pricing: Pricing
    is_kept: bool = False
    only: "Course | None" = None

    @property
    def kept(self) -> "Course":
        """Return what decides where there is one worker."""
        return self.only or self


class Courses:
    """The courses that requests have wished for under what a scheduler follows now."""

    def __init__(self, native: Native, scheduler: Scheduler) -> None:
        self._native = native
        self._scheduler = scheduler
        self._known: dict[object, Course] = {}

    def clear(self) -> None:
        """Forget all: something else is followed."""
        self._known.clear()

    def of(self, wishes: Wishes, arm: Arm | None = None) -> Course | None:
        """Return what a request is decided by, one of an `arm` by its policy; None for what is not
        compiled. Raises `RequestError` for a formula or a weight that there is not.
        """
        wished = wishes.mode, wishes.cost, wishes.temperature, wishes.overlap_score_weight
        asked = (wished, None if arm is None else arm.name)
        found = self._known.get(asked)
        if found is None and (found := self._make(wishes, arm)) is not None:
            if len(self._known) >= MOST_COURSES:
                self._known.clear()
            self._known[asked] = found
        return found

    def _make(self, wishes: Wishes, arm: Arm | None) -> Course | None:
        scheduler, options = self._scheduler, self._scheduler.options
        mode, temperature = wishes.mode or options.mode, wishes.temperature
        weight = wishes.overlap_score_weight
        pricing = scheduler.policy if arm is None else arm.policy
        if wishes.cost is not None or weight is not None:
            asked = RouteRequest("", NO_HASHES, 0, cost=wishes.cost, overlap_score_weight=weight)
            pricing = scheduler.pricing(asked)
        cost = pricing.cost
        formula = native_formula(self._native, cost)
        if formula is None or mode not in MODES:
            return None
        if temperature is None:
            temperature = options.temperature
        draw: Callable[[list[float]], int] | None = None
        if mode == "kv" and temperature > 0.0:
            draw = partial(choose_softmax, temperature=temperature, rng=scheduler.rng)
        looks = "kv" in (mode, options.mode)
        policy = cost.name if mode == "kv" else mode

        def made(*, kept: bool) -> object:
            maker = Maker(pricing, kept=kept).make
            weights = astuple(pricing.weights)
            return self._native.Course(
                mode, looks, formula, weights, cost.margin, policy, maker, draw
            )

        priced, draws = mode == "kv", draw is not None
        kept = Course(made(kept=True), looks, priced, False, pricing, is_kept=True)
        return Course(made(kept=False), looks, priced, draws, pricing, only=kept)
