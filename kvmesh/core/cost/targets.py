"""How soon a request's tokens shall come: its service level objective."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from kvmesh.bounds import MAX_NAME, MAX_SECONDS, is_name, real_number, shown
from kvmesh.errors import ConfigError

MAX_MS: Final = 1000.0 * MAX_SECONDS
_KEYS: Final = ("tenant", "ttft-ms", "tpot-ms")
EVERYBODY: Final = "*"
_MOST_CACHED: Final = 1024


class Targets(msgspec.Struct, frozen=True):
    """Times in ms; None: no such target. `ttft_ms`: until the first token, what it waits included.
    `tpot_ms`: for each further token, on average.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None


NO_TARGETS: Final = Targets()


def targets_of(ttft_ms: float | None, tpot_ms: float | None) -> Targets | None:
    """Return the targets, None for none; 0 and None are no target."""
    return Targets(ttft_ms or None, tpot_ms or None) if ttft_ms or tpot_ms else None


class TargetDefaults:
    """The targets of requests that name none: by tenant, the first glob that matches, else
    `general`. `any`: there are some.
    """

    def __init__(
        self, general: Targets = NO_TARGETS, tenants: Sequence[tuple[str, Targets]] = ()
    ) -> None:
        self._general = general
        self._tenants = tuple(tenants)
        self._found: dict[str, Targets] = {}
        self.any = bool(tenants) or general != NO_TARGETS

    def find(self, tenant: str) -> Targets:
        """Return a tenant's targets. O(1) mostly; any number of names is remembered by no more
        than so many.
        """
        if not self._tenants:
            return self._general
        found = self._found.get(tenant)
        if found is None:
            matching = (one for glob, one in self._tenants if fnmatchcase(tenant, glob))
            found = next(matching, self._general)
            if len(self._found) >= _MOST_CACHED:
                self._found.clear()
            self._found[tenant] = found
        return found


NO_DEFAULTS: Final = TargetDefaults()


def parse_default_targets(text: str, place: str = "--slo") -> tuple[str, Targets]:
    """Return tenants' glob and targets, written `tenant=acme*,ttft-ms=2000,tpot-ms=50`; without a
    tenant they are everybody's.

    0 is no target. Raises `ConfigError` with value and remedy.
    """
    where = f"{place} {text!r}"
    fields = key_values(text, _KEYS, where)
    glob = fields.pop("tenant", EVERYBODY)
    if not fields:
        raise ConfigError(f"{where}: give ttft-ms or tpot-ms")
    if not is_name(glob):
        raise ConfigError(f"{where}: a tenant's name has at most {MAX_NAME} characters")
    ttft_ms, tpot_ms = (parse_target(fields.get(key), f"{where}: {key}") for key in _KEYS[1:])
    return glob, Targets(ttft_ms or None, tpot_ms or None)


def parse_target(text: str | None, where: str) -> float | None:
    """Return milliseconds, None for None. Raises `ConfigError` naming `where`."""
    if text is None:
        return None
    value = real_number(text, 0.0, MAX_MS)
    if value is None:
        raise ConfigError(f"{where} is {shown(text)}; use milliseconds, 0 to {MAX_MS:g}")
    return value


def key_values(text: str, keys: tuple[str, ...], where: str) -> dict[str, str]:
    """Return the values of `key=value,key=value`, each of the `keys` once at most.

    Raises `ConfigError` that begins with `where`.
    """
    fields: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or key not in keys:
            raise ConfigError(f"{where}: {part!r} is no key=value of {', '.join(keys)}")
        if key in fields:
            raise ConfigError(f"{where}: {key} is given twice; give it once")
        fields[key] = value
    return fields
