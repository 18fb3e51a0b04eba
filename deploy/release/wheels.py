"""Wheels for one interpreter and one system: the pure wheel, and a compiled core in it."""

import base64
import hashlib
import re
import sys
import zipfile
from pathlib import Path
from typing import Final

from deploy.release.archives import write_zip
from deploy.release.commands import run
from deploy.release.core import module_name
from deploy.release.errors import ReleaseError
from deploy.release.targets import Target, interpreter_tag

HEADER: Final = re.compile(r"^(?:Root-Is-Purelib|Tag): .*\n?", re.MULTILINE)
CONSISTENT: Final = re.compile(
    r'is\s+consistent\s+with\s+the\s+following\s+platform\s+tag:\s+"(\S+?)"'
)


def assemble(pure: Path, core: bytes, python: str, target: Target, out: Path, epoch: int) -> Path:
    """Write the wheel of `core` into `out`; return its path. The same bytes for the same core."""
    with zipfile.ZipFile(pure) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    (record,) = (name for name in contents if name.endswith(".dist-info/RECORD"))
    folder = record.rpartition("/")[0]
    tag = interpreter_tag(python)
    kept = HEADER.sub("", contents[f"{folder}/WHEEL"].decode()).rstrip("\n")
    lines = [kept, "Root-Is-Purelib: false", *(f"Tag: {tag}-{tag}-{one}" for one in target.tags)]
    contents[f"{folder}/WHEEL"] = ("\n".join(lines) + "\n\n").encode()
    contents[f"kvmesh/{module_name(python, target)}"] = core
    del contents[record]
    ordered = dict(sorted(contents.items()))
    ordered[record] = make_record(ordered, record)
    stem = folder.removesuffix(".dist-info")
    path = out / f"{stem}-{tag}-{tag}-{'.'.join(target.tags)}.whl"
    write_zip(path, ordered, epoch)
    return path


def make_record(contents: dict[str, bytes], record: str) -> bytes:
    """Return the list of files with their hashes (PEP 376)."""
    lines = []
    for name, data in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}")
    return "\n".join([*lines, f"{record},,", ""]).encode()


def check_platform(wheel: Path, target: Target) -> None:
    """Have auditwheel read what the core asks of its system; raise `ReleaseError` for more than the
    wheel's tag promises.
    """
    told = run(sys.executable, "-m", "auditwheel", "show", str(wheel))
    found = CONSISTENT.search(told)
    if found is None or not promises(target.tags[0], found[1]):
        raise ReleaseError(f"{wheel.name} is no wheel of {target.name}:\n{told}")


def promises(tag: str, needed: str) -> bool:
    """Return whether a system of `tag` has what `needed` says: manylinux_2_17 has manylinux_2_5."""
    pattern = re.compile(r"((?:many|musl)linux)_(\d+)_(\d+)_(\w+)")
    ours, theirs = pattern.fullmatch(tag), pattern.fullmatch(needed)
    if ours is None or theirs is None or (ours[1], ours[4]) != (theirs[1], theirs[4]):
        return False
    return (int(ours[2]), int(ours[3])) >= (int(theirs[2]), int(theirs[3]))
