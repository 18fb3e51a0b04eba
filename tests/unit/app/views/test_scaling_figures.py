"""What of a worker counts for autoscalers."""

from kvmesh.app.views.program_rows import Programs
from kvmesh.app.views.scaling_figures import read_workers
from tests.integration.pick.room import CHAT, Room


async def test_what_was_booked_since_an_engine_spoke_counts_as_used() -> None:
    room = Room()
    asking = room.ask().head(response_mode=0).body(CHAT)

    uses = read_workers(room.context, Programs())
    asking.on_half_close()
    asking.on_reset(2)
    await room.close()

    assert max((one.used_tokens > 0, one.requests) for one in uses) == (True, 1)
