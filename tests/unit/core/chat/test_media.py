from typing import Any

import msgspec
import pytest

from kvmesh.core.chat.chat import ChatBody, ChatInput, JsonObject
from kvmesh.core.chat.media import MediaPart, may_hold_media, media_part, media_parts, named_body

URL: dict[str, Any] = {"url": "data:image/png;base64,AAAA"}
IMAGE: dict[str, Any] = {"type": "image_url", "image_url": URL}


def body_of(*parts: object, **more: object) -> bytes:
    return msgspec.json.encode({"messages": [{"role": "user", "content": parts}], **more})


def names_in(body: bytes | None) -> list[Any]:
    assert body is not None
    chat = msgspec.json.decode(body)
    return [part.get("uuid") for part in chat["messages"][-1]["content"]]


@pytest.mark.parametrize(
    "part",
    [
        IMAGE,
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
        {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    ],
)
def test_content_that_was_sent_is_named_and_the_same_each_time(part: dict[str, Any]) -> None:
    first, second = names_in(named_body(body_of(part, part), ""))

    assert first == second == names_in(named_body(body_of(part, temperature=1), ""))[0]
    assert len(first) == 32


def test_a_name_tells_contents_salts_and_kinds_apart() -> None:
    other = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAB"}}
    film = {"type": "video_url", "video_url": URL}
    parts = [(IMAGE, ""), (IMAGE, "s"), (other, ""), (film, ""), (IMAGE | {"uuid": "mine"}, "")]

    made = [names_in(named_body(body_of(part), salt))[0] for part, salt in parts]

    assert len(set(made)) == len(made)


def test_a_clients_own_name_is_replaced_by_one_of_its_salt() -> None:
    given = IMAGE | {"uuid": "mine"}
    cached = {"type": "image_url", "image_url": None, "uuid": "mine"}
    nobody = {"image_url": "http://elsewhere", "uuid": 7}

    one = names_in(named_body(body_of(given, cached, nobody), "a"))
    two = names_in(named_body(body_of(given), "b"))

    assert one[0] == one[1] != one[2]
    assert "mine" not in one + two
    assert one[0] != two[0]
    assert one[0] != names_in(named_body(body_of(IMAGE), "a"))[0]


@pytest.mark.parametrize(
    "part",
    [
        "text",
        7,
        {"type": "text", "text": "t"},
        {"type": "image_url", "image_url": {"url": "https://a/b.png"}},
        {"type": "image_url", "image_url": {"url": 5}},
        {"type": "image_url", "image_url": "data:image/png;base64,AAAA"},
        {"type": "image_url", "image_url": {}},
        {"type": "input_audio", "input_audio": {"data": 5}},
        {"type": "image_url"},
        {"type": ["image_url"]},
        {"type": "image_embeds", "image_embeds": "AAAA"},
        {},
    ],
)
def test_what_is_no_content_that_was_sent_gets_no_name(part: object) -> None:
    assert named_body(body_of(part), "") is None
    assert names_in(named_body(msgspec.json.encode({"messages": [{"content": [IMAGE]}]}), ""))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"messages": 1}',
        b'{"messages": [1]}',
        b'{"messages": [{"content": [{"type": "\\ud8"}]}]}',
        b'{"messages": [{"role": "user"}, {"content": "text"}, {"content": null}]}',
    ],
)
def test_a_body_that_is_no_chat_stays_as_it_is(body: bytes) -> None:
    assert named_body(body, "") is None


def test_all_else_of_a_body_stays_byte_for_byte() -> None:
    url = b'{"url":"data:a,\\u00e9","detail":1.50e1}'
    part = b'{"type":"image_url","image_url":' + url
    rest = b'"n":1.0,"big":123456789012345678901234567890}'
    body = b'{"messages":[{"role":"user","content":"\\u0041"},{"content":[' + part + b"}]}]," + rest

    named = named_body(body, "")

    name = names_in(named)[0].encode()
    assert named == body.replace(part, part + b',"uuid":"' + name + b'"')


def test_a_named_part_is_what_it_is_called() -> None:
    assert media_part(IMAGE | {"uuid": "n"}) == MediaPart("image", "n")
    others: list[dict[str, object]] = [
        IMAGE,
        {"type": "image_embeds", "uuid": "n"},
        {"type": ["image_url"], "uuid": "n"},
        IMAGE | {"uuid": "n", "extra": 1},
        IMAGE | {"uuid": 7},
    ]

    assert [media_part(part) for part in others] == [None] * len(others)


def test_parts_of_media_are_found_in_their_order() -> None:
    text: dict[str, object] = {"type": "text", "text": "t"}
    messages: list[dict[str, object]] = [
        {"content": "text"},
        {"content": [text, IMAGE, "text", 5]},
        {},
        {"content": [{"type": "video_url"}]},
    ]

    assert media_parts(messages) == [IMAGE, {"type": "video_url"}]


def test_a_body_may_hold_media_however_it_is_written() -> None:
    assert may_hold_media(body_of(IMAGE))
    assert may_hold_media(b'{"\\u0075uid"')
    assert not may_hold_media(body_of("text"))


def test_a_chat_goes_up_to_the_first_part_whose_tokens_are_not_known() -> None:
    text, other = (
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": "x"}},
    )
    said = ChatBody(
        [
            {"role": "user", "content": [text, IMAGE, text]},
            {"role": "assistant", "content": "A cat."},
            {"role": "user", "content": [text, IMAGE, other, text]},
            {"role": "user", "content": "never seen"},
        ]
    )

    def keep(part: JsonObject) -> JsonObject | None:
        return {"type": "image"} if part == IMAGE else None

    cut = ChatInput.of(said, keep)
    whole = ChatInput.of(ChatBody(said.messages[:2]), keep)

    known = [text, {"type": "image"}]
    first = {"role": "user", "content": [*known, text]}
    assert cut.messages == [first, said.messages[1], {"role": "user", "content": known}]
    assert (whole.messages, whole.truncated, cut.truncated) == (
        [first, said.messages[1]],
        False,
        True,
    )
    assert not ChatInput.of(ChatBody([{"role": "tool", "content": [IMAGE]}]), keep).messages[0][
        "content"
    ]
