from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kvmesh.errors import ConfigError
from kvmesh.observe import get_logger
from kvmesh.transport.nats.trust.anchors import encode_anchors
from kvmesh.transport.nats.trust.guard import CHECK_S, Guard
from kvmesh.transport.nats.trust.seal import HEADER, Sealer
from tests.unit.transport.nats.trust.keys import KEYS, MEMBERS, SECRETS

HEART = "kvmesh.hb.chat.w0"
MANIFEST = "$KV.kvmesh_meta.manifest.chat"
STORED = "2023-11-14T22:13:20.000000000Z"
NOW_MS = 1_700_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def wall_ns(self) -> int:
        return NOW_MS * 1_000_000 + int(self.now_s * 1e9)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "trust.json"
    path.write_bytes(encode_anchors(MEMBERS))
    return path


def guard_by(path: Path, clock: Clock, own: str = "r0") -> Guard:
    return Guard(
        *("kvmesh", path, KEYS[own], get_logger()),
        monotonic=clock.monotonic,
        wall_ns=clock.wall_ns,
    )


def headers(who: str, subject: str, payload: bytes, at_ms: int = NOW_MS) -> bytes:
    seal = Sealer(SECRETS[who], "s").seal(subject, payload, at_ms)
    return f"NATS/1.0\r\n{HEADER}: {seal}\r\n\r\n".encode()


def test_each_subscription_is_given_a_message_once(path: Path, clock: Clock) -> None:
    guard, block = guard_by(path, clock), headers("w0", HEART, b"x")

    verdicts = [guard.admits(sid, HEART, block, b"x") for sid in (1, 2, 1, 2)]

    assert verdicts == [True, True, False, False]
    assert guard.statistics().counts["stale", "worker heartbeat"] == 2
    guard.forget(1)
    guard.forget(1)
    assert guard.admits(1, HEART, block, b"x")


def test_what_is_not_signed_by_anybody_passes(path: Path, clock: Clock) -> None:
    guard = guard_by(path, clock)

    assert guard.admits(1, "kvmesh.seq.chat.r0", None, b"x")
    assert guard.admits_value("$KV.kvmesh_sessions_chat.x", b"", b"x", STORED)
    assert guard.warnings() == ()


@pytest.mark.parametrize(
    ("stored", "good"),
    [
        (STORED, True),
        ("2023-11-14T22:13:49.9Z", True),
        ("2023-11-14T22:14:00Z", False),
        ("2023-11-15T22:13:20+24:00", False),
        ("", False),
        ("yesterday", False),
    ],
)
def test_a_value_written_again_after_its_time_does_not_count(
    path: Path, clock: Clock, stored: str, good: bool
) -> None:
    guard, block = guard_by(path, clock), headers("r0", MANIFEST, b"{}")
    clock.now_s = 1e6

    assert guard.admits_value(MANIFEST, block, b"{}", stored) is good


def test_a_changed_file_counts_within_a_second_and_a_broken_one_changes_nothing(
    path: Path, clock: Clock
) -> None:
    guard = guard_by(path, clock)
    path.write_bytes(encode_anchors(MEMBERS[1:]))
    assert guard.admits(1, HEART, headers("w0", HEART, b"1"), b"1")

    clock.now_s += CHECK_S
    later = headers("w0", HEART, b"2", NOW_MS + 1_000)
    assert not guard.admits(1, HEART, later, b"2")
    assert guard.statistics().counts["foreign", "worker heartbeat"] == 1

    path.write_bytes(b"{")
    clock.now_s += CHECK_S
    with capture_logs() as logs:
        assert "the old one stays" in guard.warnings()[0]
        clock.now_s += CHECK_S
        guard.warnings()
    assert [one["event"] for one in logs] == ["trust file not read, the old one stays"]
    path.unlink()
    clock.now_s += CHECK_S
    assert "No such file" in guard.warnings()[0]

    path.write_bytes(encode_anchors(MEMBERS))
    clock.now_s += CHECK_S
    again = headers("w0", HEART, b"3", NOW_MS + 5_000)
    assert guard.admits(1, HEART, again, b"3")


def test_a_process_that_the_file_lacks_is_told(path: Path, clock: Clock) -> None:
    with capture_logs() as logs:
        guard = guard_by(path, clock, "stranger")

    assert [one["event"] for one in logs] == ["own key is not trusted"]
    assert f"lacks this process's own key {KEYS['stranger']}" in guard.warnings()[0]


def test_a_file_that_is_none_ends_the_start(path: Path, clock: Clock) -> None:
    path.write_bytes(b"[]")

    with pytest.raises(ConfigError, match=r"--nats-trust .*trust\.json"):
        guard_by(path, clock)
