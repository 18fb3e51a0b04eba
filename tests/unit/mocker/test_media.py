from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvmesh.app.prompts.tokenizer import load_tokenizer
from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.prompts.media_tokens import Span
from kvmesh.errors import RequestError
from kvmesh_lab.mocker.dialogues import parse_messages, parse_responses
from kvmesh_lab.mocker.generation import Engine, make_choices
from kvmesh_lab.mocker.media import LEAST_TOKENS, Expander, Medium, Noted, rendered
from kvmesh_lab.mocker.model.answer import Vocabulary
from kvmesh_lab.mocker.model.request import Labels
from kvmesh_lab.mocker.vllm_requests import parse_chat
from tests.unit.app.prompts.tokenizer_models import PARTS, SPECIAL, write_model

PAD = SPECIAL.index("<|image_pad|>")
URL = "data:image/png;base64,AAAA"
IMAGE: dict[str, Any] = {"type": "image_url", "image_url": {"url": URL}}
SOURCE = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
USER: dict[str, object] = {"role": "user"}


def noted(*parts: dict[str, Any]) -> list[Medium]:
    notes = Noted(sees=True)
    for part in parts:
        notes.keep(part, USER)
    return notes.media


def test_content_alone_says_how_many_tokens_it_has_and_a_name_is_believed() -> None:
    one, named, other = noted(
        IMAGE,
        IMAGE | {"uuid": "mine"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAB"}},
    )

    assert (one.kind, named.name) == ("image", "mine")
    assert one.tokens == named.tokens >= LEAST_TOKENS
    assert len({one.name, named.name, other.name}) == 3


def test_the_same_picture_has_one_name_in_every_api() -> None:
    turns = {"role": "user", "content": [{"type": "image", "source": SOURCE}]}
    inputs = {"role": "user", "content": [{"type": "input_image", "image_url": URL}]}
    chat = parse_chat(msgspec.json.encode({"messages": [{**USER, "content": [IMAGE]}]}), sees=True)
    messages = msgspec.json.encode({"messages": [turns], "max_tokens": 1})
    responses = msgspec.json.encode({"input": [inputs]})

    made = (
        chat.media,
        parse_messages(messages, sees=True).media,
        parse_responses(responses, sees=True).media,
    )

    assert len(chat.media) == 1
    assert set(made) == {chat.media}


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_embeds", "image_embeds": "AAAA"}, USER),
        ({"type": "image_url"}, USER),
        (IMAGE, {"role": "tool"}),
    ],
)
def test_what_is_no_media_ends_what_is_read(
    part: dict[str, object], message: dict[str, object]
) -> None:
    assert Noted(sees=True).keep(part, message) is None
    assert Noted(sees=False).keep(IMAGE, USER) is None


def test_other_media_are_told_by_what_they_hold() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    film = {"type": "video_url", "video_url": {"url": "http://a/b.mp4"}}

    assert [one.kind for one in noted(sound, film)] == ["audio", "video"]


def test_a_chat_has_the_tokens_of_its_media(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_model(tmp_path, template=PARTS))
    chat = ChatInput([{**USER, "content": [{"type": "image"}, {"type": "image"}]}])
    printed = tokenizer.encode_chat(chat)
    media = [Medium("image", "a", 50), Medium("image", "b", 60)]

    ids, spans = Expander(tokenizer).expand(printed, media)

    place = printed.index(PAD)
    assert spans == (Span("a", place, 50), Span("b", place + 50, 60))
    assert (
        ids.tolist()
        == [n for one in printed for n in [one] if n != PAD][:place]
        + [PAD] * 110
        + printed.tolist()[place + 2 :]
    )
    assert rendered(ids, media, spans) == {
        "token_ids": ids.tolist(),
        "features": {
            "mm_hashes": {"image": ["a", "b"]},
            "mm_placeholders": {
                "image": [
                    {"offset": place, "length": 50},
                    {"offset": place + 50, "length": 60},
                ]
            },
        },
    }
    assert rendered([1], (), ())["features"] is None


def test_a_template_that_prints_nothing_for_it_is_refused(tmp_path: Path) -> None:
    blind = "{% for message in messages %}{{ message.role }}{% endfor %}"
    tokenizer = load_tokenizer(write_model(tmp_path, template=blind))

    with pytest.raises(RequestError, match="printed nothing for image"):
        Expander(tokenizer).expand(array("I", [1, 2]), [Medium("image", "a", 50)])


def test_media_are_not_cut() -> None:
    body = {"messages": [{**USER, "content": [IMAGE]}], "truncate_prompt_tokens": 5}

    with pytest.raises(RequestError, match="truncated media"):
        parse_chat(msgspec.json.encode(body), sees=True)


def test_blocks_of_other_media_are_others_from_where_they_begin() -> None:
    engine = Engine(4, 1000, Vocabulary(lambda text: [*text.encode()], lambda ids: "x" * len(ids)))
    body = msgspec.json.encode({"messages": [{**USER, "content": "t"}], "max_tokens": 4})
    request, prompt = parse_chat(body), array("I", range(14))

    def hashes(*names: str) -> list[int]:
        spans = tuple(Span(name, 4 + 5 * place, 5) for place, name in enumerate(names))
        [choice] = make_choices(engine, request, [prompt], Labels(media=spans), "r")
        return choice.request.ensure_hashes(4)

    plain, one, same, other = hashes(), hashes("a", "b"), hashes("a", "b"), hashes("a", "c")

    assert one == same
    assert plain[0] == one[0] == other[0]
    assert one[1] == other[1] != plain[1]
    assert not set(one[2:]) & set(other[2:])
