import pytest

from kvmesh.app.serve import response_holders
from kvmesh.app.serve.response_holders import ResponseHolders, response_of
from kvmesh.core.blocks.events import WorkerId

W1, W2 = WorkerId("w1"), WorkerId("w2")


def test_the_last_worker_that_answered_is_known() -> None:
    holders = ResponseHolders()
    holders.learn("resp_1", W1)
    holders.learn("resp_1", W2)

    assert (holders.find("resp_1"), holders.find("resp_2")) == (W2, None)


def test_of_too_many_answers_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_holders, "MOST_RESPONSES", 2)
    holders = ResponseHolders()

    for name in ("a", "b", "a", "c"):
        holders.learn(name, W1)

    assert [holders.find(name) for name in "abc"] == [W1, None, W1]


@pytest.mark.parametrize("name", ["", "../models", "x" * 129])
def test_an_id_that_no_request_can_name_takes_no_room(name: str) -> None:
    holders = ResponseHolders()
    holders.learn(name, W1)

    assert holders.find(name) is None


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/responses/resp_1", "resp_1"),
        ("/v1/responses/resp_1/cancel", "resp_1"),
        ("/v1/responses", ""),
        ("/v1/responses/", ""),
        ("/v1/other/v1/responses/resp_1", ""),
    ],
)
def test_an_answer_is_named_by_its_path(path: str, name: str) -> None:
    assert response_of(path) == name
