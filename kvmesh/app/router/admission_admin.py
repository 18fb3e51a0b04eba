"""`/admin/admission`: the bounds of admission, looked at and changed while the router runs."""

from contextlib import suppress
from typing import Final, get_args

import msgspec

from kvmesh.app.front.admin_guard import AdminGuard
from kvmesh.app.front.front import Routes, answer_json
from kvmesh.app.router.admission_share import AdmissionShare
from kvmesh.app.serve.admission import AdmissionLimits, AdmissionView
from kvmesh.bounds import UNREADABLE
from kvmesh.core.admission.queue import QueueFairness, QueuePolicy
from kvmesh.core.admission.shares import TenantShare
from kvmesh.errors import RequestError
from kvmesh.transport.http.server.exchange import Exchange

PATH = "/admin/admission"

MOST_TENANTS: Final = 64


class AdmissionAdmin:
    """Answers for one router. Its path is not under /v1/, so no meta-router forwards it."""

    def __init__(self, share: AdmissionShare, guard: AdminGuard) -> None:
        self._share = share
        self._guard = guard

    def mount(self, routes: Routes) -> None:
        """Serve the path."""
        routes.add("GET", PATH, self._show)
        routes.add("PUT", PATH, self._change)

    def _show(self, exchange: Exchange) -> None:
        gate = self._share.gate
        tenants: list[TenantShare] = []
        with suppress(RequestError):
            self._guard.check(exchange.request, PATH)
            tenants = gate.shares(MOST_TENANTS)
        view = AdmissionView(gate.limits, self._share.taken_by(), gate.statistics(), tenants)
        answer_json(exchange, view)

    def _change(self, exchange: Exchange) -> None:
        """Take any of the limits; those not named stay."""
        self._guard.check(exchange.request, PATH)
        self._share.change(changed(self._share.gate.limits, exchange.request.body))
        self._show(exchange)


def changed(limits: AdmissionLimits, body: bytes) -> AdmissionLimits:
    """Return `limits` with the fields of the JSON object `body`. Raises `RequestError`."""
    try:
        wishes = msgspec.json.decode(body, type=dict[str, int | float | str])
        merged = msgspec.convert(msgspec.to_builtins(limits) | wishes, AdmissionLimits)
    except UNREADABLE as error:
        known = msgspec.json.encode(limits).decode()
        policies = ", ".join(get_args(QueuePolicy))
        ways = ", ".join(get_args(QueueFairness))
        raise RequestError(
            f"{PATH}: {error}; send any of {known}; queue_policy is one of {policies},"
            f" queue_fairness of {ways}"
        ) from error
    if wrong := merged.wrong():
        raise RequestError(f"{PATH}: {wrong}")
    return merged
