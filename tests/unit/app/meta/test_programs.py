import msgspec
import pytest

from kvmesh.app.meta.programs import merge_programs
from kvmesh.app.views.programs_page import ProgramsView
from kvmesh.core.admission.access import Viewer
from kvmesh.core.programs.standing import Standing

AGENT = Standing(
    agent="a", program="a", tenant="", client="", phase="paused", worker="w", tokens=1,
    reserved=True, kept_s=None, turns=1, served_tokens=1, age_s=9.0, since_s=5.0, stop="",
    tool="", held_s=None, why="",
)  # fmt: skip


def view(router: str, *agents: Standing, bucket: str = "b") -> ProgramsView:
    return ProgramsView(router, bucket, "on", list(agents))


def with_(**changes: object) -> Standing:
    return msgspec.structs.replace(AGENT, **changes)


@pytest.mark.parametrize(
    ("others", "wanted"),
    [
        (with_(phase="waiting", held_s=1.0), with_(phase="waiting", held_s=1.0)),
        (with_(since_s=1.0), with_(since_s=1.0)),
        (with_(since_s=6.0), AGENT),
    ],
)
def test_an_agent_is_told_by_who_holds_it_else_by_who_heard_last(
    others: Standing, wanted: Standing
) -> None:
    for reported in (
        [view("r1", AGENT), view("r2", others)],
        [view("r2", others), view("r1", AGENT)],
    ):
        [merged] = merge_programs(reported, 9)

        assert (merged.router, merged.programs) == ("", [wanted])


def test_buckets_stay_apart_and_those_that_wait_come_first() -> None:
    waits = with_(agent="z", held_s=2.0)

    merged = merge_programs([view("r", AGENT, waits), view("s", AGENT, bucket="a")], 1)

    assert [(one.bucket, [row.agent for row in one.programs]) for one in merged] == [
        ("a", ["a"]),
        ("b", ["z"]),
    ]


def test_a_viewer_sees_its_own_tenants_whatever_replicas_say() -> None:
    [merged] = merge_programs([view("r", AGENT, with_(agent="t", tenant="t"))], 9, Viewer("t"))

    assert [one.agent for one in merged.programs] == ["t"]
