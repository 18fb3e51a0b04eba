"""The witness of the chaos runs sees a sidecar that believes too early."""

import asyncio
import contextlib
from typing import Any

import pytest

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.actors.wire import Subjects, encode
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.core.blocks.events import Batch, Cleared, WorkerId, encode_batch
from kvmesh.ports import Record
from kvmesh.transport.nats.jetstream.journal import JournalOptions, NatsJournal
from kvmesh.transport.nats.link.bus import NatsBus
from tests.chaos.mesh import BUCKET
from tests.chaos.witness import Witness
from tests.integration.nats.clients import connect

pytestmark = pytest.mark.integration
SUBJECTS = Subjects("kvmesh", BUCKET)
W = WorkerId("w")


@pytest.mark.parametrize("honest", [True, False])
async def test_a_claim_older_than_the_record_that_makes_it_true_is_found(
    own_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any, honest: bool
) -> None:
    connection = await connect(stack, url=own_server.url)
    options = JournalOptions(
        stream=SUBJECTS.stream(), subjects=(SUBJECTS.events(),), storage="memory"
    )
    journal = NatsJournal(connection, options)
    await journal.open()
    stack.push_async_callback(journal.close)
    witness = Witness()
    await witness.start(own_server.url)
    stack.push_async_callback(witness.close)
    batch = encode_batch(Batch(1, 7, 1, [Cleared(), Cleared()]))
    beat = WorkerHeartbeat(
        worker=W, bucket=BUCKET, epoch=7, last_seq=2, url="", models=(), block_size=16
    )
    acks: list[int] = []

    if honest:
        journal.append(SUBJECTS.events(W), batch, acks.append)
        await eventually(lambda: acks)
    NatsBus(connection).publish(SUBJECTS.heartbeats(W), encode(beat))
    await eventually(lambda: witness.confirmed)
    if not honest:
        await asyncio.sleep(0.1)  # longer than clocks may be apart
        journal.append(SUBJECTS.events(W), batch, acks.append)
    await eventually(lambda: witness.position == 1)
    await witness.judge_claims()

    assert ("acknowledged" in "".join(witness.differences())) is not honest


def test_claims_of_events_that_were_purged_before_it_came_are_not_judged() -> None:
    witness = Witness()
    witness.on_gap(1, 9)
    for last_seq in (2, 4):
        beat = WorkerHeartbeat(
            worker=W, bucket=BUCKET, epoch=7, last_seq=last_seq, url="", models=(), block_size=16
        )
        witness._on_beat("", encode(beat))

    witness.on_record(
        Record(10, SUBJECTS.events(W), encode_batch(Batch(1, 7, 3, [Cleared(), Cleared()])))
    )

    assert [claim.last for claim, _ in witness._suspects] == [4]
    assert not witness.differences()
