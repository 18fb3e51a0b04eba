"""Archives of the same bytes for the same contents: names sorted, one time, one owner."""

import gzip
import io
import tarfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

OLDEST_S: Final = 315532800
"""1980-01-01: zip files know no earlier time."""
EXECUTABLE: Final = 0o755
PLAIN: Final = 0o644


def normalise_tar(archive: Path, epoch: int) -> None:
    """Rewrite a `.tar.gz` in place: members by name, of time `epoch`, owned by nobody.

    The executable bit of a file is kept; directories are left out, since each file names its own.
    """
    raw = io.BytesIO()
    with tarfile.open(archive) as old, tarfile.open(fileobj=raw, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            if not member.isfile():
                continue
            info = tarfile.TarInfo(member.name)
            info.size, info.mtime = member.size, epoch
            info.mode = EXECUTABLE if member.mode & 0o100 else PLAIN
            new.addfile(info, old.extractfile(member))
    with archive.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=epoch) as packed:
        packed.write(raw.getvalue())


def write_zip(path: Path, contents: Mapping[str, bytes], epoch: int) -> None:
    """Write `contents` in their order, all of time `epoch`; what ends in `.so` is executable."""
    moment = time.gmtime(max(epoch, OLDEST_S))[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in contents.items():
            info = zipfile.ZipInfo(name, moment)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3  # else the mode means nothing
            info.external_attr = (0o100000 | (EXECUTABLE if name.endswith(".so") else PLAIN)) << 16
            archive.writestr(info, data)
