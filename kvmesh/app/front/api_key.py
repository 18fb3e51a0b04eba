"""`kvmesh api-key`: make a key for a client; only its hash is kept."""

import os
import secrets
import sys
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from kvmesh.app.front.key_guard import read_file
from kvmesh.core.admission.access import ROLES
from kvmesh.core.admission.api_keys import PREFIX, digest_of, parse_keys
from kvmesh.core.admission.paths import Role
from kvmesh.errors import ConfigError
from kvmesh.settings.types import Flat

KEY_BYTES: Final = 32
MODE: Final = 0o600


@dataclass(frozen=True)
class ApiKeyOptions:
    """The key to make. A dataclass, since the command line is made from it."""

    name: str
    """Name of the key, for people: who holds it."""
    _: KW_ONLY
    file: Path = Path("api-keys.toml")
    """File to add it to, as --api-keys of routers and meta-routers takes it."""
    tenant: str = ""
    """Tenant of its requests; default: the key's name."""
    role: tuple[Role, ...] = ()
    """What it may: infer sends requests; view sees its tenant's decisions, overview, dashboard;
    operate may both, and sees all tenants', /metrics, /admin/…; repeat. Default: infer; of a
    --proxy all three."""
    requests_per_minute: Annotated[float, Parameter(validator=Number(gte=0.0))] = 0.0
    """Requests a minute it may send; 0 is no limit."""
    tokens_per_minute: Annotated[float, Parameter(validator=Number(gte=0.0))] = 0.0
    """Tokens a minute, of prompts and answers, at all routers of a bucket; 0 is no limit."""
    tokens_per_day: Annotated[float, Parameter(validator=Number(gte=0.0))] = 0.0
    """The same a day (UTC)."""
    residency: tuple[str, ...] = ()
    """Site at which alone its requests may be served and its prompts seen; repeat. Default: any."""
    proxy: bool = False
    """Believe what tenant its requests name, and their roles among its own: for a meta-router or a
    gateway."""


def command(options: Annotated[ApiKeyOptions, Flat]) -> None:
    """Make a key, add its hash to the file, and print the key: it cannot be shown again."""
    sys.stdout.write(add_key(options) + "\n")
    sys.stderr.write(f"added to {options.file}; processes that serve read it within a second\n")


def add_key(options: ApiKeyOptions) -> str:
    """Return the new key. Raises `ConfigError`, and changes nothing, for a name that is taken."""
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    before = options.file.read_text(encoding="utf-8") if options.file.exists() else ""
    lines = [before.rstrip("\n"), ""] if before.strip() else []
    lines += [f"[keys.{quoted(options.name)}]", f'sha256 = "{digest_of(key)}"']
    if options.tenant:
        lines.append(f"tenant = {quoted(options.tenant)}")
    roles = options.role or (ROLES if options.proxy else ("infer",))
    listed = ", ".join(f'"{role}"' for role in dict.fromkeys(roles))
    lines.append(f"roles = [{listed}]")
    for limit in ("requests_per_minute", "tokens_per_minute", "tokens_per_day"):
        if amount := getattr(options, limit):
            lines.append(f"{limit} = {amount!r}")
    if options.residency:
        lines.append(f"residency = [{', '.join(map(quoted, options.residency))}]")
    if options.proxy:
        lines.append("proxy = true")
    text = "\n".join(lines) + "\n"
    parse_keys(text, str(options.file))
    write_secretly(options.file, text)
    assert digest_of(key) in read_file(options.file).keys
    return key


def quoted(text: str) -> str:
    """Return `text` as a TOML string. Raises `ConfigError` for what is not printable."""
    if not text or not text.isprintable():
        raise ConfigError(f"{text!r}: use printable characters")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def write_secretly(path: Path, text: str) -> None:
    """Write the file so that readers see the old or the new one, and only the owner sees any."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, MODE), "w") as file:
            file.write(text)
        beside.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
