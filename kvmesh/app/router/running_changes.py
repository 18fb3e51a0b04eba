"""What operators may change while a router runs: the bounds of admission, and the policy."""

from functools import partial

from kvmesh.app.front.admin_guard import AdminGuard
from kvmesh.app.front.ports import Ports
from kvmesh.app.mesh.router_mesh import MeshPart
from kvmesh.app.router.admin import RouterAdmin
from kvmesh.app.router.admission_admin import AdmissionAdmin
from kvmesh.app.router.admission_share import AdmissionShare
from kvmesh.app.router.auto_tuner import make_tuner
from kvmesh.app.router.draining import Draining
from kvmesh.app.router.policy_admin import PolicyAdmin
from kvmesh.app.router.policy_share import PolicyShare
from kvmesh.app.router.router_options import check_model_policies
from kvmesh.app.router.simulated_trial import SimulatedTrial
from kvmesh.app.router.trace_page import TracePage
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.app.views.policy_figures import POLICIES
from kvmesh.app.views.policy_view import PolicyRow, TuningRow, view_policy
from kvmesh.app.views.router_view import RouterView
from kvmesh.app.views.settings_page import SettingsPage
from kvmesh.app.views.traffic_watch import TrafficWatch
from kvmesh.settings.roles import RouterSettings


class RunningChanges:
    """Both, as one replica shares them with its `replicas`; a `tuner` changes the policy, too."""

    def __init__(
        self,
        context: RoutingContext,
        mesh: MeshPart,
        settings: RouterSettings,
    ) -> None:
        name, router, replicas = context.router_id, context.router, mesh.replicas
        self._context, self._mesh, self._settings = context, mesh, settings
        fits = partial(check_model_policies, settings.model_policy)
        self.policies = PolicyShare(router, name, replicas, fits)
        self._admission = AdmissionShare(context.gate, router, name, replicas)
        self._limits, self._spec = context.gate.limits, str(self.policies.rollout.spec)
        self._bucket = context.bucket
        self.tuner = make_tuner(settings, context, self.policies.rollout, replicas)
        self._simulated = SimulatedTrial(
            context, self.policies, replicas, kv_events=settings.kv_events
        )

    def view_policy(self) -> PolicyRow:
        """Return the policy and its changes, for people."""
        return view_policy(self._bucket, self.policies.rollout, self.policies.siblings())

    def view(self, admin: RouterAdmin, traffic: TrafficWatch) -> RouterView:
        """Return the replica as the dashboard sees it."""
        context, mesh = self._context, self._mesh
        view = RouterView(context, mesh, admin.warnings, admin.sources, self.view_policy, traffic)
        view.tuning = self.view_tuning
        traffic.replicas, traffic.siblings = view.replica_states, mesh.replicas
        return view

    def view_tuning(self) -> list[TuningRow]:
        """Return what the tuner does, for people; nothing where there is none."""
        return [] if self.tuner is None else [self.tuner.view()]

    def mount(self, admin: RouterAdmin, ports: Ports) -> None:
        """Serve the paths that change something. Raises `ConfigError` for a bad token's file."""
        guard, policies, routes = AdminGuard(self._settings.admission), self.policies, ports.admin
        if self.tuner is not None:
            tuner = self.tuner
            admin.parts["tuning"] = tuner.view
            admin.warn(tuner.warnings)
            TracePage(tuner.ring, tuner.log, guard.check, self._bucket).mount(routes)
        admin.show(POLICIES.of(lambda: policies.rollout), policies.warnings)
        AdmissionAdmin(self._admission, guard).mount(routes)
        PolicyAdmin(policies, guard, self.view_policy).mount(routes)
        for door in ports.operated():
            checked = self._settings.http.api_keys is not None and ports.asks_for_keys(door)
            draining = Draining(self._context, self._mesh.drain, None if checked else guard)
            draining.mount(door)
            self._settings_page(admin).mount(door)

    def _settings_page(self, admin: RouterAdmin) -> SettingsPage:
        name, viewers = self._context.router_id, admin.viewers
        return SettingsPage(name, "router", self._settings, self._running, viewers)

    def _running(self) -> dict[str, object]:
        """Return what operators changed since the start, by names of settings."""
        limits, before = self._context.gate.limits, self._limits
        now = {one: getattr(limits, one) for one in limits.__struct_fields__}
        running = {one: value for one, value in now.items() if value != getattr(before, one)}
        spec = str(self.policies.rollout.spec)
        return running if spec == self._spec else running | {"kv_cost": spec}

    async def close(self) -> None:
        """End what is under way."""
        await self._simulated.close()

    def adopt(self) -> None:
        """Take what siblings were told, once a second."""
        self._admission.adopt()
        self._simulated.check()
        self.policies.adopt()
