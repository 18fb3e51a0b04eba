import msgspec
import pytest

from kvmesh.core.prompts.probe_request import one_token_body, tokenize_body, tokenized_ids
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
