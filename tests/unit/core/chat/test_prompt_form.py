import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.hashing import pack_tokens
from kvmesh.core.chat.inference import InferenceRequest, decode_request
from kvmesh.core.chat.prompt_form import (
    PLAIN,
    PromptForm,
    any_form,
    keep_tokens,
    whole_number,
)

AFFIXES = (bytes(pack_tokens([7])), bytes(pack_tokens([8, 9])))


def asked(fields: str) -> InferenceRequest:
    return decode_request(f"{{{fields}}}".encode())


@pytest.mark.parametrize(
    ("fields", "unforeseen"),
    [
        ("", ""),
        ('"n":1,"best_of":1,"echo":false,"use_beam_search":null', ""),
        ('"n":2', "siblings"),
        ('"best_of":3', "siblings"),
        ('"best_of":"x"', ""),
        ('"use_beam_search":true', "siblings"),
        ('"prompt_embeds":"AA"', "embeds"),
        ('"previous_response_id":"r"', "stored"),
        ('"chat_template":"x"', "template"),
        ('"prompt_logprobs":0', "logprobs"),
        ('"echo":true', "logprobs"),
        ('"truncate_prompt_tokens":3', "truncated"),
        ('"add_special_tokens":false', "rendering"),
    ],
)
def test_of_an_unknown_engine_nothing_unusual_is_foretold(fields: str, unforeseen: str) -> None:
    assert any_form(asked(fields), "completions") == PromptForm(unforeseen)  # type: ignore[arg-type]


def test_other_apis_are_rendered_in_ways_not_known() -> None:
    assert any_form(asked(""), "messages").unforeseen == "rendering"
    assert any_form(asked(""), "responses").unforeseen == "rendering"
    assert any_form(asked(""), "chat") == PLAIN


@pytest.mark.parametrize(
    ("raw", "number"),
    [(b"3", 3), (b"-1", -1), (b"-2", None), (b"1e30", None), (b"null", None), (b"9" * 30, None)],
)
def test_numbers_beyond_bounds_are_none(raw: bytes, number: int | None) -> None:
    assert whole_number(msgspec.Raw(raw)) == number


@given(
    st.lists(st.integers(0, 99), max_size=12),
    st.integers(0, 14),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_tokens_are_kept_as_slices_keep_them(
    ids: list[int], keep: int, keeps_end: bool, exactly: bool, around: bool
) -> None:
    form = PromptForm(keep=keep, keeps_end=keeps_end, exactly=exactly)
    head, tail = ([7], [8, 9]) if around else ([], [])
    whole = [*head, *ids, *tail]

    kept = keep_tokens(bytes(pack_tokens(whole)), AFFIXES if around else (b"", b""), form)

    expected = whole
    if len(whole) > keep:
        inner, most = (whole, keep) if exactly else (ids, max(0, keep - len(head) - len(tail)))
        inner = inner[len(inner) - most :] if keeps_end else inner[:most]
        expected = inner if exactly else [*head, *inner, *tail]
    assert kept == bytes(pack_tokens(expected))


def test_code_points_are_tokens_too() -> None:
    assert keep_tokens("abcdef", (b"", b""), PromptForm(keep=2)) == "ef"
    assert keep_tokens("abcdef", (b"", b""), PromptForm(keep=2, keeps_end=False)) == "ab"
    assert keep_tokens("abcdef", (b"", b""), PLAIN) == "abcdef"
