import pytest

from kvmesh.transport.grpc.messages import MessageReader, Unreadable, frame_messages
from kvmesh.transport.grpc.session_events import RESOURCE_EXHAUSTED, UNIMPLEMENTED


def test_messages_come_out_as_they_went_in() -> None:
    reader = MessageReader(10)
    data = frame_messages([b"", b"abc", b"0123456789"])

    found = [message for at in range(len(data)) for message in reader.feed(data[at : at + 1])]

    assert found == [b"", b"abc", b"0123456789"]
    assert not reader.within


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"\0\0\0\0\x0b", RESOURCE_EXHAUSTED), (b"\1\0\0\0\1x", UNIMPLEMENTED)],
)
def test_what_may_not_be_taken_is_said(data: bytes, status: int) -> None:
    reader = MessageReader(10)

    with pytest.raises(Unreadable) as raised:
        list(reader.feed(data))

    assert raised.value.status == status
    assert reader.within
