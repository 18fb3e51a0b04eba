"""Requests no honest client sends, at each kind of front door: refused or served, never an error of
ours, and nothing of them stays.
"""

import gc
import json
import logging
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from types import ModuleType
from typing import Any, Final

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvmesh.settings.requests import DecisionSettings, SessionSettings
from tests.integration.support.hostile_front import Answer, Front, Kind, front

pytestmark = pytest.mark.integration

KINDS: Final[tuple[Kind, ...]] = ("router", "meta-router")
FINE: Final = frozenset({200, 400, 404, 413, 415, 417, 422, 429, 503})
CHAT: Final = {
    "model": '"m"',
    "messages": '[{"role": "user", "content": "a question about the weather"}]',
    "max_tokens": "1",
}
NUMBERS: Final = (
    *("1e30", "1e308", "1e400", "-1", "5e-324", "NaN", "true", "null", "[]", "{}", '"1"'),
    *("1" + "0" * 25, "9" * 400, "9" * 5000, "-" + "9" * 30, "18446744073709551616"),
)
STRINGS: Final = (
    *('"\\ud800"', '"\\u0000"', '"' + "x" * 5000 + '"', '["a"]', '["' + "x" * 5000 + '"]'),
    *("[1, -1]", "[4294967296]", "[1.5]", "[true]", "[" * 20_000 + "]" * 20_000),
)
FIELDS: Final = (
    *("model", "messages", "max_tokens", "max_completion_tokens", "n", "best_of", "priority"),
    *("stream", "cache_salt", "lora_path", "input_ids", "tools", "chat_template_kwargs", "nvext"),
)
WISHES: Final = (
    *("worker", "bucket", "session", "priority", "output_tokens", "mode", "cost", "temperature"),
    *("overlap_score_weight", "allowed_workers", "labels", "tolerations"),
)
HEADERS: Final = (
    *("x-kvmesh-priority", "x-kvmesh-overlap-score-weight", "x-kvmesh-temperature"),
    *("x-kvmesh-output-tokens", "x-kvmesh-timeout-s", "x-kvmesh-router-mode", "x-kvmesh-cost"),
    *("x-kvmesh-worker-id", "x-kvmesh-allowed-workers", "x-kvmesh-labels", "x-kvmesh-tolerations"),
    *("x-kvmesh-session", "x-kvmesh-tenant", "x-kvmesh-bucket", "x-request-id", "x-session-id"),
    *("content-encoding", "traceparent", "x-kvmesh-body", "x-forwarded-for"),
)
TEXTS: Final = (
    *(b"", b"0", b"nan", b"-inf", b"1.7e308", b"1e-320", b"9" * 20, b"9" * 25, b"9" * 400),
    *(
        b"a\x00b",
        b"a\x7fb",
        b"a\x01",
        b"9" * 9000,
        b"-" + b"9" * 30,
        b"\xff\xfe",
        b"\xd9\xa1",
        b"1_0",
        b"w0",
        b",",
        b"gzip",
    ),
    b",".join(b"%d" % number for number in range(3000)),
)
Bodies = st.dictionaries(st.sampled_from(FIELDS), st.sampled_from((*NUMBERS, *STRINGS)), max_size=2)


@pytest.fixture(autouse=True)
def only_warnings() -> None:
    """Log no line a request, as structlog does by default."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


@pytest.fixture(scope="module", params=KINDS)
def door(request: pytest.FixtureRequest) -> Iterator[Front]:
    with front(request.param) as serving:
        yield serving
        assert serving.internal_errors() == 0


def written(fields: Mapping[str, str], wishes: Mapping[str, str] | None = None) -> bytes:
    parts = [f'"{name}": {value}' for name, value in {**CHAT, **fields}.items()]
    if wishes:
        inner = ", ".join(f'"{name}": {value}' for name, value in wishes.items())
        parts.append(f'"kvmesh": {{{inner}}}')
    return f"{{{', '.join(parts)}}}".encode()


def check(answer: Answer) -> None:
    assert answer.status in FINE, (answer.status, answer.body[:300])
    assert len(answer.body) < 20_000


def check_alive(door: Front) -> None:
    """Hold that requests are still served."""
    plain = door.send(written({}))

    assert plain.status == 200, plain.body[:300]
    assert door.send(b"", target=b"/health", method="GET").status == 200


@pytest.mark.parametrize("name", FIELDS)
def test_no_field_of_a_body_is_an_error_of_ours(door: Front, name: str) -> None:
    for value in (*NUMBERS, *STRINGS):
        check(door.send(written({name: value})))
    check_alive(door)


@pytest.mark.parametrize("name", WISHES)
def test_no_wish_in_a_body_is_an_error_of_ours(door: Front, name: str) -> None:
    for value in (*NUMBERS, *STRINGS):
        check(door.send(written({}, {name: value})))
    check_alive(door)


@pytest.mark.parametrize("name", HEADERS)
def test_no_header_is_an_error_of_ours(door: Front, name: str) -> None:
    for text in TEXTS:
        check(door.send(written({}), {name: text}))
    check_alive(door)


@settings(
    max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    fields=Bodies,
    wishes=st.dictionaries(
        st.sampled_from(WISHES), st.sampled_from((*NUMBERS, *STRINGS)), max_size=2
    ),
    headers=st.dictionaries(st.sampled_from(HEADERS), st.sampled_from(TEXTS), max_size=2),
    path=st.sampled_from(
        [b"/v1/chat/completions", b"/v1/messages", b"/v1/route", b"/v1/bucket", b"/v1/tokenize"]
    ),
)
def test_nor_is_any_of_them_together(
    door: Front,
    fields: dict[str, str],
    wishes: dict[str, str],
    headers: dict[str, str | bytes],
    path: bytes,
) -> None:
    check(door.send(written(fields, wishes), headers, path))
    check_alive(door)


PROMPTS: Final = (
    *("null", "5", '""', "[]", "[[]]", "{}", '["a", 1]', '[1, "a"]', "[[1, 2], [3]]", "[[1, 1.5]]"),
    *("[-1]", "[4294967296]", "[2147483648]", "[1e300]", "[true]", "[null]", '[{"a": 1}]'),
    *("[1" + "0" * 30 + "]", "[" * 20_000 + "]" * 20_000, "[[" + "9" * 400 + "]]"),
    *('[{"role": 5, "content": {}}]', '[{"type": "message"}]', '["\\ud800"]', '["\\u0000"]'),
)
TURNS: Final = (
    *("[]", "[null]", "[[]]", "[5]", '["a"]', "[{}]", '[{"role": null}]', '[{"content": 1e999}]'),
    *('[{"role": "user", "content": [5, null, []]}]', '[{"role": 1e30, "content": true}]'),
    '[{"role": "user", "content": [{"type": "image_url", "image_url": -1e308}]}]',
    '[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": [1]}}]}]',
    '[{"role": "user", "content": [{"type": 5, "text": {"a": 1}}]}]',
    '[{"role": "assistant", "tool_calls": [{"function": {"name": 1, "arguments": "{"}}]}]',
    '[{"role": "assistant", "tool_calls": 5, "tool_call_id": [[]]}]',
    '[{"role": "user", "content": ' + "[" * 20_000 + "]" * 20_000 + "}]",
    '[{"role": "' + "x" * 100_000 + '", "content": "a"}]',
)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (b"/v1/completions", "prompt"),
        (b"/v1/embeddings", "input"),
        (b"/v1/responses", "input"),
        (b"/v1/route", "prompt"),
    ],
)
def test_no_prompt_is_an_error_of_ours(door: Front, path: bytes, field: str) -> None:
    for prompt in PROMPTS:
        check(door.send(f'{{"model": "m", "{field}": {prompt}}}'.encode(), target=path))
    check_alive(door)


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/messages", b"/v1/route"])
def test_no_conversation_is_an_error_of_ours(door: Front, path: bytes) -> None:
    for turns in TURNS:
        check(door.send(f'{{"model": "m", "messages": {turns}}}'.encode(), target=path))
        tools = f'{{"model": "m", "messages": [], "tools": {turns}, "system": {turns}}}'
        check(door.send(tools.encode(), target=path))
    check_alive(door)


NOT_UTF_8: Final = (
    *(written({}).replace(b"weather", b"wea" + bad + b"ther") for bad in (b"\xff", b"\xf0\x9f")),
    written({}).replace(b"weather", b"wea\xed\xa0\x80ther"),
    written({}).replace(b'"m"', b'"m\xff"'),
    written({}).replace(b'"role"', b'"ro\xffle"'),
    written({"user": '"a"'}).replace(b'"a"', b'"\xff"'),
    b"\xef\xbb\xbf" + written({}),
    written({}).decode().encode("utf-16"),
    written({}).decode().encode("utf-32"),
    b"\x00" * 100,
    b"\xff" * 100,
    b"",
)
ODD: Final = (
    written({"messages": '[{"role": "user", "content": "\\ud800"}]'}),
    written({"messages": '[{"role": "user", "content": "\\u0000"}]'}),
    written({}).replace(b"weather", b"wea\x00ther"),
)


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/messages"])
def test_a_body_that_is_no_utf_8_is_the_clients_mistake(door: Front, path: bytes) -> None:
    for body in NOT_UTF_8:
        answer = door.send(body, target=path)

        assert answer.status == 400, (body[:60], answer.status, answer.body[:200])
        assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
    check_alive(door)


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/route", b"/v1/tokenize"])
def test_what_only_an_engine_can_judge_is_no_error_of_ours(door: Front, path: bytes) -> None:
    """Escaped surrogates, control characters; /v1/route takes any bytes for token ids."""
    for body in (*ODD, *NOT_UTF_8):
        answer = door.send(body, target=path)

        assert answer.status in {200, 400}, (body[:60], answer.status, answer.body[:200])
    check_alive(door)


@pytest.mark.parametrize(
    "target",
    [
        *(b"/v1/models/\xff", b"/v1/models/%ff", b"/v1/models/%00", b"/v1/\xed\xa0\x80"),
        *(
            b"/v1/chat/completions?\xff",
            b"/v1/models?x=%ff%fe",
            b"/\x00",
            b"/v1/models/" + b"x" * 9000,
        ),
        *(
            b"/v1/decisions/%ff",
            b"/v1/overview?since=" + b"9" * 400,
            b"/v1/overview?decisions=1e308",
        ),
        *(b"/v1/events?since=nan", b"/v1/decisions?limit=" + b"9" * 5000, b"/metrics?x=\\ud800"),
    ],
)
def test_no_target_is_an_error_of_ours(door: Front, target: bytes) -> None:
    for method in ("GET", "POST", "PUT"):
        if target.startswith(b"/v1/events") and method == "GET":
            continue  # it never ends
        answer = door.send(b"", target=target, method=method)

        assert answer.status in FINE | {405, 414, 431}, (method, answer.status, answer.body[:200])
    check_alive(door)


REQUESTS: Final = 1500
NAMES: Final = 500
LARGE: Final = frozenset(
    {
        *("Sessions._bindings", "Sessions.updates", "Governor.updates"),
        *("ProgramTable.agents", "ProgramTable._programs", "ProgramTable._tenants"),
        *("Seats.tenants", "Seats._seats", "Seats._ends"),
        *("UsageTable._tenants", "UsageBook._open", "UsageBook._rows", "PromptKeeper._fresh_of"),
    }
)
"""What may hold more than these requests leave: tests/unit/core/test_client_tables.py fills it;
`UsageBook._open` and `_rows` are what ended since the last flush, a second or two ago,
`PromptKeeper._fresh_of` has a tenant for each of `MOST_FRESH` prompts that wait to be looked at.
"""


def test_nothing_that_clients_name_piles_up() -> None:
    """Each request has a name of its own for all that a client may name."""
    options: dict[str, Any] = {
        "decision": DecisionSettings(decision_log=64),
        "session": SessionSettings(session_affinity="soft"),
    }
    with front("router", **options) as door:
        before = containers(NAMES)

        send_names(door, REQUESTS)

        assert set(containers(NAMES)) - set(before) <= LARGE
        assert "Sessions._bindings" in containers(NAMES)
        assert len(door.get("/metrics").content) < 200_000
        check_alive(door)


def send_names(door: Front, count: int) -> None:
    """Send requests over one connection."""
    connection = HTTPConnection("127.0.0.1", door.port, timeout=20)
    for number in range(count):
        body = {
            "model": "m" if number % 2 else f"model-{number}",
            "messages": [{"role": "user", "content": f"question {number} " * 4}],
            "user": f"user-{number}",
            "cache_salt": f"salt-{number}",
            "lora_path": f"adapter-{number}",
            "kvmesh": {"session": f"session-{number}"},
        }
        headers = {
            "x-request-id": f"id-{number}",
            "x-kvmesh-tenant": f"tenant-{number}",
            "x-kvmesh-tolerations": f"taint-{number}",
        }
        if number % 7 == 0:
            headers["x-kvmesh-labels"] = f"label-{number}"
        if number % 11 == 0:
            headers["x-kvmesh-cost"] = f"cost-{number}"
        connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status in FINE
    connection.close()


def containers(least: int) -> dict[str, int]:
    """Return the containers of `least` or more that objects and modules of kvmesh hold, by name."""
    found: dict[str, int] = {}
    holders = [one for one in gc.get_objects() if str(type(one).__module__)[:7] == "kvmesh."]
    modules = [one for name, one in sys.modules.items() if name.startswith("kvmesh.")]
    for holder in (*holders, *modules):
        kind = holder.__name__ if isinstance(holder, ModuleType) else type(holder).__name__
        for name, value in attributes(holder):
            for size in sizes(value):
                if size >= least and not name.startswith("__"):
                    found[f"{kind}.{name}"] = size
    return found


def attributes(holder: object) -> list[tuple[str, object]]:
    """Return an object's attributes, those in slots, too."""
    slots = [name for kind in type(holder).__mro__ for name in getattr(kind, "__slots__", ())]
    named = [(name, getattr(holder, name, None)) for name in slots]
    return [*named, *getattr(holder, "__dict__", {}).items()]


def sizes(value: object) -> list[int]:
    """Return how many a container holds, and what each container in it does."""
    if not isinstance(value, dict | set | list | deque):
        return []
    inner = list(value.values()) if isinstance(value, dict) else list(value)
    return [len(value), *(len(one) for one in inner if isinstance(one, dict | set | list | deque))]
