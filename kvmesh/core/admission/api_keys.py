"""Who may send requests: named keys, kept as hashes, with a tenant and limits."""

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import msgspec

from kvmesh.bounds import MAX_NAME, Figure, is_name, shown
from kvmesh.core.admission.access import DEFAULT_ROLES, OPEN_PATHS, ROLES
from kvmesh.core.admission.paths import Role
from kvmesh.core.admission.usage_limits import Limits, key_name, tenant_name
from kvmesh.errors import ConfigError, RequestError

PREFIX: Final = "kvm-"
"""What kvmesh's own keys begin with, so that scanners for leaked secrets know them."""

SITE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DIGEST_LENGTH: Final = 64


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key: the SHA-256 of it in hexadecimal, never the key itself.

    Keys are random, so that a quick hash is enough. `tenant` is what admission and logs call its
    requests, by default its name; `limits` are what it may use. A `proxy` (a meta-router, a
    gateway) is believed what tenant it sends, and which of its own roles that one has. `roles`
    None: the file says nothing of them. `residency` are the sites at which alone its requests may
    be served, none named: any. `name` is that of its table, whatever the file says.
    """

    sha256: str
    tenant: str = ""
    roles: tuple[Role, ...] | None = None
    requests_per_minute: Figure = 0.0
    tokens_per_minute: Figure = 0.0
    tokens_per_day: Figure = 0.0
    proxy: bool = False
    residency: tuple[str, ...] = ()
    name: str = ""

    def limits(self) -> Limits:
        """Return what it may use."""
        return Limits(self.requests_per_minute, self.tokens_per_minute, self.tokens_per_day)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: dict[str, ApiKey]
    tenants: dict[str, Limits] = {}


class KeyFile(msgspec.Struct, frozen=True):
    """The keys of a file by digest, and the limits of keys and tenants (`UsageLimits.replace`)."""

    keys: dict[str, ApiKey]
    limits: dict[str, Limits]


def digest_of(key: str) -> str:
    """Return what a file of keys holds of `key`."""
    return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def parse_keys(text: str, source: str) -> dict[str, ApiKey]:
    """Return the keys of `parse_file` alone."""
    return parse_file(text, source).keys


def parse_file(text: str, source: str) -> KeyFile:
    """Return what is in a TOML file: `[keys.NAME]`, whose tenants and roles are filled in, and
    limits of `[tenants.NAME]`.

    Raises `ConfigError` naming `source` and the key.
    """
    import tomllib  # noqa: PLC0415  takes 6 ms, and few routers have keys

    try:
        file = msgspec.convert(tomllib.loads(text), _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(
            f'{source}: {error}; write [keys.NAME] with sha256 = "…", or use `kvmesh api-key`'
        ) from error
    found: dict[str, ApiKey] = {}
    for name, key in file.keys.items():
        digest = key.sha256.lower()
        if len(digest) != _DIGEST_LENGTH or set(digest) - set("0123456789abcdef"):
            raise ConfigError(f"{source}: keys.{name}: sha256 is not 64 hexadecimal digits")
        for reported in (name, *filter(None, (key.tenant,))):
            if not is_name(reported):
                raise ConfigError(
                    f"{source}: keys.{shown(name)}: {shown(reported)} is no name: write at most "
                    f"{MAX_NAME} characters, none of them a control character"
                )
        if digest in found:
            raise ConfigError(f"{source}: keys.{name}: another name has the same key")
        found[digest] = _completed(name, msgspec.structs.replace(key, sha256=digest), source)
    limits = _limits(((key_name(one.name), one.limits()) for one in found.values()), "key", source)
    tenants = ((tenant_name(name), one) for name, one in file.tenants.items())
    return KeyFile(found, limits | _limits(tenants, "tenant", source))


def _limits(named: Iterable[tuple[str, Limits]], kind: str, source: str) -> dict[str, Limits]:
    """Return the limits there are, by the names that requests bear. Raises `ConfigError` for two of
    one name: both would use the limits of one of them.
    """
    found: dict[str, Limits] = {}
    for name, one in named:
        other = found.setdefault(name, one)
        if other is not one and (one.any() or other.any()):
            raise ConfigError(
                f"{source}: requests of two {kind}s bear the name {shown(name)}, and one has "
                f"limits: names differ by ASCII characters, of which 128 count; rename one"
            )
    return {f"{kind}:{name}": one for name, one in found.items() if one.any()}


def _completed(name: str, key: ApiKey, source: str) -> ApiKey:
    """Return the key with its tenant and roles filled in. Raises `ConfigError`.

    A tenant travels as a header, so that none may be another's when it is read there.
    """
    tenant, roles = key.tenant or name, key.roles
    if tenant != tenant.strip() or not is_name(tenant.encode().decode("latin-1")):
        raise ConfigError(
            f"{source}: keys.{shown(name)}: tenant {shown(tenant)} cannot stand in a header: use "
            f"at most {MAX_NAME} bytes, ASCII letters to be sure, no blank at either end"
        )
    for site in key.residency:
        if not SITE_NAME.fullmatch(site):
            raise ConfigError(
                f"{source}: keys.{shown(name)}: residency {shown(site)} is no site: write names as "
                'of --site, residency = ["eu"]'
            )
    if roles is None:
        roles = ROLES if key.proxy else DEFAULT_ROLES
    if not roles:
        raise ConfigError(
            f"{source}: keys.{shown(name)}: roles is empty; name some of {', '.join(ROLES)}, or "
            "delete the key"
        )
    return msgspec.structs.replace(key, tenant=tenant, roles=roles, name=name)


class KeyRing:
    """Tells who a request is from."""

    def __init__(self, keys: dict[str, ApiKey]) -> None:
        self._keys = keys

    def replace(self, keys: dict[str, ApiKey]) -> None:
        """Take other keys from now on."""
        self._keys = keys

    def digests(self) -> list[str]:
        """Return what is kept of each key."""
        return list(self._keys)

    def get(self, digest: str) -> ApiKey | None:
        """Return the key of that digest; None for no such key."""
        return self._keys.get(digest)

    def admit(self, path: str, key: str) -> ApiKey | None:
        """Return whose request it is, None on a path that needs no key.

        Raises `RequestError` 401 for no key or an unknown one.
        """
        if path in OPEN_PATHS:
            return None
        found = self._keys.get(digest_of(key)) if key else None
        if found is None:
            wrong = "this API key is not known" if key else "send an API key"
            raise RequestError(f"{wrong}: Authorization: Bearer …, or x-api-key", status=401)
        return found
