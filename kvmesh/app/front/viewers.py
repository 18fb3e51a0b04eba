"""Whose requests a client may see: pages and answers ask here what to leave out."""

from kvmesh._native import Names
from kvmesh.core.admission.access import ROLES_HEADER, Viewer, forwarded_roles, tenant_of
from kvmesh.errors import RequestError
from kvmesh.settings.roles import MetaRouterSettings, RouterSettings
from kvmesh.transport.http.server.request import Request


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

    def refuse_tenants(self, request: Request) -> None:
        """Raise `RequestError` 403 for a tenant that is kept apart: the path tells of all."""
        if self.apart and self.of(request) is not None:
            raise RequestError(
                f"{request.path:.80} tells of all tenants, which are kept apart "
                "(--tenant-secret-file): ask with a key of role operate, or in the name of none",
                status=403,
            )

    def hides(self, request: Request) -> bool:
        """Return whether an answer must show its client nothing of others' prompts. Raises
        `RequestError`.
        """
        roles = request.header(ROLES_HEADER)
        if self.apart or roles is None or "operate" in forwarded_roles(roles):
            return False
        return self._checked or self.of(request) is not None


def viewers_of(settings: RouterSettings | MetaRouterSettings, tenant_header: str) -> Viewers:
    """Return what says whose requests a client of a front door may see."""
    checked = settings.http.api_keys is not None
    return Viewers(
        tenant_header, apart=settings.tenant.tenant_secret_file is not None, checked=checked
    )
