"""What one `kvmesh up` has to itself: its ports and its data directory."""

import contextlib
import fcntl
import shutil
from collections.abc import Generator, Iterable
from pathlib import Path

from kvmesh.app.process.listening import why_taken
from kvmesh.core.members.url_rules import LAST_PORT
from kvmesh.errors import ConfigError

LOCK = "up.lock"
LOCALHOST = "127.0.0.1"


@contextlib.contextmanager
def hold_data_dir(path: Path) -> Generator[None]:
    """Keep other meshes out of `path` until the end, or until this process dies.

    Raises `ConfigError` where one is at work already (two NATS servers would write the same
    streams) and where it cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / LOCK).open("ab")
    except OSError as error:
        raise ConfigError(f"--data-dir {path}: {error.strerror}; name another one") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"--data-dir {path} is in use by another kvmesh up: stop that one, or give this "
                "one a --data-dir and a --http-port of its own"
            ) from error
        yield


def stream_room(path: Path, streams: int) -> int:
    """Return how many bytes each of `streams` may reserve: half of what is free at `path`, shared.

    A NATS server promises no more than three quarters of the disk, and snapshots need room, too.
    """
    return shutil.disk_usage(path).free // 2 // streams


def refuse_taken_ports(ports: Iterable[int], flag: str) -> None:
    """Raise `ConfigError` naming the first of `ports` that is none or cannot be listened on."""
    for port in ports:
        if port > LAST_PORT:
            raise ConfigError(f"{flag}: the mesh would need port {port}; use a lower one")
        if why := why_taken(LOCALHOST, port):
            raise ConfigError(
                f"{flag}: port {port}, which the mesh needs, cannot be listened on ({why}): is "
                "another kvmesh up running? Name other ports with --http-port"
            )
