import pytest

from kvmesh_lab.replay.options import SessionHeaders
from kvmesh_lab.replay.sessions import session_headers
from kvmesh_lab.traces.trace import TraceRequest

ROOT = TraceRequest(0, 0.0, 1, 1, (), session="a", program="a")
AGENT = TraceRequest(1, 0.0, 1, 1, (), session="b", parent="a", program="a")


@pytest.mark.parametrize(
    ("style", "own", "parent"),
    [
        ("kvmesh", b"x-kvmesh-program", b"x-kvmesh-program-parent"),
        ("dynamo", b"x-dynamo-session-id", b"x-dynamo-parent-session-id"),
        ("opencode", b"x-session-id", b"x-parent-session-id"),
    ],
)
def test_a_session_is_named_and_a_sub_agents_parent(
    style: SessionHeaders, own: bytes, parent: bytes
) -> None:
    root = dict(session_headers(style, ROOT, "0"))
    agent = dict(session_headers(style, AGENT, "0"))

    assert list(root) == [own]
    assert agent[parent] == root[own]
    assert agent[own] != root[own]


def test_claude_code_names_the_session_of_all_its_agents() -> None:
    root = dict(session_headers("claude-code", ROOT, "0"))
    agent = dict(session_headers("claude-code", AGENT, "0"))

    assert list(root) == [b"x-claude-code-session-id"]
    assert agent[b"x-claude-code-session-id"] == root[b"x-claude-code-session-id"]
    assert agent[b"x-claude-code-agent-id"]


def test_another_pass_has_sessions_of_its_own_and_a_request_without_one_names_none() -> None:
    odd = TraceRequest(0, 0.0, 1, 1, (), session="é\n" * 200)

    assert session_headers("kvmesh", ROOT, "0") != session_headers("kvmesh", ROOT, "1")
    assert session_headers("none", ROOT, "0") == []
    assert session_headers("kvmesh", TraceRequest(0, 0.0, 1, 1, ()), "0") == []
    assert all(
        value.decode("ascii").isprintable() and len(value) <= 256
        for _, value in session_headers("kvmesh", odd, "0")
    )
