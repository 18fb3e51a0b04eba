"""Tests of the scan of a body."""

import pytest

from kvmesh._native import scan_tokens
from tests.reference.prompts.body_scan import compiled_scan

SAID = b'[{"role":"user","content":"hi"}]'


def test_a_chat_is_scanned() -> None:
    scanned = compiled_scan(
        b'{"model":"a/b","messages":%b,"stream":true,"max_tokens":9,"n":2,"priority":-3,'
        b'"user":"u","cache_salt":"s","lora_path":"l","prompt_cache_key":"k",'
        b'"tools":[ 1],"tool_choice":null,'
        b'"add_generation_prompt":null,"temperature":0.5,"stop":[{"x":1e9}]}' % SAID
    )

    assert scanned is not None
    assert (scanned.model, scanned.stream, scanned.limit) == ("a/b", True, 9)
    assert (scanned.choices, scanned.urgency) == (2, 3)
    assert (scanned.user, scanned.cache_salt, scanned.lora_path) == ("u", "s", "l")
    assert scanned.prompt_cache_key == "k"
    assert (scanned.messages, scanned.message_count) == (SAID, 1)
    assert (scanned.tools, scanned.tool_choice) == (b"[ 1]", None)
    assert (scanned.add_generation_prompt, scanned.continue_final_message) == (b"null", None)
    assert (scanned.prompt, scanned.prompt_value, scanned.input) == (None, None, None)


def test_a_completion_is_scanned() -> None:
    text = compiled_scan(b' {"prompt" : "a\\u00e9" } ')
    ids = compiled_scan(b'{"prompt":[1,2]}')

    assert text is not None
    assert ids is not None
    assert (text.prompt, text.prompt_value) == ("a\u00e9", b'"a\\u00e9"')
    assert (ids.prompt, ids.prompt_value, ids.messages) == (None, b"[1,2]", None)
    assert (ids.model, ids.stream, ids.limit, ids.choices) == (None, False, None, 1)


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
    ],
)
def test_what_is_wrong_or_unusual_is_left_to_the_strict_parser(body: bytes) -> None:
    assert compiled_scan(body) is None


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
