"""Tests of a process's memory: its limit, the share for bodies, giving back."""

import asyncio
import ctypes
import os
from pathlib import Path

import pytest

from kvmesh.app.process import memory
from kvmesh.app.process.memory import (
    MOST_BODIES,
    body_budget,
    give_back_memory,
    memory_limit,
    resident_bytes,
)

MB = 1 << 20
PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def system(root: Path, cgroup: str, limits: dict[str, str]) -> Path:
    """Write /proc/self/cgroup and files below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for path, text in limits.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "limits", "expected"),
    [
        ("0::/\n", {"memory.max": f"{512 * MB}\n"}, 512 * MB),
        ("0::/\n", {"memory.max": "max\n"}, PHYSICAL),
        # the tightest of those it is in
        (
            "0::/kubepods/pod1/router\n",
            {
                "kubepods/memory.max": f"{900 * MB}\n",
                "kubepods/pod1/memory.max": f"{300 * MB}\n",
                "kubepods/pod1/router/memory.max": "max\n",
            },
            300 * MB,
        ),
        # a container that sees the host's path, and the mount is its own
        ("0::/../../docker/abc\n", {"memory.max": f"{256 * MB}\n"}, 256 * MB),
        # v1
        (
            "12:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/x\n",
            {
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/docker/abc/memory.limit_in_bytes": f"{128 * MB}\n",
            },
            128 * MB,
        ),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, PHYSICAL),
        ("0::/\n", {"memory.max": "many\n"}, PHYSICAL),
        ("0::/\n", {"memory.max": "0\n"}, PHYSICAL),
        ("", {}, PHYSICAL),
    ],
)
def test_the_limit_is_that_of_the_tightest_cgroup(
    tmp_path: Path, cgroup: str, limits: dict[str, str], expected: int
) -> None:
    assert memory_limit(system(tmp_path, cgroup, limits)) == expected


def test_without_cgroups_the_limit_is_the_machines(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) == PHYSICAL
    assert 0 < memory_limit() <= PHYSICAL


def test_bodies_get_a_quarter_of_the_memory() -> None:
    assert body_budget(512 * MB) == 128 * MB
    assert body_budget(100 << 30) == MOST_BODIES
    assert body_budget(1) == 1


class Libc:
    """Notes after how many looks memory is given back."""

    def __init__(self) -> None:
        self.uses_caches = 0
        self.trimmed: list[int] = []

    def malloc_trim(self, kept: int) -> int:
        assert kept == 0
        self.trimmed.append(self.uses_caches)
        return 1


async def test_a_process_that_has_grown_gives_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    libc = Libc()
    # the first at the start, the fifth and the eighth after memory was given back
    sizes = [100, 101, 90, 99, 95, 102, 103, 60]

    def resident() -> int:
        if libc.uses_caches == len(sizes):
            raise asyncio.CancelledError
        libc.uses_caches += 1
        return sizes[libc.uses_caches - 1] * MB

    monkeypatch.setattr(memory, "_glibc", lambda: libc)
    monkeypatch.setattr(memory, "LOOK_S", 0.001)
    monkeypatch.setattr(memory, "resident_bytes", resident)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(give_back_memory(), 10)

    assert libc.trimmed == [4, 7]


async def test_without_glibc_nothing_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())

    memory.tune_allocator()
    await asyncio.wait_for(give_back_memory(), 10)


def test_resident_memory_grows_with_what_is_written() -> None:
    before = resident_bytes()

    written = bytearray(os.urandom(64 * MB))

    assert resident_bytes() - before > 32 * MB
    del written
