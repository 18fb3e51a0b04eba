from typing import Any

import msgspec
import pytest

from kvmesh.app.prompts.request_wishes import RequestWishes, WishOptions, WishReader
from kvmesh.app.prompts.turn_names import MAX_PROGRAM, Hints, TurnNames, key_names, read_hints
from kvmesh.bounds import MAX_PRIORITY, MAX_TOKENS
from kvmesh.core.programs.turn import Client
from kvmesh.core.routing.model_policy import ModelPolicies
from kvmesh.core.routing.sessions import session_key
from kvmesh.errors import RequestError
from kvmesh.transport.http.openai import ENDPOINTS, parse_request
from kvmesh.transport.http.server.request import Request

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
UUID = "0199a213-81c0-7800-8aa1-bbab2a035a53"
READER = WishReader(
    WishOptions(tenant_header="x-kvmesh-tenant"),
    ModelPolicies(()),
)


def wishes(
    headers: dict[str, str | bytes], path: str = CHAT, body: dict[str, Any] | None = None
) -> RequestWishes:
    lines = [
        (name.encode(), value if isinstance(value, bytes) else value.encode("latin-1"))
        for name, value in headers.items()
    ]
    fields = {"messages": [{"role": "user", "content": "a"}]} | (body or {})
    request = Request("POST", path.encode(), lines, msgspec.json.encode(fields))
    return READER.read(request, parse_request(request.body, ENDPOINTS[path]))


def names(headers: dict[str, str | bytes], path: str = CHAT, **body: Any) -> TurnNames | None:
    return wishes(headers, path, body).names


def of(
    agent: str, client: Client, parent: str = "", tenant: str = "", *, final: bool = False
) -> TurnNames:
    key = session_key(agent, tenant)
    return TurnNames(key, session_key(parent, tenant) if parent else key, client, final)


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"x-claude-code-session-id": "s"}, of("s", "claude-code")),
        (
            {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"},
            of("s\0a", "claude-code", "s"),
        ),
        (
            {
                "x-claude-code-session-id": "s",
                "x-claude-code-agent-id": "b",
                "x-claude-code-parent-agent-id": "a",
            },
            of("s\0b", "claude-code", "s"),
        ),
        ({"x-claude-code-agent-id": "a"}, None),
        ({"x-dynamo-session-id": "s"}, of("s", "dynamo")),
        (
            {"x-dynamo-session-id": "s", "x-dynamo-parent-session-id": "p"},
            of("s", "dynamo", "p"),
        ),
        (
            {"x-dynamo-session-id": "s", "x-dynamo-session-final": "True"},
            of("s", "dynamo", final=True),
        ),
        ({"session-id": "s"}, of("s", "codex")),
        ({"session_id": "s"}, of("s", "codex")),
        ({"session-id": "s", "thread-id": "s"}, of("s", "codex")),
        ({"session-id": "s", "thread-id": "t"}, of("t", "codex", "s")),
        (
            {"session-id": "t", "thread-id": "t", "x-codex-parent-thread-id": "p"},
            of("t", "codex", "p"),
        ),
        ({"thread-id": "t", "x-codex-parent-thread-id": "p"}, of("t", "codex", "p")),
        ({"thread-id": "t"}, None),
        ({"x-session-id": "s"}, of("s", "opencode")),
        ({"x-session-affinity": "s"}, of("s", "opencode")),
        ({"x-session-id": "s", "x-parent-session-id": "p"}, of("s", "opencode", "p")),
        ({"x-smg-routing-key": "s"}, of("s", "smg")),
        ({"x-correlation-id": "s", "user-agent": "aiperf/1.0"}, of("s", "aiperf")),
        ({"x-correlation-id": "s", "user-agent": "curl/8"}, None),
        ({"x-correlation-id": "s"}, None),
        ({"x-correlation-id": "", "user-agent": "aiperf/1.0"}, None),
        ({"x-kvmesh-session": "s"}, of("s", "kvmesh")),
        ({"x-kvmesh-program": "s"}, of("s", "kvmesh")),
        ({"x-kvmesh-program": " s ", "x-kvmesh-program-parent": "p"}, of("s", "kvmesh", "p")),
        ({"x-kvmesh-program-parent": "p"}, None),
        ({"x-kvmesh-session": "s", "x-kvmesh-program-parent": "p"}, of("s", "kvmesh")),
        ({}, None),
    ],
)
def test_a_client_names_its_agent_by_headers_of_its_own(
    headers: dict[str, str | bytes], named: TurnNames | None
) -> None:
    assert names(headers) == named


def test_what_is_said_to_kvmesh_wins() -> None:
    foreign: dict[str, str | bytes] = {"x-claude-code-session-id": "c"}

    assert names(foreign | {"x-kvmesh-program": "p"}) == of("p", "kvmesh")
    assert names(foreign | {"x-kvmesh-session": "s"}) == of("s", "kvmesh")
    assert names(foreign, kvmesh={"program": "b"}) == of("b", "kvmesh")
    assert names(foreign, kvmesh={"session": "b"}) == of("b", "kvmesh")
    assert names(foreign, kvmesh={"priority": 1}) == of("c", "claude-code")
    assert names({"x-kvmesh-program": "p"}, kvmesh={"program": "b"}) == of("p", "kvmesh")
    assert names({"x-kvmesh-program": "p"}, kvmesh={"session": "b"}) == of("p", "kvmesh")
    assert names({}, kvmesh={"program": "b", "program_parent": "r"}) == of("b", "kvmesh", "r")


def test_the_last_turn_may_be_said_of_any_name() -> None:
    final: dict[str, str | bytes] = {"x-kvmesh-program-final": "1"}

    assert names(final | {"x-session-id": "s"}) == of("s", "opencode", final=True)
    assert names({}, kvmesh={"program": "b", "program_final": True}) == of(
        "b", "kvmesh", final=True
    )
    assert names({"x-session-id": "s"}, kvmesh={"program_final": True}) == of(
        "s", "opencode", final=True
    )
    assert names(final) is None
    assert names({"session-id": "a" * 256}) is not None
    assert names({"x-kvmesh-program-final": "false", "x-kvmesh-program": "p"}) == of("p", "kvmesh")


@pytest.mark.parametrize("bad", ["", " ", "a" * (MAX_PROGRAM + 1), "a\x01b", b"\xc2\x80"])
@pytest.mark.parametrize(
    "header", ["x-claude-code-session-id", "session-id", "x-session-id", "x-smg-routing-key"]
)
def test_a_foreign_name_that_is_none_is_passed_over(header: str, bad: str | bytes) -> None:
    assert names({header: bad}) is None
    assert names({header: bad}, kvmesh={"program": "b"}) == of("b", "kvmesh")


@pytest.mark.parametrize(
    "headers",
    [
        {"x-kvmesh-program": "a" * (MAX_PROGRAM + 1)},
        {"x-kvmesh-program": "a\x01"},
        {"x-kvmesh-program": "a", "x-kvmesh-program-parent": "a" * (MAX_PROGRAM + 1)},
        {"x-kvmesh-program": "a", "x-kvmesh-program-final": "perhaps"},
    ],
)
def test_a_wrong_name_in_a_header_of_ours_is_an_error(headers: dict[str, str | bytes]) -> None:
    with pytest.raises(RequestError, match="x-kvmesh-program"):
        names(headers)


@pytest.mark.parametrize("field", ["program", "program_parent"])
def test_a_wrong_name_in_our_field_is_an_error(field: str) -> None:
    for bad in ("é" * (MAX_PROGRAM // 2 + 1), "a\n"):
        with pytest.raises(RequestError, match=r"kvmesh\.program"):
            names({}, kvmesh={"program": "a"} | {field: bad})


def test_claude_code_packs_its_session_in_the_user_of_a_message() -> None:
    user = f"user_{'ab' * 32}_account_{UUID}_session_{UUID}"
    packed = msgspec.json.encode({"device_id": "d", "session_id": UUID}).decode()
    odd: list[object] = [
        7,
        None,
        "user_1",
        "{",
        "{}",
        '{"session_id":3}',
        "_session_" + "z" * 8,
        "x" * 2000,
    ]
    odd += [msgspec.json.encode({"session_id": one}).decode() for one in ("", "a" * 257, "a\n")]

    for one in (user, packed):
        said: dict[str, Any] = {"metadata": {"user_id": one}}
        assert names({}, MESSAGES, **said) == of(UUID, "claude-code")
        assert names({}, CHAT, **said) is None
        assert names({"x-session-id": "s"}, MESSAGES, **said) == of("s", "opencode")
    for none in odd:
        assert names({}, MESSAGES, metadata={"user_id": none}) is None
    nothing: list[object] = [None, [], "text"]
    for metadata in nothing:
        assert names({}, MESSAGES, metadata=metadata) is None


def test_a_cache_key_that_is_an_id_names_a_session() -> None:
    session = "ses_" + "aB3" * 8

    assert names({}, prompt_cache_key=UUID) == of(UUID, "codex")
    assert names({}, prompt_cache_key=session) == of(session, "opencode")
    for other in ("", "my-app", "user-7", UUID + "x", 7, None, ["a"]):
        assert names({}, prompt_cache_key=other) is None
    assert key_names("my-app", "") is None


@pytest.mark.parametrize(
    ("hints", "read"),
    [
        ({}, Hints()),
        ({"priority": 5, "osl": 1024, "speculative_prefill": True}, Hints(5, 1024, True)),
        ({"strict_priority": 2, "priority": -3}, Hints(1997)),
        ({"strict_priority": 1, "priority": 10**6}, Hints(1499)),
        ({"strict_priority": -(10**25)}, Hints(-MAX_PRIORITY)),
        ({"priority": 10**25, "osl": 1e300}, Hints(MAX_PRIORITY, MAX_TOKENS)),
        ({"priority": True, "osl": 0, "speculative_prefill": 1}, Hints()),
        ({"priority": "high", "osl": -4}, Hints()),
    ],
)
def test_hints_of_dynamos_clients_are_brought_into_range(
    hints: dict[str, object], read: Hints
) -> None:
    assert read_hints(msgspec.Raw(msgspec.json.encode({"agent_hints": hints}))) == read


def test_hints_count_behind_what_is_said_to_kvmesh() -> None:
    nvext = {"nvext": {"agent_hints": {"priority": 5, "osl": 100}}}

    plain = wishes({}, body=nvext)
    ours = wishes({"x-kvmesh-priority": "2", "x-kvmesh-output-tokens": "7"}, body=nvext)
    field = wishes({}, body=nvext | {"kvmesh": {"priority": 1, "output_tokens": 9}})

    assert (plain.priority, plain.output_tokens) == (5, 100)
    assert (ours.priority, ours.output_tokens) == (2, 7)
    assert (field.priority, field.output_tokens) == (1, 9)
    engines = wishes({}, body={"priority": 3})
    assert (engines.priority, engines.output_tokens) == (-3, None)


def test_who_names_itself_leaves_the_choice_to_the_router() -> None:
    named = wishes({"x-kvmesh-program": "p", "x-kvmesh-program-final": "1"})
    kept = wishes({"x-kvmesh-session": "p", "x-kvmesh-priority": "1", "x-kvmesh-timeout-s": "9"})

    assert named.names == of("p", "kvmesh", final=True)
    assert not named.chooses
    assert not kept.chooses
    assert wishes({"x-kvmesh-worker-id": "w0"}).chooses
