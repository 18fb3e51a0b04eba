"""What came of asking members over HTTP that are not heard."""

from kvmesh.actors.kernel import Message
from kvmesh.core.health.health import Answer

WORKER, ROUTER = "worker/", "router/"
"""What names begin with where workers and routers are asked by the same process."""


class Answered(Message, frozen=True):
    """What asking a silent member showed; see `SilentMembers.due`."""

    member: str
    answer: Answer
