import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from kvmesh.errors import CodecError, TransportError
from kvmesh.tasks import TASK
from kvmesh.transport import local
from kvmesh.transport.local import LocalLink, connect_local, listen_local
from tests.conftest import Contexts, Eventually

pytestmark = pytest.mark.integration


class Codec:
    def __init__(self) -> None:
        self.frames: list[int] = []

    def encode(self, messages: Sequence[str]) -> bytes:
        return msgspec.msgpack.encode(messages)

    def decode(self, data: memoryview) -> list[str]:
        try:
            found = msgspec.msgpack.decode(data, type=list[str])
        except msgspec.MsgspecError as error:
            raise CodecError(str(error)) from error
        self.frames.append(len(found))
        return found


class Desk:
    """One end; keeps what comes."""

    def __init__(self) -> None:
        self.codec = Codec()
        self.links: list[LocalLink[str, str]] = []
        self.messages: list[str] = []
        self.unsent: list[object] = []
        self.lost = 0

    def accept(self, link: LocalLink[str, str]) -> None:
        link.attach(self)
        self.links.append(link)

    def on_message(self, message: str) -> None:
        self.messages.append(message)

    def on_unsent(self, message: str, error: Exception) -> None:
        assert str(error)
        self.unsent.append(message)

    def on_lost(self) -> None:
        self.lost += 1


async def test_messages_of_one_turn_leave_as_one_frame(
    tmp_path: Path, eventually: Eventually
) -> None:
    ours, theirs = Desk(), Desk()
    server = await listen_local(tmp_path / "s", theirs.codec, theirs.accept)
    link = await connect_local(tmp_path / "s", ours.codec)
    link.attach(ours)

    for number in range(5):
        link.send(f"m{number}")
    await eventually(lambda: len(theirs.messages) == 5)
    link.send("later")
    await eventually(lambda: theirs.messages[-1] == "later")

    assert theirs.codec.frames == [5, 1]
    link.send("last words")
    link.close()
    await eventually(lambda: theirs.lost == ours.lost == 1)
    assert theirs.messages[-1] == "last words"
    link.send("into the void")
    server.close()


async def test_what_is_sent_before_the_connection_is_made_arrives(
    tmp_path: Path, eventually: Eventually
) -> None:
    ours, theirs = Desk(), Desk()

    def greet(link: LocalLink[str, str]) -> None:
        theirs.accept(link)
        link.send("welcome")

    server = await listen_local(tmp_path / "s", theirs.codec, greet)
    link = await connect_local(tmp_path / "s", ours.codec)
    link.attach(ours)

    await eventually(lambda: ours.messages == ["welcome"])
    link.close()
    await eventually(lambda: theirs.lost)
    server.close()


def frame(*messages: str) -> bytes:
    data = msgspec.msgpack.encode(messages)
    return len(data).to_bytes(4, "little") + data


async def test_frames_are_read_the_same_however_they_are_cut() -> None:
    data = frame("a", "b") + frame() + frame("c" * 300)
    for cut in range(len(data)):
        for further in range(cut, len(data), 37):
            desk = Desk()
            link = LocalLink[str, str](desk.codec)
            link.attach(desk)
            for piece in (data[:cut], data[cut:further], data[further:]):
                link.data_received(piece)
            assert desk.messages == ["a", "b", "c" * 300]


@pytest.mark.parametrize("garbage", [frame("a") + b"\x03\0\0\0abc", b"\xff\xff\xff\xff"])
async def test_garbage_ends_the_link(
    garbage: bytes, tmp_path: Path, eventually: Eventually
) -> None:
    theirs = Desk()
    server = await listen_local(tmp_path / "s", theirs.codec, theirs.accept)
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))

    writer.write(garbage)

    await eventually(lambda: theirs.lost == 1)
    assert theirs.messages in ([], ["a"])
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
    server.close()


async def test_a_side_that_does_not_read_is_given_up(
    tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "MAX_BACKLOG_BYTES", 1_000_000)
    theirs = Desk()
    server = await listen_local(tmp_path / "s", theirs.codec, theirs.accept)
    _, writer = await asyncio.open_unix_connection(str(tmp_path / "s"), limit=1000)
    await eventually(lambda: theirs.links)

    for _ in range(20):
        theirs.links[0].send("x" * 500_000)
        await asyncio.sleep(0)

    await eventually(lambda: theirs.lost == 1)
    writer.close()
    server.close()


async def test_a_missing_or_impossible_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="nowhere"):
        await connect_local(tmp_path / "nowhere", Codec())
    with pytest.raises(TransportError, match="no/folder"):
        await listen_local(tmp_path / "no/folder", Codec(), lambda _: None)


async def test_a_listener_replaces_the_one_before(tmp_path: Path, eventually: Eventually) -> None:
    old, new = Desk(), Desk()
    first = await listen_local(tmp_path / "s", old.codec, old.accept)
    second = await listen_local(tmp_path / "s", new.codec, new.accept)
    link = await connect_local(tmp_path / "s", Codec())

    link.close()
    await eventually(lambda: new.lost)
    assert old.links == []
    first.close()
    second.close()


async def test_a_receivers_bug_is_reported_and_the_next_message_comes(reported: Contexts) -> None:
    class Odd(Desk):
        def on_message(self, message: str) -> None:
            super().on_message(message)
            if message == "a":
                raise KeyError(message)

    desk = Odd()
    link = LocalLink[str, str](desk.codec)
    link.attach(desk)

    link.data_received(frame("a", "b") + frame("c"))

    assert desk.messages == ["a", "b", "c"]
    assert [one[TASK] for one in reported] == ["link message"]


async def test_a_message_that_cannot_be_sent_fails_alone_and_its_sender_is_told(
    tmp_path: Path,
    eventually: Eventually,
    reported: Contexts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "MAX_FRAME_BYTES", 100)
    ours, theirs = Desk(), Desk()
    server = await listen_local(tmp_path / "s", theirs.codec, theirs.accept)
    link = await connect_local(tmp_path / "s", ours.codec)
    link.attach(ours)

    poison = object()
    for message in ("a", poison, "b", "x" * 101, "y" * 60, "z" * 60):
        link.send(message)  # type: ignore[arg-type]  # what a bug would send
    await eventually(lambda: len(theirs.messages) == 4)
    link.send("c")

    await eventually(lambda: len(theirs.messages) == 5)
    assert theirs.messages == ["a", "b", "y" * 60, "z" * 60, "c"]
    assert ours.unsent == [poison, "x" * 101]
    assert "str of 104 bytes" in str(reported[1]["exception"])
    assert [one[TASK] for one in reported] == ["link message"] * 2
    assert ours.lost == theirs.lost == 0
    link.close()
    server.close()
