from typing import Any

import msgspec
import pytest

from kvmesh.core.chat.chat import ChatBody, ChatInput, JsonObject
from kvmesh.core.chat.media import (
    MediaPart,
    Named,
    may_hold_media,
    media_part,
    media_parts,
    named_body,
)

URL: dict[str, Any] = {"url": "data:image/png;base64,AAAA"}
IMAGE: dict[str, Any] = {"type": "image_url", "image_url": URL}


def body_of(*parts: object, **more: object) -> bytes:
    return msgspec.json.encode({"messages": [{"role": "user", "content": parts}], **more})


def names_in(named: Named | None) -> list[Any]:
    assert named is not None
    chat = msgspec.json.decode(named.body)
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
    first, second = names_in(named_body(body_of(part, part), "", "chat"))

    assert first == second == names_in(named_body(body_of(part, temperature=1), "", "chat"))[0]
    assert len(first) == 32


def test_a_name_tells_contents_salts_and_kinds_apart() -> None:
    other = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAB"}}
    film = {"type": "video_url", "video_url": URL}
    parts = [(IMAGE, ""), (IMAGE, "s"), (other, ""), (film, ""), (IMAGE | {"uuid": "mine"}, "")]

    made = [names_in(named_body(body_of(part), salt, "chat"))[0] for part, salt in parts]

    assert len(set(made)) == len(made)


def test_a_clients_own_name_is_replaced_by_one_of_its_salt() -> None:
    given = IMAGE | {"uuid": "mine"}
    cached = {"type": "image_url", "image_url": None, "uuid": "mine"}
    nobody = {"image_url": "http://elsewhere", "uuid": 7}

    one = names_in(named_body(body_of(given, cached, nobody), "a", "chat"))
    two = names_in(named_body(body_of(given), "b", "chat"))

    assert one[0] == one[1] != one[2]
    assert "mine" not in one + two
    assert one[0] != two[0]
    assert one[0] != names_in(named_body(body_of(IMAGE), "a", "chat"))[0]


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
    assert named_body(body_of(part), "", "chat") is None
    assert names_in(
        named_body(msgspec.json.encode({"messages": [{"content": [IMAGE]}]}), "", "chat")
    )


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
    assert named_body(body, "", "chat") is None


def test_all_else_of_a_body_stays_byte_for_byte() -> None:
    url = b'{"url":"data:a,\\u00e9","detail":1.50e1}'
    part = b'{"type":"image_url","image_url":' + url
    rest = b'"n":1.0,"big":123456789012345678901234567890}'
    body = b'{"messages":[{"role":"user","content":"\\u0041"},{"content":[' + part + b"}]}]," + rest

    named = named_body(body, "", "chat")

    name = names_in(named)[0].encode()
    assert named is not None
    assert named.body == body.replace(part, part + b',"uuid":"' + name + b'"')
    assert named.read == named.body.replace(url, b"null")


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


def test_what_is_read_has_names_in_the_place_of_contents_and_each_is_sent_once() -> None:
    extra = IMAGE | {"extra": 1}
    named = named_body(body_of(IMAGE, "text", IMAGE, extra), "", "chat")

    assert named is not None
    [one] = named.sent
    read = msgspec.json.decode(named.read)["messages"][0]["content"]
    known = {"type": "image_url", "image_url": None, "uuid": one.name}
    assert read == [known, "text", known, known | {"extra": 1}]
    assert (one.named, one.media) == (True, MediaPart("image", one.name))
    assert msgspec.json.decode(one.part()) == IMAGE | {"uuid": one.name}


def test_images_of_the_responses_api_are_those_of_chats_to_a_reader() -> None:
    image = {"type": "input_image", "detail": "low", "image_url": "data:image/png;base64,AAAA"}
    given = {"type": "input_image", "file_id": "f", "uuid": "mine"}
    plain = [
        {"type": "input_text", "text": "t"},
        {"type": "input_image", "image_url": "http://a/b.png"},
        {"type": "input_image"},
        "text",
    ]
    body = msgspec.json.encode({"input": [{"role": "user", "content": [image, given, *plain]}]})

    named = named_body(body, "", "responses")

    assert named is not None
    made = msgspec.json.decode(named.body)["input"][0]["content"]
    read = msgspec.json.decode(named.read)["input"][0]["content"]
    names = [part["uuid"] for part in made[:2]]
    assert made == [image | {"uuid": names[0]}, given | {"uuid": names[1]}, *plain]
    known = [{"type": "image_url", "image_url": None, "uuid": name} for name in names]
    assert read == [known[0], known[1] | {"file_id": "f"}, *plain]
    assert [one.name for one in named.sent] == names
    assert msgspec.json.decode(named.sent[0].part()) == IMAGE | {"uuid": names[0]}
    assert named.sent[0].media == MediaPart("image", names[0])


def block(**source: object) -> dict[str, Any]:
    return {"type": "image", "source": source}


def test_images_of_messages_are_noted_and_their_body_stays() -> None:
    image = block(type="base64", media_type="image/png", data="AAAA")
    result = {"type": "tool_result", "content": [{"type": "text", "text": "t"}, image]}
    turns = [
        {"role": "user", "content": [image | {"cache_control": {}}, image, result]},
        {"role": "assistant", "content": [result]},
        {"role": "user", "content": "text"},
    ]
    body = msgspec.json.encode({"messages": turns})

    named = named_body(body, "", "messages")

    assert named is not None
    [one] = named.sent
    read = msgspec.json.decode(named.read)["messages"]
    known = {"type": "image", "source": {"type": "base64"}, "uuid": one.name}
    content = [known, known, result | {"content": [result["content"][0], known]}]
    assert named.body == body
    assert read == [{"role": "user", "content": content}, *turns[1:]]
    assert (one.named, one.media) == (False, MediaPart("image", one.name))
    assert msgspec.json.decode(one.part()) == IMAGE


@pytest.mark.parametrize(
    "source",
    [
        {"type": "url", "url": "http://a/b.png"},
        {"type": "url", "data": "AAAA"},
        {"type": "base64"},
        {"type": "base64", "data": 5},
        {"type": "base64", "data": "AAAA", "media_type": None},
    ],
)
def test_an_image_of_messages_without_content_has_no_name_and_a_clients_is_dropped(
    source: dict[str, object],
) -> None:
    image = block(**source)

    def named(part: dict[str, Any]) -> Named | None:
        body = msgspec.json.encode({"messages": [{"role": "user", "content": [part]}]})
        return named_body(body, "", "messages")

    taken = named(image | {"uuid": "mine"})
    assert named(image) is None
    assert taken is not None
    assert b"mine" in taken.body
    assert msgspec.json.decode(taken.read)["messages"][0]["content"] == [image]
    assert taken.sent == []


def test_ten_thousand_pictures_are_named_in_time_that_grows_with_them() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100}}
    turns = [{"role": "user", "content": [image]}] * 10_000

    named = named_body(msgspec.json.encode({"messages": turns}), "", "chat")

    assert named is not None
    assert len(named.sent) == 1
    assert named.read.count(named.sent[0].name.encode()) == 10_000


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

    def keep(part: JsonObject, message: JsonObject) -> JsonObject | None:
        del message
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
