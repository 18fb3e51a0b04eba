"""The secret that keys the hashes of blocks: a mesh's, or that of a router alone."""

from pathlib import Path
from secrets import token_bytes
from typing import Final

from kvmesh.app.process.running_mesh import find_meshes
from kvmesh.settings.secret_file import read_hash_secret

SECRET_BYTES: Final = 32


def mesh_secret(path: Path | None, nats_url: str) -> bytes:
    """Return the secret in `path`, without one that of the `kvmesh up` whose NATS server this is.

    b"" where neither has one: hashes are then the same everywhere. Raises `ConfigError` for a file
    that cannot be read or is too short.
    """
    if path is None and nats_url:
        named = {mesh.nats_url: mesh.hash_secret_file for mesh in find_meshes()}
        found = named.get(nats_url.replace("//localhost:", "//127.0.0.1:"))
        path = Path(found) if found else None
    return read_hash_secret(path)


def own_secret() -> bytes:
    """Return a secret that nobody else knows, and that ends with this process."""
    return token_bytes(SECRET_BYTES)
