"""The policy changed at one replica is taken by all of its bucket, in windows.

Changes travel with the heartbeats, so a lost message costs a second, and a replica that starts
later takes what is in force. When the whole bucket stops they are forgotten: settings are for good.
"""

import time
from collections.abc import Callable

import msgspec

from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.actors.router import Router
from kvmesh.core.insight.policy_change import PolicyChange
from kvmesh.core.insight.policy_spec import PolicySpec
from kvmesh.core.insight.rollout import CONFLICT, Rollout
from kvmesh.core.insight.rollout_state import PolicyUpdate, RolloutState
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.errors import ConfigError, RequestError
from kvmesh.observe import get_logger


class PolicyShare:
    """Changes the scheduler's policy here, and as the siblings' heartbeats tell.

    `change` begins, `rollout.state` tells where it stands: `running`, then `done` or `returned`.
    """

    def __init__(
        self,
        router: Router,
        router_id: str,
        replicas: Callable[[], tuple[RouterHeartbeat, ...]],
        fits: Callable[[RouterOptions], None] = lambda _: None,
    ) -> None:
        """`fits` raises `ConfigError` for options that other settings of the router contradict."""
        scheduler = router.scheduler
        self.options = scheduler.options
        self.rollout = Rollout(router_id, scheduler.policy, self.options.formulas)
        self._router = router
        self._router_id = router_id
        self._replicas = replicas
        self._fits = fits
        self._publish()

    def siblings(self) -> dict[str, PolicyUpdate]:
        """Return what the other live replicas of the bucket say, by their names."""
        return {
            one.router: one.policy
            for one in self._replicas()
            if one.router != self._router_id and one.decides
        }

    def taken_by(self) -> list[str]:
        """Return the replicas that go, or within some seconds will go, by the same policy."""
        return sorted({self._router_id, *self.siblings()})

    def change(self, change: PolicyChange) -> RolloutState:
        """Begin a change here, and publish it to the siblings.

        Raises `RequestError`: 400 for what cannot be, 409 where another is on trial, a sibling does
        not know the formula, or the router goes by no formula.
        """
        mode = self.options.mode
        if mode != "kv":
            raise RequestError(
                f"this router's mode is {mode}, which goes by no formula: start the bucket with"
                " --router-mode kv",
                status=CONFLICT,
            )
        if not change.wrong():
            self._check_fit(change.policy)
        state = self.rollout.begin(change, time.time(), self.siblings())
        self._moved(state)
        return state

    def _check_fit(self, policy: PolicySpec) -> None:
        options = self.options
        try:
            policy.find(options.formulas)
            self._fits(
                msgspec.structs.replace(
                    options,
                    cost=policy.formula,
                    weights=policy.weights,
                    overlap_score_weight=None,
                )
            )
        except ConfigError as error:
            raise RequestError(str(error)) from error

    def give_up(self, reason: str) -> RolloutState:
        """Return to the baseline of the last change, at all replicas.

        Raises `RequestError` 409 where there is none to return from.
        """
        state = self.rollout.give_up(time.time(), reason)
        self._moved(state)
        return state

    def adopt(self) -> None:
        """Do what is due each second: follow the siblings, and move the change on."""
        rollout, siblings, refused = self.rollout, self.siblings(), self.rollout.refused
        if (received := rollout.adopt(siblings)) is not None:
            self._moved(received)
        if rollout.refused and rollout.refused != refused:
            get_logger().error("a sibling's policy refused", reason=rollout.refused)
            self._router.scheduler.follow(rollout.policy, rollout.arms)
        if (moved := rollout.decide(time.time(), siblings)) is not None:
            self._moved(moved)
        self._publish()

    def warnings(self) -> tuple[str, ...]:
        """Return that this replica cannot go by the policy of its siblings, and why."""
        refused = self.rollout.refused
        if not refused:
            return ()
        return (f"policy: {refused}; start this replica with the siblings' files and version",)

    def _moved(self, state: RolloutState) -> None:
        rollout, last = self.rollout, state.steps[-1]
        self._router.scheduler.follow(rollout.policy, rollout.arms)
        self._publish()
        log = get_logger()
        turns = state.phase == "running" and state.stage not in (0, state.whole)
        write = log.warning if state.phase == "returned" else log.debug if turns else log.info
        write(
            "policy changes",
            phase=state.phase,
            candidate=str(state.change.policy),
            baseline=str(state.baseline),
            share=last.share,
            window=state.stage + 1,
            by=last.by,
            reason=last.reason,
        )

    def _publish(self) -> None:
        self._router.policy = self.rollout.updates()
