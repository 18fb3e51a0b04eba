import pytest

from kvmesh.app.serve import response_holders
from kvmesh.app.serve.response_holders import ResponseHolders, home_of
from kvmesh.core.blocks.events import WorkerId
from kvmesh.transport.http.server.request import Request

W1, W2 = WorkerId("w1"), WorkerId("w2")


def test_the_last_worker_that_answered_is_known() -> None:
    holders = ResponseHolders()
    holders.learn("resp_1", W1)
    holders.learn("resp_1", W2)

    assert (holders.find("/v1/responses/resp_1"), holders.find("/v1/responses/resp_2")) == (
        W2,
        None,
    )


def test_of_too_many_answers_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_holders, "MOST_RESPONSES", 2)
    holders = ResponseHolders()

    for name in ("a", "b", "a", "c"):
        holders.learn(name, W1)

    assert [holders.find(f"/v1/responses/{name}") for name in "abc"] == [W1, None, W1]


@pytest.mark.parametrize("name", ["", "../models", "x" * 129])
def test_an_id_that_no_request_can_name_takes_no_room(name: str) -> None:
    holders = ResponseHolders()
    holders.learn(name, W1)

    assert holders.find(f"/v1/responses/{name}") is None


@pytest.mark.parametrize(
    ("method", "path", "body", "lookup"),
    [
        ("GET", "/v1/responses/resp_1", b"", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel", b"", "/v1/responses/resp_1"),
        ("GET", "/v1/files/f-1/content", b"", "/v1/files/f-1"),
        ("DELETE", "/v1/conversations/c-1", b"", "/v1/conversations/c-1"),
        ("POST", "/v1/batches", b'{"input_file_id": "f-1"}', "/v1/files/f-1"),
        ("POST", "/v1/batches", b'{"input_file_id": "../f"}', ""),
        ("POST", "/v1/batches", b"{", ""),
        ("GET", "/v1/responses", b"", ""),
        ("GET", "/v1/responses/", b"", ""),
        ("GET", "/v1/files/a%20b", b"", ""),
        ("GET", "/v1/files", b"", ""),
        ("GET", "/v1/other/v1/responses/resp_1", b"", ""),
    ],
)
def test_what_a_request_is_about_is_named_by_its_path(
    method: str, path: str, body: bytes, lookup: str
) -> None:
    assert home_of(Request(method, path.encode(), (), body)) == lookup
