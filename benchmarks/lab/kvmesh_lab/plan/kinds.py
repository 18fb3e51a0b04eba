"""The kinds of engines a fleet may be made of: speed, cache and price."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import parse_profile
from kvmesh_lab.simulator.model_profiles import engine_size

LEARNED: Final = "learned"
"""The profile of a kind that is as the log's routers learned their engines."""

MOST_KINDS: Final = 4
MOST_ENGINES: Final = 1024
Above = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class Kind(msgspec.Struct, frozen=True):
    """One kind: `price` is of one engine for an hour, `most` how many there may be."""

    name: str
    engine: EngineOptions
    price: float = 1.0
    most: int = MOST_ENGINES


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    price: Above
    profile: str = LEARNED
    speed: Above = 1.0
    kv_tokens: Annotated[int, msgspec.Meta(gt=0, le=10**9)] | None = None
    most: Annotated[int, msgspec.Meta(ge=1, le=MOST_ENGINES)] = MOST_ENGINES


def read_kinds(path: Path, base: EngineOptions, *, learned: bool) -> tuple[Kind, ...]:
    """Return the kinds of a TOML file, a table each; what a table does not say is `base`'s.

    `learned`: there is a log, `base` is its engines. Raises `ConfigError` naming file and table.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--prices {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prices {path}: not a TOML file: {error}") from error
    if not 1 <= len(found) <= MOST_KINDS:
        raise ConfigError(f"--prices {path}: {len(found)} kinds; give 1 to {MOST_KINDS} tables")
    return tuple(_kind(path, name, table, base, learned) for name, table in found.items())


def _kind(path: Path, name: str, table: object, base: EngineOptions, learned: bool) -> Kind:
    place = f"--prices {path}: [{name}]"
    try:
        entry = msgspec.convert(table, _Entry)
    except msgspec.ValidationError as error:
        keys = ", ".join(_Entry.__struct_fields__)
        raise ConfigError(f"{place}: {error}; a kind has {keys}") from error
    engine, tokens = base, entry.kv_tokens
    if entry.profile != LEARNED:
        size = engine_size(entry.profile, None)
        engine = msgspec.structs.replace(base, timing=parse_profile(size.timing))
        tokens = tokens or size.tokens
    elif not learned:
        raise ConfigError(
            f"{place}: profile {LEARNED!r} needs a log that tells of its fleet (GET /admin/trace); "
            "name a profile of --model-profile"
        )
    blocks = engine.num_gpu_blocks if tokens is None else max(2, tokens // base.block_size)
    made = msgspec.structs.replace(engine, num_gpu_blocks=blocks, speedup_ratio=entry.speed)
    return Kind(name, made, entry.price, entry.most)


Mix = tuple[int, ...]
"""How many engines of each kind."""


def price_of(kinds: Sequence[Kind], mix: Mix) -> float:
    """Return what a fleet costs an hour."""
    return sum(count * kind.price for kind, count in zip(kinds, mix, strict=True))
