"""A real Envoy with our configuration, in front of a picker of gRPC's own library."""

from pathlib import Path
from typing import Any

import pytest

from kvmesh.app.picker.envoy_options import Address
from tests.integration.gateway.live import gateway
from tests.integration.gateway.pretend_picker import DESTINATION

pytestmark = pytest.mark.integration

EVERY_WAY: list[dict[str, Any]] = [
    {},
    {"pick_source": "header"},
    {"destination": "original_dst"},
    {"destination": "original_dst", "pick_source": "header"},
    {"request_body": "BUFFERED", "response_body": "STREAMED"},
    {"request_body": "NONE", "response_body": "NONE"},
    {"response_body": "NONE", "response_headers": False},
]


@pytest.mark.parametrize("options", EVERY_WAY, ids=str)
async def test_picks_are_obeyed_and_bytes_arrive_in_every_mode(
    options: dict[str, Any], tmp_path: Path
) -> None:
    async with gateway(tmp_path, **options) as one:
        whole = await one.client.post("/a", content=b"x" * 100_000)
        bare = await one.client.get("/a")
        stream, expected = await one.stream(seed=3, chunks=50, trailers=True)

    assert [whole.status_code, bare.status_code] == [200, 200]
    assert whole.content == b"x" * 100_000
    assert stream == expected
    served = [whole.headers["x-served-by"], bare.headers["x-served-by"]]
    assert one.picker.picks[:2] == served


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
async def test_a_body_of_10_mb_arrives_whole(mode: str, tmp_path: Path) -> None:
    body = bytes(range(256)) * 40_000

    async with gateway(tmp_path, request_body=mode) as one:
        answer = await one.client.post("/a", content=body)

    assert answer.content == body


@pytest.mark.parametrize("fault", [{"x-drop": "yes"}, {"x-status": "503"}], ids=str)
async def test_an_endpoint_that_fails_is_followed_by_the_alternative(
    fault: dict[str, str], tmp_path: Path
) -> None:
    async with gateway(tmp_path, alternatives=2) as one:
        first, second = one.picker.endpoints[:2]
        answer = await one.client.post("/a", content=b"x", headers={**fault, "x-at": first})

    assert one.picker.picks == [f"{first},{second}"]
    assert (answer.status_code, answer.headers["x-served-by"]) == (200, second)
    assert one.picker.served == [second]


async def test_a_pick_that_envoy_does_not_know_goes_to_one_that_it_knows(tmp_path: Path) -> None:
    async with gateway(tmp_path) as one:
        known = list(one.picker.endpoints)
        one.picker.endpoints = ["192.0.2.1:8000"]
        answer = await one.client.post("/a", content=b"x")

    assert answer.headers["x-served-by"] in known
    assert one.picker.served == [answer.headers["x-served-by"]]


async def test_original_destination_takes_no_list(tmp_path: Path) -> None:
    async with gateway(tmp_path, alternatives=2, destination="original_dst") as one:
        answer = await one.client.post("/a", content=b"x")

    assert (answer.status_code, answer.text) == (503, "no healthy upstream")


async def test_a_client_cannot_say_where_it_wants_to_go(tmp_path: Path) -> None:
    wanted = {DESTINATION: "10.9.9.9:1", f"{DESTINATION}-subset": "10.9.9.9:1"}

    async with gateway(tmp_path) as one:
        stripped = await one.client.post("/a", content=b"x", headers=wanted)
    async with gateway(tmp_path, stripped=False) as other:
        shown = await other.client.post("/a", content=b"x", headers=wanted)

    assert one.picker.spoofed == []
    assert sorted(other.picker.spoofed) == sorted(wanted)
    assert [stripped.status_code, shown.status_code] == [200, 200]


@pytest.mark.parametrize("source", ["metadata", "header"])
async def test_without_a_picker_a_client_chooses_no_more(source: str, tmp_path: Path) -> None:
    async with gateway(tmp_path, pick_source=source, fail_open=True, picked=False) as one:
        wanted = {DESTINATION: str(one.endpoints[0].address)}
        answers = [await one.client.post("/a", content=b"x", headers=wanted) for _ in range(3)]

    assert len({answer.headers["x-served-by"] for answer in answers}) == 3


async def test_a_subset_reaches_the_picker(tmp_path: Path) -> None:
    async with gateway(tmp_path, subset=("10.0.0.1:1", "10.0.0.2:2")) as one:
        await one.client.post("/a", content=b"x")

    assert one.picker.subsets == [["10.0.0.1:1", "10.0.0.2:2"]]


async def test_a_refusal_reaches_the_client(tmp_path: Path) -> None:
    async with gateway(tmp_path) as one:
        one.picker.refuse_with = 429
        answer = await one.client.post("/a", content=b"x")

    assert (answer.status_code, answer.json()["error"]["message"]) == (429, "no room")


@pytest.mark.parametrize(
    ("fail_open", "status", "body"), [(True, 200, b"x"), (False, 500, b"")], ids=["open", "close"]
)
async def test_without_a_picker_the_failure_mode_decides(
    *, fail_open: bool, status: int, body: bytes, tmp_path: Path
) -> None:
    async with gateway(tmp_path, fail_open=fail_open, picked=False) as one:
        answer = await one.client.post("/a", content=b"x")

    assert (answer.status_code, answer.content) == (status, body)


async def test_pickers_are_asked_for_their_health(tmp_path: Path) -> None:
    nobody = Address("127.0.0.1", 9)

    async with gateway(tmp_path, more_pickers=(nobody,)) as one:
        await one.wait_for("cluster.pickers.membership_healthy", 1)
        answers = [await one.client.post("/a", content=b"x") for _ in range(5)]
        members = await one.server.counters("^cluster.pickers.membership_total$")

    assert {answer.status_code for answer in answers} == {200}
    assert members == {"cluster.pickers.membership_total": 2}
