"""Figures of a change of policy, as one replica follows it."""

from typing import Final

from kvmesh.app.views.figure import Figure, Table
from kvmesh.core.insight.rollout import Rollout


def _share(rollout: Rollout) -> float:
    return rollout.state.share if rollout.state is not None and rollout.arms is not None else 0.0


def _requests(rollout: Rollout) -> dict[str, float]:
    report = rollout.report()
    if report is None:
        return {"baseline": 0.0, "candidate": 0.0}
    return {"baseline": report.baseline.requests, "candidate": report.candidate.requests}


# How a figure is read, then what it is.
# fmt: off
POLICIES: Final = Table[Rollout](
    Figure("gauge", "kvmesh_policy_trial_share", _share,
           "Share of the requests that a policy on trial gets, 0 while none is on trial."),
    Figure("gauge", "kvmesh_policy_trial_requests", _requests,
           "Requests of each arm that ended here in the present stage of a trial.", ("arm",)),
    Figure("counter", "kvmesh_policy_changes", lambda one: dict(one.counts),
           "Changes of policy that began here or were heard of (running), that were kept (done)"
           " and that were returned from.", ("phase",)),
    Figure("gauge", "kvmesh_policy_refused", lambda one: bool(one.refused),
           "1 while this replica cannot apply the policy of its siblings."),
)
