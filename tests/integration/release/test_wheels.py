"""A wheel of a platform: its tag, its core, its RECORD."""

import base64
import csv
import hashlib
import zipfile
from pathlib import Path

import pytest
from packaging.tags import Tag
from packaging.utils import parse_wheel_filename

from deploy.release.core import ENTRY, Compiler, check_core, module_name
from deploy.release.errors import ReleaseError
from deploy.release.headers import Headers
from deploy.release.targets import PYTHONS, TARGETS
from deploy.release.wheels import assemble, promises

CORE = b"\x7fELF" + ENTRY
INFO = "kvmesh-1.2.3.dist-info"


@pytest.fixture
def pure(tmp_path: Path) -> Path:
    path = tmp_path / "kvmesh-1.2.3-py3-none-any.whl"
    wheel = "Wheel-Version: 1.0\nGenerator: some\nRoot-Is-Purelib: true\nTag: py3-none-any\n\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("kvmesh/__init__.py", "")
        archive.writestr(f"{INFO}/WHEEL", wheel)
        archive.writestr(f"{INFO}/RECORD", "old,,\n")
    return path


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_wheel_says_what_it_is_for(pure: Path, tmp_path: Path, target: object) -> None:
    (chosen,) = (one for one in TARGETS if one is target)

    path = assemble(pure, CORE, "3.13", chosen, tmp_path, 1_700_000_000)

    _, version, _, tags = parse_wheel_filename(path.name)
    assert str(version) == "1.2.3"
    assert tags == {Tag("cp313", "cp313", tag) for tag in chosen.tags}
    with zipfile.ZipFile(path) as archive:
        text = archive.read(f"{INFO}/WHEEL").decode()
        assert archive.read(f"kvmesh/{module_name('3.13', chosen)}") == CORE
        record = list(csv.reader(archive.read(f"{INFO}/RECORD").decode().splitlines()))
        for name, digest, size in record[:-1]:
            data = archive.read(name)
            found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={found}", str(len(data)))
        assert [row[0] for row in record] == archive.namelist()
    assert "Root-Is-Purelib: false\n" in text
    assert "py3-none-any" not in text
    assert text.count("\nTag: ") == len(chosen.tags)


def test_the_same_core_makes_the_same_wheel(pure: Path, tmp_path: Path) -> None:
    once, again = tmp_path / "once", tmp_path / "again"
    for folder in (once, again):
        folder.mkdir()
        assemble(pure, CORE, "3.11", TARGETS[0], folder, 1_700_000_000)

    (one,), (other,) = once.iterdir(), again.iterdir()
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("tag", "needed", "holds"),
    [
        ("manylinux_2_17_x86_64", "manylinux_2_5_x86_64", True),
        ("manylinux_2_17_x86_64", "manylinux_2_17_x86_64", True),
        ("manylinux_2_17_x86_64", "manylinux_2_28_x86_64", False),
        ("manylinux_2_17_x86_64", "manylinux_2_17_aarch64", False),
        ("manylinux_2_17_x86_64", "linux_x86_64", False),
        ("musllinux_1_2_x86_64", "manylinux_2_17_x86_64", False),
        ("musllinux_1_2_aarch64", "musllinux_1_1_aarch64", True),
    ],
)
def test_a_platform_promises_what_is_older(tag: str, needed: str, *, holds: bool) -> None:
    assert promises(tag, needed) is holds


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "has no PyInit"),
        (b"\x7fELF", "has no PyInit"),
        (CORE + b"\0/home/me/src\0", "names /home/me"),
        (CORE + b"\0decide.c\0", "names its source files"),
    ],
)
def test_a_core_that_tells_of_its_build_is_refused(data: bytes, reason: str) -> None:
    check_core(CORE + b"\x90.c\0", [Path("/home/me")])

    with pytest.raises(ReleaseError, match=reason):
        check_core(data, [Path("/home/me"), Path("/")])


def test_a_core_that_does_not_compile_makes_no_wheel(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        "[[tool.setuptools.ext-modules]]\n"
        'name = "kvmesh._native"\nsources = ["broken.c"]\nextra-compile-args = []\n'
        "[tool.kvmesh.hardening]\ncompile = []\nlink = []\n"
        "[tool.kvmesh.zig]\ncompile = []\n"
    )
    headers = Headers("3.13.0", "nowhere", (tmp_path,))
    compiler = Compiler("/bin/false", "/bin/false", tmp_path / "work", 1)

    with pytest.raises(ReleaseError, match="status 1"):
        compiler.build(source, "3.13", TARGETS[0], headers)


def test_wheels_are_made_for_each_interpreter_that_the_package_names() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")

    for python in PYTHONS:
        assert f'"Programming Language :: Python :: {python}"' in text
