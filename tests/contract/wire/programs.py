"""What replicas share of programs: agents, in a table of their bucket."""

from collections.abc import Iterator
from typing import Final

from kvmesh.actors.wire import Subjects
from kvmesh.core.programs.shared import AgentUpdate, decode_update, encode_update
from kvmesh.core.programs.table import AgentRecord
from kvmesh.core.routing.sessions import session_key
from kvmesh.transport.nats.layout import program_bucket
from tests.contract.wire.case import EPOCH, WORKER, WireCase

KEY: Final = session_key("a session", "tenant")
TOLD_S: Final = 1_700_000_000.5
RECORD: Final = AgentRecord(
    revision=7,
    agent=session_key("a sub-agent", "tenant"),
    program=KEY,
    tenant="tenant",
    client="claude-code",
    priority=-1,
    phase="paused",
    worker=WORKER,
    tokens=104_000,
    turns=39,
    served_tokens=9_000,
    stop="tool",
    tool="Bash",
    age_s=600.25,
    since_s=0.5,
    seated=True,
)


def programs() -> Iterator[tuple[str, WireCase]]:
    """Yield an agent as a replica tells of it, and the name of the table."""
    yield (
        "agent",
        WireCase(
            lambda: encode_update("r0", EPOCH, TOLD_S, RECORD),
            decode_update,
            AgentUpdate(1, "r0", EPOCH, TOLD_S, RECORD),
        ),
    )
    name = program_bucket(Subjects("kvmesh", "chat"))
    yield "agents_name", WireCase(name.encode, bytes.decode, "kvmesh_programs_chat")
