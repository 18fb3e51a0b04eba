"""Tenants kept apart: a request's body with the router's `cache_salt` in place of the client's."""

from pathlib import Path
from typing import Final

import msgspec

from kvmesh.bounds import UNREADABLE
from kvmesh.core.admission.access import tenant_of
from kvmesh.core.admission.tenant_salt import Sharing, TenantSalts, parse_sharing
from kvmesh.core.chat.inference import Parsed
from kvmesh.core.engines.registry import ENGINES
from kvmesh.errors import ConfigError, RequestError
from kvmesh.settings.requests import TenantSettings
from kvmesh.settings.secret_file import SHORTEST_HASH_SECRET, read_secret
from kvmesh.transport.http.server.request import Request

_KINDS: Final = tuple(ENGINES.values())

REFUSED_FIELDS: Final = frozenset(name for one in _KINDS for name in one.foreign_fields)
"""Fields by which a client names what an engine keeps of other requests: blocks to fetch, a session
or an answer to go on from. Engines do not ask whose it is.
"""

_OWN: Final = tuple(dict.fromkeys(name for one in _KINDS for name in one.salt_fields))
_SALT: Final = "cache_salt"
_NESTED: Final = tuple(name for one in _KINDS for name in one.nested_fields)
_NULL: Final = b"null"
_ABSENT: Final = msgspec.Raw(b"")
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Isolation:
    """Salts requests. `header` names the one that tells their tenant; "" is a tenant, too."""

    def __init__(self, salts: TenantSalts, header: str) -> None:
        self.salts = salts
        self._header = header.lower().encode()

    def apply(self, request: Request, parsed: Parsed) -> tuple[Parsed, bytes]:
        """Return what routing is to read of a request, and the body that its engine is to get.

        May run in a thread. Raises `RequestError`.
        """
        salt, body = self.salted(request)
        return msgspec.structs.replace(parsed, cache_salt=salt, extra_key=_ABSENT), body

    def salted(self, request: Request) -> tuple[str, bytes]:
        """Return a request's salt, and the body that its engine is to get.

        In that each field stands once, so that no engine can read another than was read here; the
        values are the client's, byte for byte. May run in a thread. Raises `RequestError`.
        """
        tenant = tenant_of(request.headers, self._header)
        try:
            fields = _fields.decode(request.body)
        except UNREADABLE as error:
            raise RequestError(f"the body is not a JSON object: {error}") from error
        refuse_foreign(fields)
        own = [bytes(fields.pop(name, b"")) for name in _OWN]
        if any(one not in {b"", _NULL} for one in own):
            # As text: one salt written in two ways is one salt.
            salt = self.salts.salt(tenant, b"\0".join(map(_plain, own)))
        elif self.salts.is_public(fields):
            salt = self.salts.public_salt()
        else:
            salt = self.salts.salt(tenant)
        fields[_SALT] = msgspec.Raw(b'"%b"' % salt.encode())
        return salt, msgspec.json.encode(fields)

    def of_tenant(self, request: Request, parsed: Parsed) -> str:
        """Return a salt for what is only counted or remembered of a request, its body unread."""
        tenant = tenant_of(request.headers, self._header)
        return self.salts.salt(tenant, (parsed.cache_salt or "").encode("utf-8", "surrogatepass"))


def refuse_foreign(fields: dict[str, msgspec.Raw]) -> None:
    """Raise `RequestError` for a body that names what belongs to other requests."""
    within: set[str] = set()
    for name in _NESTED:
        nested = fields.get(name, _NULL)
        try:
            within |= set() if bytes(nested) == _NULL else _fields.decode(nested).keys()
        except UNREADABLE as error:
            raise RequestError(f"{name}: {error}", param=name) from error
    for name in sorted(REFUSED_FIELDS):
        if bytes(fields.get(name, _NULL)) != _NULL or name in within:
            raise RequestError(
                f"{name} is not for clients of this router: it keeps tenants apart "
                "(--tenant-secret-file), and engines do not ask whose state it names; leave it out",
                param=name,
                status=403,
            )


def _plain(raw: bytes) -> bytes:
    """Return a field as bytes that are equal for equal values. Raises `RequestError`."""
    if not raw or raw == _NULL:
        return b""
    try:
        return msgspec.json.encode(msgspec.json.decode(raw))
    except UNREADABLE as error:
        raise RequestError(f"cache_salt: {error}", param="cache_salt") from error


def isolation_of(settings: TenantSettings, header: str) -> Isolation | None:
    """Return what keeps tenants apart, None where nothing shall. Raises `ConfigError`."""
    path = settings.tenant_secret_file
    if path is None:
        if (sharing := settings.tenant_sharing_file) is not None:
            raise ConfigError(
                f"--tenant-sharing-file {sharing} is set without --tenant-secret-file; give both"
            )
        return None
    if not header:
        raise ConfigError("--tenant-secret-file needs the name of a --tenant-header")
    secret = read_secret(path, "--tenant-secret-file")
    if len(secret) < SHORTEST_HASH_SECRET:
        raise ConfigError(
            f"--tenant-secret-file {path} holds {len(secret)} bytes; give a secret of at least "
            f"{SHORTEST_HASH_SECRET} bytes, one for all routers of the mesh: "
            "openssl rand -hex 32 > tenant.secret"
        )
    return Isolation(TenantSalts(secret, _sharing(settings.tenant_sharing_file)), header)


def _sharing(path: Path | None) -> Sharing | None:
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--tenant-sharing-file {path}: {error}") from error
    return parse_sharing(text, f"--tenant-sharing-file {path}")
