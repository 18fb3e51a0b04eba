import json

import pytest

from kvmesh.errors import (
    CodecError,
    KvMeshError,
    NoWorkerError,
    RequestError,
    TransportError,
)
from kvmesh.transport.http.wire.problem import Problem, error_event


@pytest.mark.parametrize(
    ("error", "status", "kind", "param"),
    [
        (RequestError("bad", param="n"), 400, "invalid_request_error", "n"),
        (RequestError("gone", status=404), 404, "not_found_error", None),
        (RequestError("odd", status=418), 418, "invalid_request_error", None),
        (NoWorkerError("none"), 503, "overloaded_error", None),
        (NoWorkerError("who", unnamed=True), 400, "invalid_request_error", "x-kvmesh-worker-id"),
        (NoWorkerError("what", unknown_model=True), 404, "invalid_request_error", "model"),
        (NoWorkerError("w", unknown_worker=True), 404, "not_found_error", "x-kvmesh-worker-id"),
        (
            *(RequestError("what", status=404, param="model", code="model_not_found"), 404),
            *("invalid_request_error", "model"),
        ),
        (TransportError("dead"), 502, "upstream_error", None),
        (CodecError("what"), 500, "server_error", None),
    ],
)
def test_an_error_is_told_in_openais_shape(
    error: KvMeshError, status: int, kind: str, param: str | None
) -> None:
    problem = Problem.from_error(error)
    reported = json.loads(problem.body("id-1"))["error"]

    assert problem.status == status
    assert reported["message"] == str(error)
    assert reported["type"] == kind
    assert reported["param"] == param
    assert reported["request_id"] == "id-1"
    assert set(reported) == {"message", "type", "param", "code", "request_id"}


def test_an_error_in_a_stream_is_one_event() -> None:
    event = Problem(502, 'line\nbreak "quoted"', "x").event()

    assert event.startswith(b'data: {"error":{')
    assert event.endswith(b"}}\n\n")
    assert event.count(b"\n") == 2


def test_a_client_learns_when_to_come_back() -> None:
    assert Problem(429, "slow down", retry_after_s=3).headers() == ((b"retry-after", b"3"),)
    assert Problem(400, "bad").headers() == ()


def test_an_error_in_a_stream_of_anthropics_api_is_an_event_of_that_name() -> None:
    own = Problem(503, "full").event("id-1", "/v1/messages")
    theirs = b'{"type":"error","error":{"type":"api_error"}}'

    assert own.startswith(b'event: error\ndata: {"type":"error","error":{"message":"full",')
    assert error_event(theirs, "/v1/messages") == b"event: error\ndata: %b\n\n" % theirs
    assert error_event(theirs, "/v1/responses") == b"data: %b\n\n" % theirs
