"""A machine without compiler and make: an empty venv that knows nothing but itself."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NEEDED_BY_PIP = ("sh", "env", "uname")
FORBIDDEN = ("cc", "gcc", "clang", "make", "zig", "c99")


@dataclass(frozen=True)
class CleanRoom:
    """`folder` has the venv and a PATH of its own."""

    folder: Path

    @property
    def program(self) -> Path:
        """Return its kvmesh."""
        return self.folder / "venv/bin/kvmesh"

    def environment(self, **more: str) -> dict[str, str]:
        """Return all variables of its processes: none of this machine's but certificates'."""
        certificates = {
            name: value
            for name, value in os.environ.items()
            if name in {"PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CACHE_DIR", "HOME"}
        }
        path = f"{self.folder}/venv/bin:{self.folder}/bin"
        return {**certificates, "PATH": path, "LANG": "C.UTF-8", **more}

    def run(self, *command: str, **more: str) -> str:
        """Return what a command printed; fails with it."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    def pip(self, *words: str, **more: str) -> str:
        """Run its pip."""
        python = str(self.folder / "venv/bin/python")
        return self.run(python, "-m", "pip", "--disable-pip-version-check", *words, **more)


@contextmanager
def clean_room(python: Path, folder: Path) -> Iterator[CleanRoom]:
    """Make one for an interpreter; it is gone afterwards."""
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    (folder / "bin").mkdir()
    for name in NEEDED_BY_PIP:
        found = shutil.which(name)
        assert found is not None
        (folder / "bin" / name).symlink_to(found)
    room = CleanRoom(folder)
    path = room.environment()["PATH"]
    assert not [name for name in FORBIDDEN if shutil.which(name, path=path)]
    try:
        yield room
    finally:
        shutil.rmtree(folder)
