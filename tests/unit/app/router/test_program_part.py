"""What is looked at of workers once a second, beside their programs."""

import msgspec
from structlog.testing import capture_logs

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.app.router.program_part import ProgramPart
from kvmesh.settings.roles import RouterSettings
from tests.unit.app.serve.test_routed import W1, Routing


def test_a_price_that_is_none_is_warned_of_once_a_life() -> None:
    routing = Routing()
    part = ProgramPart(RouterSettings(), routing.scheduler)
    beats = routing.context.router.heartbeats
    wrong = ("gpu", "kvmesh/price/dear")
    beats[W1] = WorkerHeartbeat(W1, "b", 1, 0, "http://w1:1", (), 16, labels=wrong)

    with capture_logs() as logs:
        part.check(routing.context)
        part.check(routing.context)
        beats[W1] = msgspec.structs.replace(beats[W1], epoch=2)
        part.check(routing.context)
        beats[W1] = msgspec.structs.replace(beats[W1], epoch=3, labels=("kvmesh/price/3",))
        part.check(routing.context)

    warned = [one for one in logs if one["log_level"] == "warning"]
    assert [one["labels"] for one in warned] == ["kvmesh/price/dear"] * 2
    assert part._alone_tokens() == {}
