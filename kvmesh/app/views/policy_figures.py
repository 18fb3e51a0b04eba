"""Figures of a change of policy, as one replica follows it."""

from typing import Final

from kvmesh.app.views.figure import Figure, Table
from kvmesh.core.insight.rollout import Rollout


def _share(rollout: Rollout) -> float:
    return rollout.state.share if rollout.state is not None and rollout.arms is not None else 0.0


def _requests(rollout: Rollout) -> dict[str, float]:
    names = ("baseline", "candidate")
    sides = zip(names, rollout.seen({}), strict=True)
    return {name: sum(one.requests for one in windows) for name, windows in sides}


# How a figure is read, then what it is.
# fmt: off
POLICIES: Final = Table[Rollout](
    Figure("gauge", "kvmesh_policy_trial_share", _share,
           "Share of the time that a policy on trial gets, 0 while none is on trial."),
    Figure("gauge", "kvmesh_policy_trial_requests", _requests,
           "Requests of each arm that ended here and are compared; once the candidate has all"
           " requests, since then.", ("arm",)),
    Figure("counter", "kvmesh_policy_changes", lambda one: dict(one.counts),
           "Changes of policy that began here or were heard of (running), that were kept (done)"
           " and that were returned from.", ("phase",)),
    Figure("gauge", "kvmesh_policy_refused", lambda one: bool(one.refused),
           "1 while this replica cannot apply the policy of its siblings."),
)
