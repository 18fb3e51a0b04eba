"""Who may ask for which path: the roles of keys, and what one tenant may see."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, get_args

import msgspec

from kvmesh.core.admission.paths import ROWS, Role, rows_at
from kvmesh.errors import RequestError

ROLES: Final[tuple[Role, ...]] = get_args(Role)
DEFAULT_ROLES: Final[tuple[Role, ...]] = ("infer", "view")
"""Of keys in files that were written before there were roles."""

ROLES_HEADER: Final = b"x-kvmesh-roles"
"""What a front door that asked for a key tells the next hop of it; only ever takes away."""

KEY_HEADER: Final = b"x-kvmesh-key"
"""What a front door that asked for a key tells the next hop of its name, for accounts alone."""

RESIDENCY_HEADER: Final = b"x-kvmesh-residency"
"""Sites, commas between them, at which alone a request may be served; only ever takes away."""

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"
SESSION: Final = "/session"
LOGIN_PATHS: Final = frozenset({LOGIN, LOGOUT, SESSION})
"""Where a browser's user shows a key once, gives that up, or learns whether it is so."""

OPEN_PATHS: Final = frozenset({"/health", "/ready"}) | LOGIN_PATHS
"""Paths that need no key: balancers ask them, or who has yet to show one."""

PATHS: Final[Mapping[str, Role]] = {
    **{
        row.path: row.role
        for row in ROWS
        if row.role and row.role != "operate" and "{}" not in row.path
    },
    **dict.fromkeys(
        (
            "/dashboard",
            "/v1/bucket",
            "/v1/decisions",
            "/v1/events",
            "/v1/overview",
            "/v1/programs",
            "/v1/route",
            "/v1/status",
            "/v1/usage",
        ),
        "view",
    ),
    **dict.fromkeys(
        (
            "/admin/admission",
            "/admin/drain",
            "/admin/policy",
            "/admin/settings",
            "/admin/trace",
            "/metrics",
        ),
        "operate",
    ),
}
"""What each path asks for. A path that stands neither here nor below asks for `operate`: it may be
one by which an engine is changed (`/v1/load_lora_adapter`), or read across tenants (`/v1/files`).
"""

BELOW: Final[Mapping[str, Role]] = {
    "/dashboard/": "view",
    "/v1/decisions/": "view",
    "/v1/models/": "infer",
    "/v1/streams/": "infer",
}
"""The same of all paths that begin so."""


class Viewer(msgspec.Struct, frozen=True):
    """One who may see what is its `tenant`'s. `apart`: tenants share no cached block, so that the
    overlap of its requests tells of its own alone.
    """

    tenant: str
    apart: bool = False


def role_for(path: str) -> Role | None:
    """Return the role that `path` asks for, None where it needs no key."""
    if path in OPEN_PATHS:
        return None
    found = PATHS.get(path)
    if found is not None:
        return found
    for start, role in BELOW.items():
        if path.startswith(start):
            return role
    rows = rows_at(path)
    return rows[0].role if rows else "operate"


def check_role(path: str, roles: tuple[Role, ...]) -> None:
    """Raise `RequestError` 403 where none of `roles` may have `path`; `operate` may everything."""
    wanted = role_for(path)
    if wanted is None or wanted in roles or "operate" in roles:
        return
    words = ", ".join(roles) or "nothing"
    raise RequestError(
        f"{path:.80} asks for a key that may {wanted}, this one may {words}: use "
        f"another, or make one: kvmesh api-key NAME --role {wanted}",
        status=403,
    )


def tenant_of(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    """Return the tenant, or the sites, that the header `name` tells, "" without one.

    Raises `RequestError` for two of them: who reads the first and who the last would differ.
    """
    values = [value for one, value in headers if one == name]
    if len(values) > 1:
        raise RequestError(f"{len(values)} headers {name.decode('latin-1')}: send one")
    return values[0].decode("latin-1").strip() if values else ""


@lru_cache(64)
def forwarded_roles(value: bytes, at_most: tuple[Role, ...] = ROLES) -> tuple[Role, ...]:
    """Return those of `at_most` that a `ROLES_HEADER` names; words that are none count nothing."""
    words = value.decode("latin-1").replace(",", " ").split()
    return tuple(role for role in at_most if role in words)
