"""Where the meshes of running `kvmesh up` are, for commands of the same user: one file each.

The file is locked for as long as its mesh runs, so that one left by a crash is known as such.
"""

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from secrets import token_bytes
from typing import Final

import msgspec

from kvmesh.bounds import UNREADABLE
from kvmesh.errors import ConfigError
from kvmesh.settings.secret_file import read_hash_secret

DEFAULT_URL: Final = "http://127.0.0.1:8000"
MOST_BYTES: Final = 256 * 1024
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class EnginePlace(msgspec.Struct, frozen=True):
    """One engine of the mesh, and a router of its bucket."""

    url: str
    bucket: str
    router_url: str


class RunningMesh(msgspec.Struct, frozen=True):
    """One `kvmesh up`: its front door, and what is behind it.

    `hash_secret_file` keys its block hashes; "" where nothing does.
    """

    url: str
    view_url: str
    nats_url: str
    namespace: str
    data_dir: str
    buckets: tuple[str, ...]
    engines: tuple[EnginePlace, ...]
    hash_secret_file: str = ""


@contextlib.contextmanager
def announced(mesh: RunningMesh) -> Generator[None]:
    """Let other commands of this user find `mesh` until the end, or until this process dies.

    Where no file can be written, none is: the commands then take the mesh's address as a flag.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path = _own_folder() / f"up-{os.getpid()}.json"
            unfinished = path.with_suffix(".new")
            file = stack.enter_context(unfinished.open("wb"))
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(msgspec.json.encode(mesh))
            file.flush()
            unfinished.rename(path)
            stack.callback(path.unlink, missing_ok=True)
        yield


def find_meshes() -> list[RunningMesh]:
    """Return the meshes of this user that run, by the URL of their front doors."""
    found = {mesh.url: mesh for folder in _folders() for mesh in _read_folder(folder)}
    return [found[url] for url in sorted(found)]


def find_mesh(flag: str) -> RunningMesh | None:
    """Return the mesh that runs; of several the one whose --data-dir lies in the working directory.

    Raises `ConfigError` where several run elsewhere; `flag` is the setting that names one of them.
    """
    meshes = find_meshes()
    if len(meshes) > 1:
        here = [one for one in meshes if Path(one.data_dir).parent == Path.cwd()]
        if len(here) != 1:
            listed = ", ".join(f"{one.url} (NATS {one.nats_url})" for one in meshes)
            raise ConfigError(f"{len(meshes)} meshes run here: {listed}; name one with {flag}")
        meshes = here
    return meshes[0] if meshes else None


def look_up(url: str, meshes: Iterable[RunningMesh]) -> EnginePlace | None:
    """Return the engine of `meshes` at `url`, None when it is none of theirs."""
    engines = (engine for mesh in meshes for engine in mesh.engines)
    return next((engine for engine in engines if engine.url == url), None)


def find_url(given: str) -> str:
    """Return `given`, else where the running mesh shows itself, else the default port.

    Raises `ConfigError` where several meshes run.
    """
    if given:
        return given
    mesh = find_mesh("--url")
    return DEFAULT_URL if mesh is None else mesh.view_url


def _read_folder(folder: Path) -> Iterator[RunningMesh]:
    if not _is_own(folder):
        return
    for path in sorted(folder.glob("up-*.json")):
        with contextlib.suppress(OSError, *UNREADABLE), path.open("rb") as file:
            if _is_locked(file.fileno()):
                yield msgspec.json.decode(file.read(MOST_BYTES), type=RunningMesh)
            else:
                path.unlink()


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _folders() -> Iterator[Path]:
    """Yield where such files are, the place to write them first."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir():
        yield Path(runtime) / "kvmesh"
    yield Path(tempfile.gettempdir()) / f"kvmesh-{os.getuid()}"


def _own_folder() -> Path:
    """Return the folder to write to, made. Raises `OSError`, too, for one that others may write."""
    folder = next(_folders())
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_own(folder):
        raise PermissionError(f"{folder} is not this user's alone")
    return folder


def _is_own(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    own = found.st_uid == os.getuid() and not found.st_mode & _OTHERS
    return stat.S_ISDIR(found.st_mode) and own


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
    """Return a random secret that lives as long as this process."""
    return token_bytes(SECRET_BYTES)
