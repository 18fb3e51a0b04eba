"""Tests of the scan of a body."""

from array import array

import pytest

from kvmesh._native import scan, scan_tokens
from tests.reference.prompts.body_scan import compiled_scan

SAID = b'[{"role":"user","content":"hi"}]'


def test_a_chat_is_scanned() -> None:
    scanned = scan(
        b'{"model":"a/b","messages":%b,"stream":true,"max_tokens":9,"n":1,"priority":-3,'
        b'"user":"u","cache_salt":"s","prompt_cache_key":"k","tools":[ 1],"tool_choice":null,'
        b'"add_generation_prompt":null,"temperature":0.5,"stop":[{"x":1e9}]}' % SAID,
        True,
    )

    assert scanned is not None
    assert (scanned.model, scanned.streams, scanned.limit) == ("a/b", True, 9)
    assert (scanned.urgency, scanned.salt, scanned.cache_key) == (3, "s", "k")
    assert (scanned.messages, scanned.prompt, scanned.bare) == ([("user", "hi")], None, False)


def test_a_completion_is_scanned() -> None:
    text = scan(b' {"prompt" : "a\\u00e9" } ', False)

    assert text is not None
    assert (text.prompt, text.messages, text.bare) == ("a\u00e9", None, False)
    assert (text.model, text.streams, text.limit) == ("", False, 0)


@pytest.mark.parametrize(
    "body", [b'{"prompt":[1,2]}', b'{"input":"a"}', b'{"prompt":"a","n":2}', b'{"prompt":null}']
)
def test_what_is_no_prompt_of_one_text_is_left(body: bytes) -> None:
    assert scan(body, False) is None


def test_of_a_key_that_comes_twice_the_last_counts() -> None:
    scanned = scan(
        b'{"prompt":"","model":"a","n":3,"model":"b","n":null,"max_tokens":1,"max_tokens":2}', False
    )

    assert scanned is not None
    assert (scanned.model, scanned.limit) == ("b", 2)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"a":1}}',
        b'{"a":1,}',
        b'{"model":1}',
        b'{"model":"%b"}' % (b"m" * 513),
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b'{"a":"\\ud800\\ud800"}',
        b'{"a":"\xf4\x90\x80\x80"}',
        b'{"n":0}',
        b'{"max_tokens":-1}',
        b'{"messages":{}}',
        b'{"messages":null}',
        b'{"messages":[]}',
        b'{"messages":[1]}',
        b'{"messages":[{"x":1e999}]}',
        b'{"kvmesh":{}}',
        b'{"lora_path":["a"]}',
        b'{"prompt_cache_key":7}',
        b'{"nvext":{}}',
        b'{"extra_key":"a"}',
    ],
)
def test_what_is_wrong_or_unusual_is_left_to_the_strict_parser(body: bytes) -> None:
    for asked in (body, body.replace(b"{", b'{"prompt":"",', 1)):
        assert compiled_scan(asked) is None


def test_the_ids_of_a_chat_are_its_bytes_and_markers() -> None:
    ids = scan_tokens(b'{"messages":[{"role":"user","content":"h\\u00e9"}]}')

    assert ids == array("I", [262, 0x68, 0xC3, 0xA9, 257, 263]).tobytes()


def test_the_ids_of_a_text_prompt_are_its_bytes() -> None:
    assert scan_tokens(b'{"prompt":"a\\n"}') == array("I", [97, 10]).tobytes()


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"model":"m"}',
        b'{"prompt":[1]}',
        b'{"messages":[{"role":1}]}',
        b'{"messages":[{"content":[{"type":"image_url"}]}]}',
        b'{"messages":[{"role":"user"}],"tools":[1]}',
        b'{"messages":[{"role":"user"}],"tools":{}}',
        b'{"messages":[{"role":"user"}],"add_generation_prompt":null}',
    ],
)
def test_what_the_byte_tokenizer_must_look_at_has_no_ids(body: bytes) -> None:
    assert scan_tokens(body) is None


def test_messages_are_pairs_of_role_and_content() -> None:
    body = b'{"messages":[{"role":"system","content":"\\"a\\""},{"content":"\xc3\xa9","role":"x"}]}'

    scanned = scan(body, True)

    assert scanned is not None
    assert scanned.messages == [("system", '"a"'), ("x", "\u00e9")]


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"role":"user"}]}',
        b'{"messages":[{"role":"user","content":null}]}',
        b'{"messages":[{"role":null,"content":"a"}]}',
        b'{"messages":[{"role":"user","content":"a","name":"b"}]}',
    ],
)
def test_messages_of_more_or_less_are_no_pairs(body: bytes) -> None:
    scanned = scan(body, True)

    assert scanned is not None
    assert scanned.messages is None
