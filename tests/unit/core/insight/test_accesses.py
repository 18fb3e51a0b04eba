import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.sse import Usage
from kvmesh.core.insight.accesses import AccessReport, CacheAccesses

W = WorkerId("w")


@pytest.mark.parametrize(
    ("usage", "report"),
    [
        (Usage(100, 4, 64), AccessReport(told=1, tokens=64, blocks=4)),
        (Usage(100, 4, 63), AccessReport(told=1, tokens=63, blocks=3)),
        (Usage(100, 4, 0), AccessReport(told=1)),
        (Usage(100, 4, 10**25), AccessReport(told=1, tokens=100, blocks=6)),
        (Usage(100, 4, -5), AccessReport(told=1)),
        (Usage(100, 4, None), AccessReport(untold=1)),
        (None, AccessReport(untold=1)),
    ],
)
def test_what_an_answer_tells_is_counted_and_what_it_does_not_is_not_invented(
    usage: Usage | None, report: AccessReport
) -> None:
    accesses = CacheAccesses()

    accesses.count(W, usage, 16)

    assert accesses.reports == {W: report}


def test_answers_add_up_until_the_worker_is_forgotten() -> None:
    accesses = CacheAccesses()
    accesses.count(W, Usage(100, 4, 64), 16)
    accesses.count(W, Usage(100, 4, 96), 32)
    accesses.count(W, None, 16)

    assert accesses.reports[W] == AccessReport(told=2, untold=1, tokens=160, blocks=7)

    accesses.forget(W)
    accesses.forget(W)
    assert accesses.reports == {}
