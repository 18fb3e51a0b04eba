"""Keys are looked up once, and whatever else a request says is read each time."""

import time
from base64 import b64encode
from pathlib import Path

import pytest

from kvmesh.app.front import key_guard
from kvmesh.app.front.key_guard import CHECK_S, KeyGuard, is_told_alone
from kvmesh.core.admission.api_keys import digest_of
from kvmesh.core.admission.usage_limits import UsageLimits
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.server.scope import Scope
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

ANN = (b"authorization", b"Bearer ann-key")
CHAT = "/v1/chat/completions"


class Asked:
    """An exchange: what is answered is kept."""

    silent_s = 0.0
    request_id = b"r1"

    def __init__(self, request: Request) -> None:
        self.request = request
        self.scope = Scope(self.request_id, lambda *_: None)
        self.status = 0
        self.added = b""

    def respond(
        self, status: int, body: bytes, *, content_type: bytes = b"", headers: Headers = ()
    ) -> None:
        del body, content_type, headers
        self.status = status

    def fail(self, problem: Problem, headers: Headers = ()) -> None:
        del headers
        self.status = problem.status


class Door:
    """A guard of keys that are in a file, and what came through it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "keys.toml"
        self.passed: list[Request] = []
        self.write("ann", "bob")
        self.guard: KeyGuard[Asked] = KeyGuard(
            self.pass_on, self.path, tenant_header="x-kvmesh-tenant", pass_on=False, sessions=b""
        )

    def write(self, *names: str, more: str = "") -> None:
        self.path.write_text(
            "".join(
                f'[keys.{one}]\nsha256 = "{digest_of(f"{one}-key")}"\nroles = ["infer"]\n{more}'
                for one in names
            )
        )

    def pass_on(self, asked: Asked) -> None:
        self.passed.append(asked.request)

    def ask(self, *headers: tuple[bytes, bytes], path: str = CHAT, method: str = "POST") -> int:
        asked = Asked(Request(method, path.encode(), headers))
        self.guard(asked)
        return asked.status


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


def test_a_key_is_known_again_and_its_request_stands_for_its_tenant(door: Door) -> None:
    for _ in range(3):
        assert door.ask(ANN, (b"x-kvmesh-tenant", b"bob"), (b"x-foo", b"1")) == 0

    assert len(door.passed) == 3
    for one in door.passed:
        assert list(one.headers) == [
            (b"x-foo", b"1"),
            (b"x-kvmesh-tenant", b"ann"),
            (b"x-kvmesh-roles", b"infer"),
            (b"x-kvmesh-key", b"ann"),
        ]


def test_what_a_key_may_have_of_one_path_says_nothing_of_another(door: Door) -> None:
    assert [door.ask(ANN), door.ask(ANN, path="/metrics"), door.ask(ANN)] == [0, 403, 0]
    assert door.ask(ANN, path="/metrics") == 403


def test_a_key_in_one_header_is_none_in_another(door: Door) -> None:
    assert door.ask((b"x-api-key", b"ann-key")) == 0
    assert door.ask((b"authorization", b"ann-key")) == 401
    assert door.ask((b"x-api-key", b"Bearer ann-key")) == 401
    assert [door.ask(ANN, (b"x-api-key", b"no")), door.ask((b"x-api-key", b"no"))] == [0, 401]


def test_a_key_that_the_file_has_no_more_is_not_known_again(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert door.ask(ANN) == 0
    door.write("bob", more="# another size\n")
    later = time.monotonic() + 2 * CHECK_S
    monkeypatch.setattr(time, "monotonic", lambda: later)

    assert door.ask(ANN) == 401


def test_each_request_of_a_known_key_is_spent(door: Door) -> None:
    door.write("ann", more="requests_per_minute = 2\n")
    guard: KeyGuard[Asked] = KeyGuard(
        door.pass_on, door.path, tenant_header="", pass_on=True, sessions=None
    )
    asked = [Asked(Request("POST", CHAT.encode(), [ANN])) for _ in range(3)]
    for one in asked:
        guard(one)

    assert [one.status for one in asked] == [0, 0, 429]


def test_no_more_keys_are_kept_than_so_many(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_guard, "MOST_ADMITTED", 2)
    paths = [f"/v1/models/m{number}" for number in range(5)]

    assert [door.ask(ANN, path=path, method="GET") for path in paths * 2] == [0] * 10


@pytest.mark.parametrize(
    ("headers", "alone"),
    [
        ([ANN], True),
        ([(b"x-api-key", b"k")], True),
        ([(b"authorization", b"bearer  k")], True),
        ([(b"authorization", b"Bearer ")], False),
        ([(b"authorization", b"Bearer "), (b"x-api-key", b"k")], False),
        ([(b"authorization", b"Basic " + b64encode(b"u:k"))], False),
        ([(b"authorization", b"Token t"), (b"x-api-key", b"k")], False),
        ([(b"x-api-key", b" ")], False),
        ([(b"cookie", b"a=b")], False),
        ([], False),
    ],
)
def test_a_key_is_kept_that_one_header_tells(headers: Headers, alone: bool) -> None:
    assert is_told_alone(Request("GET", b"/v1/models", headers)) is alone


def test_answers_tell_the_limits_of_their_key_and_requests_pay_until_they_end(door: Door) -> None:
    door.write("ann", more="requests_per_minute = 2\ntokens_per_minute = 600\n")
    limits = UsageLimits()
    guard: KeyGuard[Asked] = KeyGuard(
        door.pass_on, door.path, tenant_header="t", pass_on=False, limits=limits
    )
    asked = [Asked(Request("POST", CHAT.encode(), [ANN], b"x" * 400, CHAT)) for _ in range(3)]
    for one in asked:
        guard(one)

    assert [one.status for one in asked] == [0, 0, 429]
    assert [one.added.count(b"x-ratelimit-") for one in asked] == [6, 6, 6]
    assert b"x-ratelimit-remaining-tokens: 400\r\n" in asked[1].added
    assert limits.take_ended() == []
    asked[0].scope.end()
    ((account, tokens, size),) = limits.take_ended()
    assert (account.name, tokens, size) == ("key:ann", 100, 400)


def test_a_proxys_request_pays_for_the_key_and_tenant_that_it_names(door: Door) -> None:
    door.write("meta", more="proxy = true\n")
    door.path.write_text(
        door.path.read_text().replace('roles = ["infer"]', "")
        + "[tenants.kitchen]\nrequests_per_minute = 1\n"
    )
    guard: KeyGuard[Asked] = KeyGuard(
        door.pass_on, door.path, tenant_header="x-kvmesh-tenant", pass_on=False
    )
    meta = (b"authorization", b"Bearer meta-key")

    def ask(*headers: tuple[bytes, bytes]) -> int:
        one = Asked(Request("POST", CHAT.encode(), (meta, *headers)))
        guard(one)
        return one.status

    kitchen, cellar = (b"x-kvmesh-tenant", b"kitchen"), (b"x-kvmesh-tenant", b"cellar")
    assert [ask(kitchen), ask(cellar), ask(kitchen), ask()] == [0, 0, 429, 0]
    ask((b"x-kvmesh-key", b"ann"))
    named = [dict(one.headers)[b"x-kvmesh-key"] for one in door.passed]
    assert named == [b"meta", b"meta", b"meta", b"ann"]


def test_limits_are_read_anew_with_the_keys(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [door.ask(ANN) for _ in range(2)] == [0, 0]
    door.write("ann", more="requests_per_minute = 1\n")
    later = time.monotonic() + 2 * CHECK_S
    monkeypatch.setattr(time, "monotonic", lambda: later)

    assert [door.ask(ANN) for _ in range(2)] == [0, 429]


def residency(asked: Request) -> list[bytes]:
    return [value for name, value in asked.headers if name == b"x-kvmesh-residency"]


def test_where_data_stays_is_of_the_key_whatever_its_client_says(door: Door) -> None:
    door.write("ann", more='residency = ["eu", "ch"]\n')
    door.guard = KeyGuard(
        door.pass_on, door.path, tenant_header="x-kvmesh-tenant", pass_on=False, sessions=b""
    )

    assert door.ask(ANN, (b"x-kvmesh-residency", b"us")) == 0
    assert door.ask(ANN) == 0
    assert [residency(one) for one in door.passed] == [[b"eu,ch"], [b"eu,ch"]]


@pytest.mark.parametrize(
    ("of_key", "said", "told"),
    [("", "", []), ("", "us", [b"us"]), ('residency = ["eu"]\n', "us", [b"eu"])],
)
def test_a_proxy_may_say_where_data_stays_unless_its_key_does(
    door: Door, of_key: str, said: str, told: list[bytes]
) -> None:
    door.write("ann", more=f"proxy = true\n{of_key}")
    door.guard = KeyGuard(
        door.pass_on, door.path, tenant_header="x-kvmesh-tenant", pass_on=False, sessions=b""
    )

    assert door.ask(ANN, *([(b"x-kvmesh-residency", said.encode())] if said else [])) == 0

    assert residency(door.passed[0]) == told


def test_a_proxy_that_says_it_twice_is_refused(door: Door) -> None:
    door.write("ann", more="proxy = true\n")
    door.guard = KeyGuard(
        door.pass_on, door.path, tenant_header="x-kvmesh-tenant", pass_on=False, sessions=b""
    )

    assert door.ask(ANN, (b"x-kvmesh-residency", b"us"), (b"x-kvmesh-residency", b"eu")) == 400
