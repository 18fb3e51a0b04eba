"""Whose requests a client may see: pages and answers ask here what to leave out."""

from kvmesh._native import Names
from kvmesh.core.admission.access import ROLES_HEADER, Viewer, forwarded_roles, tenant_of
from kvmesh.settings.roles import MetaRouterSettings, RouterSettings
from kvmesh.transport.http.forward.plan import Booked, ForwardPlan
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.headers import Headers

_ORACLES = frozenset(
    {
        b"x-kvmesh-overlap-blocks",
        b"x-kvmesh-fetch-from",
        b"x-kvmesh-prefill-worker",
        b"x-kvmesh-whole",
    }
)
"""Whether a prompt is split, or part of it fetched, depends on how much of it is cached, too."""


class Viewers:
    """Reads the viewer from the headers that this front door, or one before it, set.

    `checked`: this front door asks for keys, so that its word on roles is no client's. `apart`:
    tenants share no cached block; then a tenant's header makes a viewer of who has no key, too.
    """

    def __init__(self, tenant_header: str, *, apart: bool = False, checked: bool = False) -> None:
        self._tenant = tenant_header.lower().encode()
        self._tenants = Names((self._tenant,), b"")
        self.apart = apart
        self._checked = checked

    def of(self, request: Request) -> Viewer | None:
        """Return who may see its own tenant's alone; None: all may be seen. Raises `RequestError`.

        Without keys that is whoever names no tenant: who runs it, beside the gateway.
        """
        roles = request.header(ROLES_HEADER)
        if roles is None or "operate" in forwarded_roles(roles):
            limited = self.apart and not self._checked
            if not (limited and request.header(self._tenant) is not None):
                return None
        tenants = request.head.select(self._tenants)
        return Viewer(tenant_of(tenants, self._tenant), self.apart)

    def hides(self, request: Request) -> bool:
        """Return whether an answer must show its client nothing of others' prompts. Raises
        `RequestError`.
        """
        roles = request.header(ROLES_HEADER)
        if self.apart or roles is None or "operate" in forwarded_roles(roles):
            return False
        return self._checked or self.of(request) is not None


class RedactedPlan:
    """A plan whose answers do not show how much of a prompt was cached."""

    __slots__ = (
        "_plan", "go_on", "lose", "next_target", "on_attempt_failed", "on_finish", "on_tokens",
    )  # fmt: skip

    def __init__(self, plan: ForwardPlan) -> None:
        self._plan = plan
        self.next_target = plan.next_target
        self.on_attempt_failed = plan.on_attempt_failed
        self.on_tokens = plan.on_tokens
        self.on_finish = plan.on_finish
        self.go_on = getattr(plan, "go_on", None)
        self.lose = getattr(plan, "lose", None)

    @property
    def cached_tokens(self) -> int | None:
        """Return nothing: what is cached is not this client's to know."""
        return None

    def booked(self) -> str:
        """Return the id of the present attempt's booking, "" for none."""
        return self._plan.booked() if isinstance(self._plan, Booked) else ""

    def note_prefill(self) -> None:
        """Tell the plan that its prefill is over."""
        if isinstance(self._plan, Booked):
            self._plan.note_prefill()

    def on_head(self, status: int) -> Headers:
        """Return the headers of the decision without those that show the cache."""
        return [one for one in self._plan.on_head(status) if one[0] not in _ORACLES]


def viewers_of(settings: RouterSettings | MetaRouterSettings, tenant_header: str) -> Viewers:
    """Return what says whose requests a client of a front door may see."""
    checked = settings.http.api_keys is not None
    return Viewers(
        tenant_header, apart=settings.tenant.tenant_secret_file is not None, checked=checked
    )
