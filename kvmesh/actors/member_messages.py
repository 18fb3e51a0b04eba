"""Messages about members: what asking them showed, and what answers showed of the index."""

from kvmesh.actors.kernel import Message
from kvmesh.core.blocks.events import WorkerId, WorkerName
from kvmesh.core.members.health import Answer

WORKER, ROUTER = "worker/", "router/"
"""What names begin with where workers and routers are asked by the same process."""


class Answered(Message, frozen=True):
    """What asking a silent member showed; see `SilentMembers.due`."""

    member: str
    answer: Answer


class Mispredicted(Message, frozen=True):
    """Answers of `worker` show that the index is wrong about it: have all it holds sent anew.

    `misses` of its last `answers` were predicted wrongly. `again`: that has not helped, so that its
    sidecar must be wrong too, and has to read the engine's own history anew.
    """

    worker: WorkerId
    misses: int
    answers: int
    again: bool = False


class Reread(Message, frozen=True, tag="reread"):
    """Follow the engine of `worker` from the beginning of its history; sent as `Resync` is."""

    worker: WorkerName


class DrainWorker(Message, frozen=True, tag="drain-worker"):
    """Give a worker of the command line no new requests from now on, or (`draining` False) again:
    a sibling was told so. Sent on `<ns>.rctl.<bucket>.<router>`.
    """

    worker: WorkerName
    draining: bool
