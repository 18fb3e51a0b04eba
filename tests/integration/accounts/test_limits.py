"""An account has its share of the disk, and leaves the others theirs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvmesh.actors.wire import Subjects
from kvmesh.app.ops.nats_members import AccountsOptions
from kvmesh.transport.nats.jetstream.api import ApiError, JetStream
from kvmesh.transport.nats.layout import snapshot_bucket
from kvmesh.transport.nats.link.troubles import NO_ROOM
from kvmesh.transport.nats.plane import USAGE_PART
from tests.integration.support.locked_mesh import STREAM_BYTES, LockedMesh, locked_mesh

pytestmark = pytest.mark.integration

CHUNK = bytes(512 * 1024)


@pytest.fixture(params=["accounts.conf", "operator"])
async def mesh(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LockedMesh]:
    options = AccountsOptions(
        out=tmp_path / "accounts",
        operator=request.param == "operator",
        account_max_bytes=STREAM_BYTES + STREAM_BYTES // USAGE_PART + len(CHUNK),
        worker=("chat/w0", "code/v1"),
        router=("chat/r0", "code/r1"),
    )
    async with locked_mesh(tmp_path, options, witnesses=False, buckets=("chat", "code")) as mesh:
        yield mesh


async def test_a_bucket_that_fills_its_share_of_the_disk_leaves_the_others_theirs(
    mesh: LockedMesh,
) -> None:
    thief = JetStream(await mesh.login("router.chat.r0"))
    other = JetStream(await mesh.login("router.code.r1"))

    with pytest.raises(ApiError) as refused:
        await fill(thief, f"$O.{snapshot_bucket(Subjects('kvmesh', 'chat'))}.C.x")

    assert refused.value.code in NO_ROOM
    chunk = f"$O.{snapshot_bucket(Subjects('kvmesh', 'code'))}.C.x"
    assert await other.publish(chunk, CHUNK) == 1


async def fill(jetstream: JetStream, subject: str) -> None:
    """Store twice what the account may."""
    for _ in range(2 * STREAM_BYTES // len(CHUNK)):
        await jetstream.publish(subject, CHUNK)
