import gzip

import msgspec
import pytest

from kvmesh.core.admission.access import role_for
from kvmesh.core.chat.inference import Extension
from kvmesh.errors import RequestError
from kvmesh.transport.http.openai import (
    ENDPOINTS,
    OTHERS,
    ApiEndpoint,
    find_endpoint,
    first_prompt,
    form_model,
    may_repeat,
    parse_request,
    query_model,
    read_request,
)
from kvmesh.transport.http.server.request import Request

CHAT = ENDPOINTS["/v1/chat/completions"]
COMPLETIONS = ENDPOINTS["/v1/completions"]
EMBEDDINGS = ENDPOINTS["/v1/embeddings"]


@pytest.mark.parametrize("path", sorted(ENDPOINTS))
def test_every_endpoint_is_found_by_its_path(path: str) -> None:
    endpoint = ENDPOINTS[path]

    for method in endpoint.methods:
        assert find_endpoint(method, path, passthrough=False) is endpoint


def test_other_paths_pass_only_by_policy() -> None:
    assert find_endpoint("PATCH", "/v1/rerank", passthrough=True).kind == "passthrough"
    with pytest.raises(RequestError, match="nothing at /v1/rerank") as caught:
        find_endpoint("POST", "/v1/rerank", passthrough=False)
    assert caught.value.status == 404
    with pytest.raises(RequestError) as caught:
        find_endpoint("POST", "/admin", passthrough=True)
    assert caught.value.status == 404


@pytest.mark.parametrize("path", sorted(OTHERS))
def test_what_engines_serve_outside_v1_passes_by_policy_and_asks_for_the_role_infer(
    path: str,
) -> None:
    endpoint = OTHERS[path]

    for method in endpoint.methods:
        assert find_endpoint(method, path, passthrough=True) is endpoint
    with pytest.raises(RequestError, match=f"nothing at {path}"):
        find_endpoint("POST", path, passthrough=False)
    with pytest.raises(RequestError, match="not DELETE"):
        find_endpoint("DELETE", path, passthrough=True)
    assert role_for(path) == "infer"


@pytest.mark.parametrize("path", ["/sleep", "/flush_cache", "/reset_prefix_cache", "/rerank/x"])
def test_paths_that_change_an_engine_do_not_pass(path: str) -> None:
    with pytest.raises(RequestError, match=f"nothing at {path}"):
        find_endpoint("POST", path, passthrough=True)


def test_a_wrong_method_is_told_the_right_one() -> None:
    with pytest.raises(RequestError, match="takes POST, not GET") as caught:
        find_endpoint("GET", "/v1/completions", passthrough=True)
    assert caught.value.status == 405


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../admin",
        "/v1//admin",
        "/v1/./x",
        "/v1/%2E%2e/admin",
        "/v1/a%2fb",
        "/v1/a\\b",
        "/v1/x/..",
        "/v1/models/../../admin",
    ],
)
def test_a_path_two_servers_could_read_differently_is_refused(path: str) -> None:
    with pytest.raises(RequestError, match="ambiguous"):
        find_endpoint("GET", path, passthrough=True)


def test_a_chat_request_gives_what_routing_needs() -> None:
    body = (
        b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}],"n":2,'
        b'"max_tokens":10,"max_completion_tokens":20,"user":"u","tools":[1],"cache_salt":"s",'
        b'"kvmesh":{"worker":"w","priority":3},"temperature":0.5}'
    )

    request = parse_request(body, CHAT)

    assert (request.model, request.stream, request.user, request.cache_salt) == (
        "m",
        True,
        "u",
        "s",
    )
    assert bytes(request.messages) == b'[{"role":"user","content":"hi"}]'
    assert bytes(request.tools) == b"[1]"
    assert request.output_limit == 20
    assert request.n == 2
    assert request.kvmesh == Extension(worker="w", priority=3)


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        (CHAT, b'{"model":"m"}', "messages"),
        (CHAT, b'{"messages":null}', "messages"),
        (CHAT, b'{"messages":"hi"}', "messages"),
        (CHAT, b'{"messages":[],"stream":"yes"}', "stream"),
        (CHAT, b'{"messages":[],"max_tokens":"many"}', "max_tokens"),
        (CHAT, b'{"messages":[],"max_tokens":-1}', "max_tokens"),
        (CHAT, b'{"messages":[],"n":0}', "n"),
        (CHAT, b'{"messages":[],"model":1}', "model"),
        (CHAT, b'{"messages":[],"kvmesh":{"priority":"high"}}', "kvmesh"),
        (CHAT, b'{"messages":[],"kvmesh":{"wroker":"w"}}', "kvmesh"),
        (CHAT, b'{"messages":[],"lora_path":[1]}', "lora_path"),
        (COMPLETIONS, b"{}", "prompt"),
        (EMBEDDINGS, b'{"model":"m"}', "input"),
        (CHAT, b"[]", None),
        (CHAT, b"", None),
        (CHAT, b"{", None),
        (CHAT, b'{"messages":[1],"x":nul}', None),
        (CHAT, b'{"model":"\xff"}', None),
        (CHAT, b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
    ],
)
def test_a_bad_request_is_refused_with_the_field_named(
    endpoint: ApiEndpoint, body: bytes, param: str | None
) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(body, endpoint)

    assert caught.value.status == 400
    assert caught.value.param == param
    assert param is None or param in str(caught.value)


def test_an_endpoint_without_a_prompt_needs_none() -> None:
    assert parse_request(b'{"model":"m"}', ENDPOINTS["/v1/models"]).model == "m"


@pytest.mark.parametrize(
    ("prompt", "first"),
    [
        (b'"text"', "text"),
        (b"[1,2,3]", [1, 2, 3]),
        (b"[[1,2],[3]]", [1, 2]),
        (b'["a","b"]', "a"),
    ],
)
def test_a_batch_is_routed_by_its_first_prompt(prompt: bytes, first: str | list[int]) -> None:
    assert first_prompt(msgspec.Raw(prompt)) == first


@pytest.mark.parametrize("prompt", [b"[]", b"{}", b"[true]", b"3", b"[1.5]", b""])
def test_what_is_no_prompt_is_refused(prompt: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        first_prompt(msgspec.Raw(prompt))

    assert caught.value.param == "prompt"


def test_a_compressed_body_is_told_to_come_uncompressed() -> None:
    body = b'{"messages":[]}'
    packed = Request("POST", b"/v1/chat/completions", [(b"content-encoding", b"gzip")])
    packed.body = gzip.compress(body)
    broken = Request("POST", b"/v1/chat/completions", [(b"content-encoding", b"Identity")])
    broken.body = b"{"
    plain = Request("POST", b"/v1/chat/completions", [])
    plain.body = body

    with pytest.raises(RequestError, match="content-encoding gzip") as caught:
        read_request(packed, CHAT)
    with pytest.raises(RequestError, match="not valid JSON"):
        read_request(broken, CHAT)
    assert caught.value.status == 415
    assert bytes(read_request(plain, CHAT).messages) == b"[]"


@pytest.mark.parametrize("bad", [b"\xff", b"\xed\xa0\x80", b"\xf0\x9f", b"\xc0\x80"])
@pytest.mark.parametrize("before", [0, 65_530, 65_536, 200_000])
def test_bytes_that_are_no_utf_8_are_refused_wherever_they_stand(bad: bytes, before: int) -> None:
    content = b"x" * before + bad + b"y"
    message = b'[{"role":"user","content":"%b"}]'

    for body in (
        b'{"messages":' + message % content + b"}",
        b'{"messages":[],"unknown":"' + content + b'"}',
    ):
        with pytest.raises(RequestError, match=r"the body is not valid JSON: .*utf-8") as caught:
            parse_request(body, CHAT)
        assert caught.value.status == 400


@pytest.mark.parametrize(
    ("method", "path", "body", "may"),
    [
        ("POST", "/v1/chat/completions", b'{"background":true}', True),
        ("POST", "/v1/responses", b'{"input":"x"}', True),
        ("POST", "/v1/responses", b'{"input":"x","background":true}', False),
        ("POST", "/rerank", b"{}", True),
        ("POST", "/v1/batches", b"{}", False),
        ("GET", "/v1/batches/b1", b"", True),
        ("DELETE", "/v1/files/f1", b"", False),
    ],
)
def test_what_only_infers_may_be_sent_again(
    method: str, path: str, body: bytes, *, may: bool
) -> None:
    request = Request(method, path.encode(), ())
    request.replace_body(body)

    assert may_repeat(request) is may


FORM = b"multipart/form-data; boundary=x"
MODEL = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n%s\r\n'
FILE = b'--x\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\n%s\r\n'


@pytest.mark.parametrize(
    ("body", "content_type", "model"),
    [
        (MODEL % b"tiny" + b"--x--\r\n", FORM, "tiny"),
        (MODEL % b"tiny" + b"--x--\r\n", b'multipart/form-data; boundary="x"', "tiny"),
        (FILE % b"sound" + MODEL % b"tiny" + b"--x--", FORM, "tiny"),
        (FILE % (b"s" * 300_000) + MODEL % b"tiny" + b"--x--", FORM, "tiny"),
        (MODEL % b"tiny" + FILE % (b"s" * 300_000) + b"--x--", FORM, "tiny"),
        (
            FILE % (b"s" * 65_000) + MODEL % b"tiny" + FILE % (b"s" * 65_000) + b"--x--",
            FORM,
            "tiny",
        ),
        (FILE % (MODEL % b"tiny").removeprefix(b"--x") + b"--x--", FORM, ""),
        (MODEL % (b"n" * 10_000) + b"--x--", FORM, ""),
        (MODEL % b"tiny" + b"--x--", b"multipart/form-data", ""),
        (MODEL % b"tiny", b"application/json", ""),
        (b"", FORM, ""),
        (b"--x" * 50_000, FORM, ""),
    ],
)
def test_a_form_names_its_model_wherever_it_stands(
    body: bytes, content_type: bytes, model: str
) -> None:
    assert form_model(body, content_type) == model


@pytest.mark.parametrize(
    ("query", "model"),
    [
        ("", ""),
        ("a=b&model=tiny", "tiny"),
        ("model=", ""),
        ("xmodel=tiny", ""),
    ],
)
def test_a_query_names_its_model(query: str, model: str) -> None:
    assert query_model(query) == model


@pytest.mark.parametrize("name", ["n" * 9999, "a%00b"])
def test_a_query_whose_model_is_no_name_is_an_error_that_shows_it(name: str) -> None:
    with pytest.raises(RequestError, match="model of the query is"):
        query_model(f"a=b&model={name}")
