import msgspec
import pytest

from kvmesh.core.chat.media import Sent
from kvmesh.core.prompts.media_tokens import Told
from kvmesh.core.prompts.probe_request import (
    media_question,
    media_told,
    one_token_body,
    tokenize_body,
    tokenized_ids,
)
from kvmesh.errors import CodecError


def test_a_probe_asks_for_one_token_of_the_same_prompt() -> None:
    sent = b"""{"model":"m","messages":[{"role":"user","content":"\\u00e9"}],"tools":[],
        "stream":true,
        "stream_options":{"include_usage":true},"max_completion_tokens":99,"min_tokens":9,"n":4,
        "best_of":4,"logprobs":true,"kvmesh":{"worker":"w"},"temperature":0.5,"cache_salt":"s"}"""

    probe = msgspec.json.decode(one_token_body(sent))

    assert probe == {
        "model": "m",
        "messages": [{"role": "user", "content": "é"}],
        "tools": [],
        "temperature": 0.5,
        "cache_salt": "s",
        "return_token_ids": True,
        "stream": False,
        "max_tokens": 1,
        "n": 1,
    }
    assert b'"\\u00e9"' in one_token_body(sent)


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'{"a":1'])
def test_what_is_no_object_is_not_asked(body: bytes) -> None:
    with pytest.raises(CodecError):
        one_token_body(body)


def test_tokenize_is_asked_for_the_first_messages_without_an_answer_begun() -> None:
    fields = {"model": b'"m"', "tools": b"[1]", "chat_template_kwargs": b"", "n": b"3"}
    raws = {name: msgspec.Raw(value) for name, value in fields.items()}

    body = tokenize_body(raws, [msgspec.Raw(b'{"role":"user"}')])

    assert msgspec.json.decode(body) == {
        "model": "m",
        "tools": [1],
        "messages": [{"role": "user"}],
        "add_generation_prompt": False,
    }


def test_the_ids_of_an_answer_or_none() -> None:
    assert tokenized_ids(b'{"count":2,"tokens":[1,2]}') == [1, 2]
    assert tokenized_ids(b'{"detail":"Not Found"}') is None
    assert tokenized_ids(b"\xff") is None
    assert tokenized_ids(b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}") is None


IMAGE = msgspec.Raw(b'{"url":"data:image/png;base64,AAAA"}')
SOURCE = msgspec.Raw(b'{"media_type":"image/png","data":"AAAA"}')


def test_media_are_asked_about_alone_and_by_the_name_that_they_were_sent() -> None:
    path, body = media_question("m", Sent("n", "image_url", IMAGE))

    part = {"type": "image_url", "image_url": msgspec.json.decode(IMAGE), "uuid": "n"}
    messages = [{"role": "user", "content": [part]}]
    told = {"model": "m", "messages": messages, "add_generation_prompt": False}
    assert (path, msgspec.json.decode(body)) == ("/tokenize", told)


def test_what_was_sent_without_a_name_is_rendered_without_its_tensors() -> None:
    path, body = media_question("m", Sent("n", "image", SOURCE))

    asked = msgspec.json.decode(body)
    assert path == "/v1/chat/completions/render"
    assert asked["mm_payload"] == "none"
    assert asked["messages"][0]["content"] == [
        {"type": "image_url", "image_url": msgspec.json.decode(IMAGE)}
    ]


def test_an_engine_tells_tokens_and_names() -> None:
    rendered = b'{"token_ids":[1,2],"features":{"mm_hashes":{"image":["own"]},"x":1}}'

    assert media_told(b'{"tokens":[1,2]}', Sent("n", "image_url", IMAGE)) == Told([1, 2])
    assert media_told(rendered, Sent("n", "image", SOURCE)) == Told([1, 2], "own")
    assert media_told(b"{}", Sent("n", "image_url", IMAGE)) == Told(())


@pytest.mark.parametrize(
    "features",
    [
        b"null",
        b'{"mm_hashes":{}}',
        b'{"mm_hashes":{"image":["a","b"]}}',
        b'{"mm_hashes":{"image":["a"],"video":["b"]}}',
        b'{"mm_hashes":{"image":[""]}}',
        b'{"mm_hashes":{"image":["a\\nb"]}}',
        b'{"mm_hashes":{"image":["' + b"a" * 257 + b'"]}}',
    ],
)
def test_a_name_that_is_none_teaches_nothing(features: bytes) -> None:
    answer = b'{"token_ids":[1,2],"features":%b}' % features

    assert media_told(answer, Sent("n", "image", SOURCE)) == Told(())
