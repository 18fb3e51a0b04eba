"""Which policy is on trial now: all requests of a window are of one arm."""

from math import inf
from typing import Literal

from kvmesh.core.cost.arm_tally import Counter
from kvmesh.core.cost.catalogue import Pricing

ArmName = Literal["baseline", "candidate"]


class Arm:
    """One of two policies, and what became of its requests in one window. It takes `left` more."""

    __slots__ = ("counter", "header", "left", "name", "policy")

    def __init__(self, name: ArmName, policy: Pricing, counter: Counter, left: float = inf) -> None:
        self.name: ArmName = name
        self.header = name.encode()
        self.policy = policy
        self.counter = counter
        self.left = left


class Arms:
    """The two policies of a change in one of its windows, in which `now` counts requests.

    Both arms use all workers, so they take turns in time: side by side the one would hide the
    queues that the other makes. Where `now` is None, or takes no more, requests go by the baseline
    and are not compared.
    """

    def __init__(
        self,
        baseline: Pricing,
        candidate: Pricing,
        name: ArmName,
        counter: Counter,
        left: float = inf,
    ) -> None:
        self.candidate = candidate
        self._arm = Arm(name, candidate if name == "candidate" else baseline, counter, left)
        self.now: Arm | None = None if name == "baseline" else self._arm

    def settled(self) -> None:
        """Compare the baseline's requests from now on: what the candidate left behind is gone."""
        self.now = self._arm

    def find(self) -> Arm | None:
        """Return the arm of a request that is decided now, None for one that is not compared."""
        arm = self.now
        return arm if arm is not None and arm.left > 0 else None
