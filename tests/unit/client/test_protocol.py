import httpx
import msgspec
import pytest

from kvmesh.client import protocol
from kvmesh.errors import NoWorkerError, RequestError, TransportError

CHAT = {"messages": [{"role": "user", "content": "x"}]}


def respond(content: bytes, status: int = 200, **headers: str) -> httpx.Response:
    request = httpx.Request("POST", "http://front/v1/route")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, content=content, headers=named, request=request)


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("messages", "/v1/chat/completions"),
        ("prompt", "/v1/completions"),
        ("input", "/v1/responses"),
    ],
)
def test_the_field_of_the_prompt_names_the_endpoint(field: str, path: str) -> None:
    call = protocol.generate_call({field: "x"}, "", "", "")

    assert (call.method, call.path) == ("POST", path)
    assert call.headers == {"content-type": "application/json"}


def test_a_request_without_a_prompt_is_refused_with_its_fields() -> None:
    with pytest.raises(RequestError, match=r"messages, prompt, input, this has \['model'\]"):
        protocol.generate_call({"model": "mock"}, "", "", "")


def test_wishes_are_headers_and_a_stream_is_asked_for_in_the_body() -> None:
    call = protocol.stream_call(CHAT, "direct", "w1", "chat")

    assert call.headers["x-kvmesh-router-mode"] == "direct"
    assert call.headers["x-kvmesh-worker-id"] == "w1"
    assert call.headers["x-kvmesh-bucket"] == "chat"
    assert msgspec.json.decode(call.content) == {**CHAT, "stream": True}
    asked = protocol.route_call(CHAT, "chat")
    assert asked.headers["x-kvmesh-router-mode"] == "kv"
    assert asked.headers["x-kvmesh-bucket"] == "chat"


def test_a_key_is_a_bearer_token() -> None:
    assert protocol.authorization("secret") == {"authorization": "Bearer secret"}
    assert protocol.authorization("") == {}


def test_an_answer_says_where_it_came_from() -> None:
    response = respond(
        b'{"choices": [{"text": "Hi"}]}',
        x_kvmesh_worker="w1",
        x_kvmesh_overlap_blocks="7",
        x_kvmesh_router="r",
        x_kvmesh_bucket="chat",
        x_request_id="id",
    )

    answer = protocol.read_answer(response)

    assert (answer.worker_id, answer.overlap_blocks, answer.text) == ("w1", 7, "Hi")
    assert (answer.router, answer.bucket, answer.request_id) == ("r", "chat", "id")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b""])
def test_an_answer_that_is_no_object_is_the_front_doors_fault(body: bytes) -> None:
    with pytest.raises(TransportError, match="http://front/v1/route: the answer is no JSON object"):
        protocol.read_object(respond(body))


def test_only_data_lines_of_a_stream_are_chunks() -> None:
    response = respond(b"")

    lines = ["", ": comment", "event: ping", "data: [DONE]", 'data: {"a": 1}', 'data:{"b": 2}']

    assert [protocol.read_chunk(response, line) for line in lines] == [
        *(None, None, None, None),
        {"a": 1},
        {"b": 2},
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ('{"error": {"message": "cut"}}', "cut"),
        ('{"error": "odd"}', "odd"),
        ("garbage", "a chunk is no JSON object"),
    ],
)
def test_an_error_in_a_stream_is_raised(data: str, words: str) -> None:
    with pytest.raises(TransportError, match=words):
        protocol.read_chunk(respond(b""), f"data: {data}")


def test_a_refusal_keeps_its_status_and_words() -> None:
    refused = protocol.refusal(respond(b'{"error": {"message": "no such mode"}}', 400))
    busy = protocol.refusal(respond(b'{"error": {"message": "all busy"}}', 503))
    foreign = protocol.refusal(respond(b"<html>Bad gateway</html>", 502))
    odd = protocol.refusal(respond(b'{"detail": "odd"}', 404))

    assert isinstance(refused, RequestError)
    assert refused.status == 400
    assert str(refused) == "http://front/v1/route: no such mode"
    assert isinstance(busy, NoWorkerError)
    assert "Bad gateway" in str(foreign)
    assert str(odd).endswith('{"detail": "odd"}')


def test_headers_that_come_as_comments_are_told_of_the_head() -> None:
    head = protocol.Answer({}, "", 0, "", "", "r")

    for line in (
        ": waiting",
        ": x-kvmesh-worker: w0",
        ": x-kvmesh-overlap-blocks: 3",
        ": x-kvmesh-router: r0",
        ": x-kvmesh-bucket: chat",
        ": x-kvmesh-trust: exact",
        ": x-other: y",
        "x-kvmesh-worker: w9",
    ):
        head = protocol.read_late(head, line)

    assert head == protocol.Answer({}, "w0", 3, "r0", "chat", "r")
    assert protocol.read_late(head, ": x-kvmesh-overlap-blocks: many").overlap_blocks == 0
