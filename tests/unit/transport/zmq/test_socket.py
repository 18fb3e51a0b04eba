"""A ZMQ socket on the event loop whose reader has a bug."""

import zmq

from kvmesh.tasks import TASK
from kvmesh.transport.zmq.socket import LoopSocket
from tests.conftest import Contexts, Eventually


async def test_a_readers_bug_is_reported_and_what_waits_is_read_all_the_same(
    eventually: Eventually, reported: Contexts
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sending, receiving = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    sending.bind("inproc://odd")
    heard: list[bytes] = []

    def read(frames: list[bytes]) -> None:
        heard.append(frames[0])
        if frames[0] == b"1":
            raise KeyError("odd")

    receiving.connect("inproc://odd")
    # All are there before the descriptor, which tells it once, is looked at.
    for data in (b"1", b"2", b"3"):
        sending.send(data)
    socket = LoopSocket(receiving, read)
    await eventually(lambda: heard == [b"1", b"2", b"3"])

    assert [one[TASK] for one in reported] == ["zmq reader"]
    socket.close()
    sending.close(linger=0)
    context.term()
