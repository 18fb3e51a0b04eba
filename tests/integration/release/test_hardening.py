"""The compiled core is hardened: that of this installation, and what the reader sees of others."""

import platform
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from deploy.release.core import check_hardening
from deploy.release.errors import ReleaseError
from deploy.release.hardening import find_missing
from deploy.release.targets import TARGETS
from kvmesh import _native

ROOT = Path(__file__).parents[3]
ENTRY = "PyInit__native"
SOURCE = """
#include <string.h>
void PyInit__native(char *to, const char *from) {
    char held[64];
    strcpy(held, from);
    memcpy(to, held, 64);
}
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ELF is of Linux")


def hardening() -> dict[str, list[str]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, list[str]] = settings["tool"]["kvmesh"]["hardening"]
    return found


def build(folder: Path, *flags: str) -> bytes:
    """Return a shared object by the C compiler here; the test skips without one."""
    source, made = folder / "one.c", folder / "one.so"
    source.write_text(SOURCE, encoding="utf-8")
    command = ["cc", "-O2", "-fPIC", "-shared", *flags, str(source), "-o", str(made)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no C compiler that knows {flags}: {error}")
    return made.read_bytes()


def test_the_core_of_this_installation_is_hardened() -> None:
    path = Path(str(_native.__file__))

    missing = find_missing(path.read_bytes(), ENTRY, glibc=platform.libc_ver()[0] == "glibc")

    assert missing == [], "build it again: pip install -e ."


def test_what_lacks_a_flag_is_seen(tmp_path: Path) -> None:
    flags = hardening()
    whole = [*flags["compile"], *flags["link"]]
    if platform.machine() != "x86_64":
        whole.remove("-fcf-protection=full")
    glibc = platform.libc_ver()[0] == "glibc"
    off = {
        "-fstack-protector-strong": "-fno-stack-protector",
        "now": "-Wl,-z,lazy",
        "relro": "-Wl,-z,norelro",
        "noexecstack": "-Wl,-z,execstack",
    }
    if platform.machine() == "x86_64":
        off["-fcf-protection"] = "-fcf-protection=none"
    if glibc:
        off["-D_FORTIFY_SOURCE"] = "-U_FORTIFY_SOURCE"

    assert find_missing(build(tmp_path, *whole), ENTRY, glibc=glibc) == []
    for name, flag in off.items():
        data = build(tmp_path, *whole, flag)
        assert find_missing(data, ENTRY, glibc=glibc) == [name]
        with pytest.raises(ReleaseError, match=f"not hardened: {name}"):
            check_hardening(data, glibc=glibc)


@pytest.mark.parametrize("cut", [0, 7, 63, 100, 900])
def test_what_is_no_whole_shared_object_is_refused(tmp_path: Path, cut: int) -> None:
    data = build(tmp_path)[:cut]

    with pytest.raises(ReleaseError, match=r"the compiled core: .*ELF file"):
        check_hardening(data, glibc=True)


def test_what_has_no_entry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it has no other"):
        find_missing(build(tmp_path), "other", glibc=True)


def test_branches_are_tracked_on_x86_alone() -> None:
    flags = hardening()["compile"]

    for target in TARGETS:
        left_out = [one for one in flags if not target.knows(one)]
        assert left_out == ([] if target.machine == "x86_64" else ["-fcf-protection=full"])
