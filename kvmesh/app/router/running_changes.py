"""What operators may change while a router runs: the bounds of admission, and the policy."""

from collections.abc import Callable
from functools import partial

from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.app.front.admin_guard import AdminGuard
from kvmesh.app.front.front import Routes
from kvmesh.app.router.admin import RouterAdmin
from kvmesh.app.router.admission_admin import AdmissionAdmin
from kvmesh.app.router.admission_share import AdmissionShare
from kvmesh.app.router.auto_tuner import make_tuner
from kvmesh.app.router.policy_admin import PolicyAdmin
from kvmesh.app.router.policy_share import PolicyShare
from kvmesh.app.router.router_options import check_model_policies
from kvmesh.app.router.simulated_trial import SimulatedTrial
from kvmesh.app.router.trace_page import TracePage
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.app.views.policy_figures import POLICIES
from kvmesh.app.views.policy_view import PolicyRow, TuningRow, view_policy
from kvmesh.app.views.router_view import RouterView, ViewedMesh
from kvmesh.app.views.traffic_watch import TrafficWatch
from kvmesh.settings.requests import AdmissionSettings
from kvmesh.settings.roles import RouterSettings


class RunningChanges:
    """Both, as one replica shares them with its `replicas`; a `tuner` changes the policy, too."""

    def __init__(
        self,
        context: RoutingContext,
        replicas: Callable[[], tuple[RouterHeartbeat, ...]],
        settings: RouterSettings,
    ) -> None:
        name, router = context.router_id, context.router
        fits = partial(check_model_policies, settings.model_policy)
        self.policies = PolicyShare(router, name, replicas, fits)
        self._admission = AdmissionShare(context.gate, router, name, replicas)
        self._bucket = context.bucket
        self.tuner = make_tuner(settings, context, self.policies.rollout, replicas)
        self._simulated = SimulatedTrial(
            context, self.policies, replicas, kv_events=settings.kv_events
        )

    def view_policy(self) -> PolicyRow:
        """Return the policy and its changes, for people."""
        return view_policy(self._bucket, self.policies.rollout, self.policies.siblings())

    def view(
        self,
        context: RoutingContext,
        mesh: ViewedMesh,
        admin: RouterAdmin,
        traffic: TrafficWatch,
    ) -> RouterView:
        """Return the replica as the dashboard sees it."""
        view = RouterView(context, mesh, admin.warnings, admin.sources, self.view_policy, traffic)
        view.tuning = self.view_tuning
        traffic.replicas = view.replica_states
        return view

    def view_tuning(self) -> list[TuningRow]:
        """Return what the tuner does, for people; nothing where there is none."""
        return [] if self.tuner is None else [self.tuner.view()]

    def mount(self, admin: RouterAdmin, routes: Routes, settings: AdmissionSettings) -> None:
        """Serve the paths that change something. Raises `ConfigError` for a bad token's file."""
        guard, policies = AdminGuard(settings), self.policies
        if self.tuner is not None:
            tuner = self.tuner
            admin.parts["tuning"] = tuner.view
            admin.warn(tuner.warnings)
            TracePage(tuner.ring, tuner.log, guard.check, self._bucket).mount(routes)
        admin.show(POLICIES.of(lambda: policies.rollout), policies.warnings)
        AdmissionAdmin(self._admission, guard).mount(routes)
        PolicyAdmin(policies, guard, self.view_policy).mount(routes)

    async def close(self) -> None:
        """End what is under way."""
        await self._simulated.close()

    def adopt(self) -> None:
        """Take what siblings were told, once a second."""
        self._admission.adopt()
        self._simulated.check()
        self.policies.adopt()
