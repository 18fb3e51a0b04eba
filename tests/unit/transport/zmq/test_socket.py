"""A ZMQ socket on the event loop: readers with a bug, messages without an end."""

import asyncio

import zmq

from kvmesh.tasks import TASK
from kvmesh.transport.zmq.socket import MOST_FRAMES, READS_PER_TURN, LoopSocket
from tests.conftest import Contexts, Eventually


async def test_a_readers_bug_is_reported_and_what_waits_is_read_all_the_same(
    eventually: Eventually, reported: Contexts
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sending, receiving = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    sending.bind("inproc://odd")
    received: list[bytes] = []

    def read(frames: list[bytes]) -> None:
        received.append(frames[0])
        if frames[0] == b"1":
            raise KeyError("odd")

    receiving.connect("inproc://odd")
    # All are there before the descriptor, which tells it once, is looked at.
    for data in (b"1", b"2", b"3"):
        sending.send(data)
    socket = LoopSocket(receiving, read)
    await eventually(lambda: received == [b"1", b"2", b"3"])

    assert [one[TASK] for one in reported] == ["zmq reader"]
    socket.close()
    sending.close(linger=0)
    context.term()


async def test_a_message_of_endless_frames_is_dropped_in_turns(eventually: Eventually) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sending, receiving = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    sending.bind("inproc://endless")
    receiving.connect("inproc://endless")
    received: list[list[bytes]] = []
    frames = 100 * READS_PER_TURN * MOST_FRAMES
    sending.send_multipart([b"topic"] * frames)
    sending.send_multipart([b"next"] * MOST_FRAMES)
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        if len(received) < 2:
            asyncio.get_running_loop().call_soon(turn)

    socket = LoopSocket(receiving, received.append)
    turn()
    await eventually(lambda: len(received) == 2)

    assert received == [[], [b"next"] * MOST_FRAMES]
    assert turns >= 100
    socket.close()
    sending.close(linger=0)
    context.term()
