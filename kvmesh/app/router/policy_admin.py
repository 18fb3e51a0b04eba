"""`/admin/policy`: the formula and weights of a bucket, looked at and changed while it serves."""

from collections.abc import Callable

import msgspec

from kvmesh.app.front.admin_guard import AdminGuard
from kvmesh.app.front.front import Routes, answer_json
from kvmesh.app.router.policy_share import PolicyShare
from kvmesh.app.views.policy_view import PolicyRow, PolicyView, PolicyWish
from kvmesh.bounds import UNREADABLE
from kvmesh.core.cost.weights import weights_of
from kvmesh.core.insight.policy_change import Bounds, PolicyChange
from kvmesh.core.insight.policy_spec import PolicySpec
from kvmesh.errors import RequestError
from kvmesh.transport.http.server.exchange import Exchange

PATH = "/admin/policy"
GIVEN_UP = "asked for at " + PATH


class PolicyAdmin:
    """Answers for one router. Its path is not under /v1/, so no meta-router forwards it."""

    def __init__(
        self,
        share: PolicyShare,
        guard: AdminGuard,
        view: Callable[[], PolicyRow],
    ) -> None:
        self._share = share
        self._guard = guard
        self._view = view

    def mount(self, routes: Routes) -> None:
        """Serve the path."""
        routes.add("GET", PATH, self._show)
        routes.add("PUT", PATH, self._change)
        routes.add("DELETE", PATH, self._return)

    def _show(self, exchange: Exchange) -> None:
        share, rollout = self._share, self._share.rollout
        view = PolicyView(
            mode=share.options.mode,
            formula=rollout.spec.formula,
            weights=weights_of(rollout.policy.weights),
            formulas={one.name: one.weights.specs for one in share.options.formulas.costs.values()},
            replicas=share.taken_by(),
            change=rollout.state.change if rollout.state is not None else None,
            trial=self._view(),
        )
        answer_json(exchange, view)

    def _change(self, exchange: Exchange) -> None:
        """Begin a change, or return from one."""
        self._guard.check(exchange.request, PATH)
        self._take(exchange, read_wish(exchange.request.body))

    def _return(self, exchange: Exchange) -> None:
        """Return from the last change."""
        self._guard.check(exchange.request, PATH)
        self._take(exchange, None)

    def _take(self, exchange: Exchange, change: PolicyChange | None) -> None:
        try:
            if change is not None:
                self._share.change(change)
            else:
                self._share.give_up(GIVEN_UP)
        except RequestError as error:
            raise RequestError(f"{PATH}: {error}", status=error.status) from error
        self._show(exchange)


def read_wish(body: bytes) -> PolicyChange | None:
    """Return the change that a PUT asks for, None for a return. Raises `RequestError`."""
    try:
        wish = msgspec.json.decode(body, type=PolicyWish)
    except UNREADABLE as error:
        fields = ", ".join(PolicyWish.__struct_encode_fields__)
        within = ", ".join(Bounds.__struct_fields__)
        raise RequestError(
            f"{PATH}: {error}; send a JSON object of {fields}; bounds are {within}"
        ) from error
    if wish.give_up:
        if wish != PolicyWish(give_up=True):
            raise RequestError(f'{PATH}: {{"return": true}} takes no other field; leave them out')
        return None
    if not wish.formula:
        raise RequestError(f"{PATH}: formula is missing; GET {PATH} lists those there are")
    return PolicyChange(
        policy=PolicySpec(wish.formula, wish.weights),
        at_once=wish.at_once,
        min_requests=wish.min_requests,
        bounds=Bounds(*msgspec.structs.astuple(wish.bounds)),
        window_s=wish.window_s,
        max_s=wish.max_s,
    )
