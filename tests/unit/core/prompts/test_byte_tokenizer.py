from array import array
from collections.abc import Mapping
from itertools import pairwise

import pytest

from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.prompts.byte_tokenizer import (
    END_ID,
    ROLE_IDS,
    TOOLS_ID,
    VOCAB_SIZE,
    ByteTokenizer,
    check_ids,
)
from kvmesh.errors import RequestError

TOKENIZER = ByteTokenizer()
USER = {"role": "user", "content": "hé"}
ANSWER = {"role": "assistant", "content": "ok"}
USER_IDS = [ROLE_IDS["user"], *"hé".encode(), END_ID]


def encode(*messages: Mapping[str, object], **fields: object) -> list[int]:
    return list(TOKENIZER.encode_chat(ChatInput.from_body({"messages": list(messages), **fields})))


def test_text_is_its_utf8_bytes() -> None:
    ids = TOKENIZER.encode("aé😀\ud800", add_special_tokens=True)

    assert list(ids) == list("aé😀".encode() + b"\xed\xa0\x80")
    assert TOKENIZER.decode(TOKENIZER.encode("aé😀", add_special_tokens=False)) == "aé😀"
    assert TOKENIZER.decode([END_ID, 0x61, 0xFF]) == "a�"


def test_tool_calls_names_and_tools_are_part_of_the_prompt() -> None:
    call = {"role": "tool", "content": "x", "tool_call_id": "c"}

    ids = encode(call, tools=[{"type": "function"}])

    assert ids[0] == TOOLS_ID
    assert bytes(i for i in ids if i < 256) == b'[[{"type":"function"}],null]x["tool_call_id","c"]'


def test_each_turn_begins_with_the_tokens_of_the_one_before() -> None:
    turns = [encode(*([USER, ANSWER] * n), USER) for n in range(4)]

    for shorter, longer in pairwise(turns):
        assert longer[: len(shorter)] == shorter


def test_open_and_truncated_messages_have_no_end() -> None:
    open_chat = encode(USER, ANSWER, continue_final_message=True)
    image = {"role": "user", "content": ["h", {"type": "image_url"}]}

    assert open_chat == [*USER_IDS, ROLE_IDS["assistant"], *b"ok"]
    assert encode(image) == [ROLE_IDS["user"], *b"h"]
    assert encode(USER, add_generation_prompt=False) == USER_IDS


def test_an_id_outside_the_vocabulary_is_refused_with_its_position() -> None:
    check_ids([], 10)
    check_ids([0, 9], 10)
    with pytest.raises(RequestError, match=r"token id 320 at position 1 .* 0\.\.319") as caught:
        check_ids([1, VOCAB_SIZE, -1], TOKENIZER.vocab_size)
    with pytest.raises(RequestError, match="token id -1 at position 0"):
        check_ids(array("i", [-1]), 10)
    assert caught.value.param == "prompt"


def test_a_chat_of_texts_alone_is_packed_as_any_other() -> None:
    tokenizer = ByteTokenizer()

    packed = tokenizer.pack_messages([("system", "be kind"), ("user", "h\u00e9")])

    assert packed == tokenizer.pack_chat(
        ChatInput(
            [{"role": "system", "content": "be kind"}, {"role": "user", "content": "h\u00e9"}]
        )
    )
