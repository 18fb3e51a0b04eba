"""Who may send requests: named keys, kept as hashes, with a tenant and a rate."""

import re
from hashlib import sha256
from typing import Final

import msgspec

from kvmesh.bounds import MAX_NAME, Figure, is_name, shown
from kvmesh.core.admission.access import DEFAULT_ROLES, OPEN_PATHS, ROLES
from kvmesh.core.admission.paths import Role
from kvmesh.errors import ConfigError, RequestError

PREFIX: Final = "kvm-"
"""What kvmesh's own keys begin with, so that scanners for leaked secrets know them."""

SITE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DIGEST_LENGTH: Final = 64


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key: the SHA-256 of it in hexadecimal, never the key itself.

    Keys are random, so that a quick hash is enough. `tenant` is what admission and logs call its
    requests, by default its name; `requests_per_minute` 0 is no limit. A `proxy` (a meta-router, a
    gateway) is believed what tenant it sends, and which of its own roles that one has. `roles`
    None: the file says nothing of them. `residency` are the sites at which alone its requests may
    be served, none named: any.
    """

    sha256: str
    tenant: str = ""
    roles: tuple[Role, ...] | None = None
    requests_per_minute: Figure = 0.0
    proxy: bool = False
    residency: tuple[str, ...] = ()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: dict[str, ApiKey]


def digest_of(key: str) -> str:
    """Return what a file of keys holds of `key`."""
    return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def parse_keys(text: str, source: str) -> dict[str, ApiKey]:
    """Return the keys of a TOML file, `[keys.NAME]` each, by digest, tenants and roles filled in.

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
    return found


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
    return msgspec.structs.replace(key, tenant=tenant, roles=roles)


class KeyRing:
    """Tells who a request is from, and whether it may come now. Times are the caller's, seconds.

    A key's rate is a bucket of a minute's requests.
    """

    def __init__(self, keys: dict[str, ApiKey]) -> None:
        self._keys = keys
        self._spent: dict[str, tuple[float, float]] = {}
        self.refused = 0

    def replace(self, keys: dict[str, ApiKey]) -> None:
        """Take other keys from now on; what known ones have spent stays."""
        self._keys = keys
        self._spent = {digest: one for digest, one in self._spent.items() if digest in keys}

    def digests(self) -> list[str]:
        """Return what is kept of each key."""
        return list(self._keys)

    def get(self, digest: str) -> ApiKey | None:
        """Return the key of that digest; None for no such key."""
        return self._keys.get(digest)

    def check(self, path: str, key: str) -> None:
        """Raise as `admit` does for no key or an unknown one; counts and spends nothing."""
        if path not in OPEN_PATHS and not (key and digest_of(key) in self._keys):
            raise _unknown(key)

    def admit(self, path: str, key: str, now: float) -> ApiKey | None:
        """Return whose request it is, None on a path that needs no key.

        Raises `RequestError` 401 for no key or an unknown one, 429 for one that is spent.
        """
        if path in OPEN_PATHS:
            return None
        found = self._keys.get(digest_of(key)) if key else None
        if found is None:
            self.refused += 1
            raise _unknown(key)
        self.spend(found, now)
        return found

    def spend(self, key: ApiKey, now: float) -> None:
        """Take one request off the key's bucket, which fills evenly. Raises `RequestError` 429."""
        if not key.requests_per_minute:
            return
        size = max(1.0, key.requests_per_minute)
        left, since = self._spent.get(key.sha256, (size, now))
        left = min(size, left + (now - since) * size / 60.0)
        if left < 1.0:
            self._spent[key.sha256] = left, now
            self.refused += 1
            raise RequestError(
                f"tenant {key.tenant!r} has spent its {key.requests_per_minute:g} requests a "
                "minute; slow down",
                status=429,
            )
        self._spent[key.sha256] = left - 1.0, now


def _unknown(key: str) -> RequestError:
    wrong = "this API key is not known" if key else "send an API key"
    return RequestError(f"{wrong}: Authorization: Bearer …, or x-api-key", status=401)
