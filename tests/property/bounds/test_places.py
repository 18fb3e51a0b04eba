"""Lists of workers that a DNS server answers, and bodies of clients that are no JSON."""

import asyncio
import os
import socket
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Any

import pytest

from kvmesh.app.mesh.discovery import Discovery, DnsSource
from kvmesh.app.picker.addresses import KEPT, Addresses
from kvmesh.core.journal.replica import MOST_WORKERS
from kvmesh.core.prompts.json_size import JsonSize
from kvmesh.transport.http.openai import parse_other
from tests.property.bounds.work import assert_linear


def answering(monkeypatch: pytest.MonkeyPatch, count: int, first: int = 0) -> None:
    """Have each name resolve to so many addresses."""
    numbers = range(first, first + count)
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (str(IPv4Address(0x0A000000 + one)), 8000))
        for one in numbers
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_named: found)


async def test_ten_times_the_addresses_are_cut_to_those_known_and_some_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    discovery = Discovery([DnsSource("engines.example", 8000)], [])
    answering(monkeypatch, MOST_WORKERS - 1, first=5 * MOST_WORKERS)
    known = {one.worker for one in await discovery.check()}

    answering(monkeypatch, 10 * MOST_WORKERS)
    found = {one.worker for one in await discovery.check()}

    assert len(known) == MOST_WORKERS - 1
    assert len(found) == MOST_WORKERS
    assert known < found


@pytest.mark.parametrize("most", [10, MOST_WORKERS])
def test_ten_times_the_addresses_cost_ten_times_as_much(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(size: int) -> Callable[[], object]:
        discovery = Discovery([DnsSource("engines.example", 8000)], [], most=most)

        def work() -> None:
            answering(monkeypatch, size)
            asyncio.run(discovery.check())

        return work

    assert_linear(make, MOST_WORKERS // 4)


async def test_of_ten_times_the_names_none_is_kept_beyond_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering(monkeypatch, 1_000)
    addresses = Addresses(lambda: 0.0, list)

    for number in range(KEPT + 10):
        addresses._keep(f"http://{number}.example:80", "10.0.0.1", 80, 0.0)
    endpoint = await addresses.resolve("http://engines.example:8000")

    assert endpoint == b"10.0.0.0:8000"
    assert len(addresses._known) < KEPT


def multipart(size: int, part: bytes) -> bytes:
    head = b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\n'
    return (head + part) * (size // len(head + part)) + b"--b--\r\n"


PARTS = {
    "many small parts": b"x\r\n",
    "one that looks like JSON": b'{"model":"a"}\r\n',
    "brackets": b"[" * 1_000,
    "quotes": b'"\\' * 500,
}


@pytest.mark.parametrize("kind", PARTS)
def test_a_multipart_body_costs_as_its_bytes_and_nothing_of_it_is_read(kind: str) -> None:
    """Audio and files: passed on, the model is the engine's to read."""

    def make(size: int) -> Callable[[], object]:
        body = multipart(size, PARTS[kind])

        def work() -> None:
            counted: Any = JsonSize()
            for at in range(0, len(body), 4_096):
                counted.feed(body[at : at + 4_096])
            assert (counted.items, counted.deepest) == (0, 0)
            assert parse_other(body)[0] == ""

        return work

    assert_linear(make, 1_000_000)


def test_a_multipart_body_behind_endless_blanks_costs_as_its_bytes() -> None:
    def make(size: int) -> Callable[[], object]:
        pieces = [b"\r\n"] * (size // 2) + [multipart(1_000, b"x"), os.urandom(1_000)]
        body = b"".join(pieces)

        def work() -> None:
            counted = JsonSize()
            for piece in pieces:
                counted.feed(piece)
            assert counted.skipped
            assert parse_other(body)[0] == ""

        return work

    assert_linear(make, 20_000)
