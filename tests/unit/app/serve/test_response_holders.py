import asyncio

import pytest

from kvmesh.app.serve import response_holders
from kvmesh.app.serve.response_holders import ResponseHolders, homes_of
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.routing.kept_ids import KeptIds
from kvmesh.transport.http.server.request import Request

W1, W2 = WorkerId("w1"), WorkerId("w2")
RESPONSES = "/v1/responses"
ANOTHERS = "/v1/files/"
"""What nobody owns."""


def test_the_last_worker_that_answered_is_known() -> None:
    holders = ResponseHolders(KeptIds())
    holders.made(RESPONSES, "resp_1", "", W1)
    holders.made(RESPONSES, "resp_1", "", W2)

    assert (holders.find("/v1/responses/resp_1"), holders.find("/v1/responses/resp_2")) == (
        W2,
        None,
    )


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (RESPONSES, ""),
        (RESPONSES, "../models"),
        (RESPONSES, "x" * 129),
        ("/v1/chat/completions", "resp_1"),
    ],
)
def test_an_id_that_no_request_can_name_takes_no_room(path: str, name: str) -> None:
    holders = ResponseHolders(KeptIds())
    holders.made(path, name, "", W1)

    assert len(holders.ids) == 0


async def test_news_of_a_sibling_are_awaited_a_while_where_there_may_be_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(response_holders, "TOLD_S", 0.05)
    alone, holders = ResponseHolders(KeptIds()), ResponseHolders(KeptIds())
    holders.ids.on_news = lambda: None
    lookup = "/v1/files/f-1"
    never = await alone.wait_owned("a", lookup), await holders.wait_owned("a", lookup)
    waiting = asyncio.ensure_future(holders.wait_owned("a", lookup))
    await asyncio.sleep(0)
    holders.made("/v1/files", "f-1", "a", W1)

    assert (never, await waiting) == ((False, False), True)
    assert holders.is_foreign("b", lookup)
    assert not holders.is_foreign("b", "/v1/files/f-2")


@pytest.mark.parametrize(
    ("method", "path", "body", "lookups"),
    [
        ("GET", "/v1/responses/resp_1", b"", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel", b"", "/v1/responses/resp_1"),
        ("GET", "/v1/files/f-1/content", b"", "/v1/files/f-1"),
        ("DELETE", "/v1/conversations/c-1", b"", "/v1/conversations/c-1"),
        ("POST", "/v1/batches", b'{"input_file_id": "f-1"}', "/v1/files/f-1"),
        (
            "POST",
            "/v1/vector_stores",
            b'{"file_ids": ["f-1", "f.2"]}',
            "/v1/files/f-1 /v1/files/",
        ),
        ("POST", "/v1/batches", b'{"input_file_id": "../f"}', ANOTHERS),
        ("POST", "/v1/batches", b'{"input_file_id": "f-1", "file_ids": 5}', ANOTHERS),
        ("POST", "/v1/batches", b"{", ANOTHERS),
        ("POST", "/v1/batches", b"{}", ""),
        ("GET", "/v1/responses", b"", ""),
        ("GET", "/v1/responses/", b"", ""),
        ("GET", "/v1/files/a%20b", b"", ANOTHERS),
        ("GET", "/v1/files", b"", ""),
        ("GET", "/v1/other/v1/responses/resp_1", b"", ""),
    ],
)
def test_what_a_request_is_about_is_named_by_its_path(
    method: str, path: str, body: bytes, lookups: str
) -> None:
    assert homes_of(Request(method, path.encode(), (), body)) == tuple(lookups.split())
