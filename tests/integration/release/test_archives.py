"""Archives of the same contents have the same bytes."""

import gzip
import io
import os
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from deploy.release.archives import normalise_tar, write_zip

EPOCH = 1_700_000_000


def write_tar(path: Path, names: list[str], *, owner: int, mode: int, mtime: int) -> None:
    with tarfile.open(path, "w:gz") as archive:
        folder = tarfile.TarInfo("a")
        folder.type, folder.mtime = tarfile.DIRTYPE, mtime
        archive.addfile(folder)
        for name in names:
            info = tarfile.TarInfo(name)
            data = name.encode()
            info.size, info.mtime, info.uid, info.uname = len(data), mtime, owner, "somebody"
            info.mode = mode
            archive.addfile(info, io.BytesIO(data))


def test_order_owner_umask_and_time_of_a_tar_do_not_count(tmp_path: Path) -> None:
    one, other = tmp_path / "one.tar.gz", tmp_path / "other.tar.gz"
    write_tar(one, ["a/x", "a/y"], owner=0, mode=0o644, mtime=1)
    write_tar(other, ["a/y", "a/x"], owner=1000, mode=0o600, mtime=2)

    normalise_tar(one, EPOCH)
    normalise_tar(other, EPOCH)

    assert one.read_bytes() == other.read_bytes()
    assert gzip.decompress(one.read_bytes())
    with tarfile.open(one) as archive:
        assert [(m.name, m.mtime, m.mode) for m in archive] == [
            ("a/x", EPOCH, 0o644),
            ("a/y", EPOCH, 0o644),
        ]


def test_a_script_in_a_tar_stays_executable(tmp_path: Path) -> None:
    path = tmp_path / "one.tar.gz"
    write_tar(path, ["a/run"], owner=0, mode=0o700, mtime=1)

    normalise_tar(path, EPOCH)

    with tarfile.open(path) as archive:
        assert archive.getmember("a/run").mode == 0o755


@pytest.mark.parametrize("epoch", [EPOCH, 0])
def test_a_zip_has_the_time_it_is_given_and_executable_modules(tmp_path: Path, epoch: int) -> None:
    contents = {"b.py": b"x" * 1000, "a.so": b"y"}
    write_zip(tmp_path / "one.zip", contents, epoch)
    mask = os.umask(0o077)
    try:
        write_zip(tmp_path / "other.zip", contents, epoch)
    finally:
        os.umask(mask)

    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "other.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        plain, module = archive.infolist()
    assert (plain.external_attr >> 16, module.external_attr >> 16) == (0o100644, 0o100755)
    assert plain.date_time == time.gmtime(max(epoch, 315532800))[:6]
