import msgspec

from kvmesh.app.meta.session_names import SessionNames
from kvmesh.core.chat.inference import Extension
from kvmesh.transport.http.server.request import Request


def read(*, body: str | None = None, **given: str) -> tuple[int, ...]:
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
    request = Request("POST", b"/v1/chat/completions", lines)
    return SessionNames("x-kvmesh-tenant").read(request, Extension(session=body))


def test_a_session_has_one_key_however_it_is_named() -> None:
    named = read(x_kvmesh_session="s")

    assert len(named) == 1
    assert 0 <= named[0] < 1 << 64
    assert read(body="s") == named
    assert read(x_kvmesh_session="t") != named
    assert read() == read(x_kvmesh_session=" ") == read(body="") == read(x_kvmesh_tenant="t") == ()


def test_what_is_said_to_kvmesh_wins_over_what_is_said_to_others() -> None:
    assert read(x_session_id="other", body="s") == read(body="s")
    assert read(x_kvmesh_session="s", body="t", session_id="u") == read(body="s")
    assert read(x_correlation_id="each request has its own") == ()


def test_a_sub_agent_is_part_of_its_parents_session() -> None:
    parent = read(x_session_id="parent")

    child = read(x_session_id="child", x_parent_session_id="parent")

    assert child == (*read(x_session_id="child"), *parent)
    assert read(x_session_id="parent", x_parent_session_id="parent") == parent


def test_any_bytes_are_a_name() -> None:
    odd = Request("POST", b"/", [(b"x-session-id", b"\xff\xfe")])

    assert len(SessionNames("x-kvmesh-tenant").read(odd)) == 1
    assert msgspec.json.encode(read(body="\udcff")[0])
