"""Seeds of nkeys and other secrets in files that only their owner may read."""

import os
from pathlib import Path

import nkeys

from kvmesh.errors import ConfigError

SEED_BYTES = 32


def write_secret(path: Path, data: bytes, owner: int | None) -> None:
    """Write a file only its owner may read; one that exists keeps its content."""
    if not path.exists():
        # Created with its mode, not changed to it: nobody can open it in between.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    if owner is not None:
        os.chown(path, owner, -1)


def public_key(path: Path, owner: int | None) -> str:
    """Return the public key of the seed in `path`, making the seed when there is none."""
    seed = bytes(nkeys.encode_seed(os.urandom(SEED_BYTES), nkeys.PREFIX_BYTE_USER))
    write_secret(path, seed, owner)
    try:
        return bytes(nkeys.from_seed(bytearray(path.read_bytes().strip())).public_key).decode()
    except (nkeys.NkeysError, ValueError) as error:
        raise ConfigError(f"{path}: not an nkey seed: {error!r}; delete it for a new one") from (
            error
        )
