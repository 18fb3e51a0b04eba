"""Seeds of nkeys and other secrets in files that only their owner may read."""

import os
from pathlib import Path

from kvmesh.errors import ConfigError
from kvmesh.transport.nats.trust.nkey import KEY_BYTES, USER, KeyPair, encode_seed


def write_secret(path: Path, data: bytes, owner: int | None) -> None:
    """Write a file only its owner may read; one that exists keeps its content."""
    if not path.exists():
        # Created with its mode, not changed to it: nobody can open it in between.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    if owner is not None:
        os.chown(path, owner, -1)


def replace_secret(path: Path, data: bytes, owner: int | None) -> None:
    """Write a file only its owner may read, in place of what was there, whole or not at all."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    write_secret(new, data, owner)
    new.replace(path)


def write_hash_secret(path: Path, owner: int | None = None) -> None:
    """Write a secret of block hashes (`--hash-secret-file`); one that exists is kept."""
    write_secret(path, os.urandom(KEY_BYTES).hex().encode() + b"\n", owner)


def read_keys(path: Path, owner: int | None, kind: int) -> KeyPair:
    """Return the keys of the seed in `path`, making a seed of that kind when there is none.

    Raises `ConfigError` when the file holds no such seed, `OSError` when it cannot be written.
    """
    write_secret(path, encode_seed(kind, os.urandom(KEY_BYTES)), owner)
    try:
        keys = KeyPair(path.read_bytes().strip())
    except ValueError as error:
        raise ConfigError(f"{path}: not an nkey seed: {error}; delete it for a new one") from error
    if keys.kind != kind:
        raise ConfigError(f"{path}: the seed of another kind of nkey; delete it for a new one")
    return keys


def public_key(path: Path, owner: int | None) -> str:
    """Return the public key of the user's seed in `path`, making the seed when there is none."""
    return read_keys(path, owner, USER).public_key
