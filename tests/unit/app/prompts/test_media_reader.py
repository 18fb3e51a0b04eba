"""Chats with pictures, read by a router whose engine makes many tokens of each."""

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from kvmesh.app.prompts import media_reader
from kvmesh.app.prompts.prompt_reader import PromptReader
from kvmesh.app.prompts.reading import Reader
from kvmesh.app.prompts.token_check import TokenCheck
from kvmesh.app.prompts.tokenizer import ModelTokenizer, load_tokenizer
from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.prompts.media_tokens import Span, spanned_hashes
from kvmesh.core.prompts.parity import ParityOptions, ParityProbe
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.transport.http.openai import ENDPOINTS
from kvmesh.transport.http.server.request import Request
from tests.unit.app.prompts.tokenizer_models import PARTS, SPECIAL, write_model

CHAT = ENDPOINTS["/v1/chat/completions"]
PAD = SPECIAL.index("<|image_pad|>")
COUNT = 40
SIZE = 16
TEXT = {"type": "text", "text": "What is to be seen in this picture, and what is not? " * 3}


def picture(number: int) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,AAA{number}"}}


class Engine:
    """A token check whose engine makes `COUNT` tokens of a picture, unless `refused`."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self.probe = ParityProbe(ParityOptions(sample_every=0))
        self.asked: list[bytes] = []
        self.refused = False
        self._tokenizer = tokenizer
        self._waiting: list[Callable[[], None]] = []

    def tokenize(
        self,
        model: str,
        message: bytes,
        request: Request,
        then: Callable[[list[int] | None], None],
    ) -> None:
        del request
        assert model == "m"
        self.asked.append(message)
        told = None if self.refused else self.ids_of(msgspec.json.decode(message))
        self._waiting.append(lambda: then(told))

    def answer(self) -> None:
        while self._waiting:
            self._waiting.pop()()

    def ids_of(self, *messages: dict[str, Any], answers: bool = False) -> list[int]:
        shown = [
            one | {"content": [_shown(part) for part in one["content"]]}
            if isinstance(one["content"], list)
            else one
            for one in messages
        ]
        ids = self._tokenizer.encode_chat(ChatInput(shown, add_generation_prompt=answers))
        return [n for one in ids for n in ([PAD] * COUNT if one == PAD else [one])]


def _shown(part: dict[str, Any]) -> dict[str, Any]:
    return part if part["type"] == "text" else {"type": "image"}


class Routed:
    """A router's reader and its engine."""

    def __init__(self, directory: Path, template: str = PARTS) -> None:
        tokenizer = load_tokenizer(write_model(directory, template=template))
        self.engine = Engine(tokenizer)
        self.prompts = PromptReader(tokenizer, SIZE, check=cast("TokenCheck", self.engine))
        self.reader = Reader(self.prompts, "router")
        self.sent = b""

    def read(self, *messages: dict[str, Any], **more: object) -> RouteRequest:
        body = msgspec.json.encode({"model": "m", "messages": messages, **more})
        return self.read_body(body)

    def read_body(self, body: bytes) -> RouteRequest:
        asked = Request("POST", b"/v1/chat/completions", [], body)
        exchange = _Asked(asked)
        found: list[RouteRequest] = []
        self.reader.read(cast("Any", exchange), CHAT, lambda _, request: found.append(request))
        self.sent = asked.body
        self.engine.answer()
        return found[0]


class _Asked:
    request_id = b"r"

    def __init__(self, request: Request) -> None:
        self.request = request


@pytest.fixture
def routed(tmp_path: Path) -> Routed:
    return Routed(tmp_path)


def user(*parts: object) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def test_the_first_sight_of_a_picture_is_the_text_before_and_the_second_all(
    routed: Routed,
) -> None:
    turn = user(TEXT, picture(1), TEXT)

    first, second = routed.read(turn), routed.read(turn)

    ids = routed.engine.ids_of(turn, answers=True)
    name = msgspec.json.decode(routed.sent)["messages"][0]["content"][1]["uuid"]
    span = Span(name, ids.index(PAD), COUNT)
    packed = array("I", ids[:-1]).tobytes()
    assert (first.unforeseen, second.unforeseen) == ("media", "")
    assert first.prompt_tokens == ids.index(PAD)
    assert second.prompt_tokens == len(ids)
    expected = list(spanned_hashes([span], packed, SIZE, 0).upto(1 << 20))
    assert list(second.hashes.upto(1 << 20)) == expected
    assert list(first.hashes.upto(1 << 20)) == expected[: first.hashes.blocks]
    assert len(routed.engine.asked) == 1


def test_a_new_picture_behind_a_known_one_is_cut_off_alone(routed: Routed) -> None:
    turn, more = user(TEXT, picture(1)), user(picture(2), TEXT)
    routed.read(turn)

    cut, whole = routed.read(turn, more), routed.read(turn, more)

    assert (cut.unforeseen, whole.unforeseen) == ("media", "")
    assert COUNT < cut.prompt_tokens < whole.prompt_tokens - COUNT
    ids = list(cut.hashes.upto(1 << 20))
    assert list(whole.hashes.upto(1 << 20))[: len(ids)] == ids


def test_other_pictures_and_other_tenants_share_no_block_of_it(routed: Routed) -> None:
    chats = [(1, None), (2, None), (1, "other")]

    def hashes(number: int, salt: str | None) -> list[int]:
        read = [routed.read(user(TEXT, picture(number)), cache_salt=salt) for _ in range(2)]
        assert read[1].unforeseen == ""
        return list(read[1].hashes.upto(1 << 20))

    one, two, other = (hashes(*chat) for chat in chats)
    front = next(i for i, pair in enumerate(zip(one, two, strict=True)) if pair[0] != pair[1])

    assert front > 0
    assert not set(one[front:]) & set(two[front:])
    assert not set(one) & set(other)


def test_a_picture_that_is_elsewhere_is_the_text_before_and_nobody_is_asked(
    routed: Routed,
) -> None:
    part = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}

    read = [routed.read(user(TEXT, part)) for _ in range(2)]

    assert [one.unforeseen for one in read] == ["media", "media"]
    assert routed.engine.asked == []
    assert b"uuid" not in routed.sent


def test_text_that_looks_like_a_picture_leaves_the_text_before_the_first(routed: Routed) -> None:
    turn = user({"type": "text", "text": "<|image_pad|>"}, picture(1))
    routed.read(turn)

    read = routed.read(turn)

    assert read.unforeseen == "media"
    assert read.prompt_tokens < COUNT


@pytest.mark.parametrize("field", ["mm_processor_kwargs", "media_io_kwargs"])
def test_what_changes_an_engines_names_leaves_the_text_before(routed: Routed, field: str) -> None:
    turn = user(TEXT, picture(1))
    routed.read(turn)

    assert routed.read(turn, **{field: {"image": {}}}).unforeseen == "media"
    assert routed.read(turn, **{field: None}).unforeseen == ""


def test_pictures_among_the_results_of_tools_are_not_followed(routed: Routed) -> None:
    turn = {"role": "tool", "content": [TEXT, picture(1)]}

    assert [routed.read(turn).unforeseen for _ in range(2)] == ["media", "media"]


def test_an_engine_that_does_not_tell_is_asked_again(routed: Routed) -> None:
    routed.engine.refused = True
    assert routed.read(user(picture(1))).unforeseen == "media"

    routed.engine.refused = False
    routed.read(user(picture(1)))

    assert routed.read(user(picture(1))).unforeseen == ""


def test_a_picture_larger_than_may_be_sent_twice_is_not_asked_about(
    routed: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media_reader, "MOST_PART_BYTES", 10)

    assert [routed.read(user(picture(1))).unforeseen for _ in range(2)] == ["media", "media"]
    assert routed.engine.asked == []


def test_a_template_that_refuses_a_picture_alone_teaches_nothing(tmp_path: Path) -> None:
    refuses = "{% if messages|length < 2 %}{{ raise_exception('more') }}{% endif %}" + PARTS
    routed = Routed(tmp_path, refuses)
    monkey = routed.engine
    monkey.ids_of = lambda *_, **__: [1]  # type: ignore[method-assign]
    chat = (user(TEXT), user(picture(1)))

    assert [routed.read(*chat).unforeseen for _ in range(2)] == ["media", "media"]
    assert len(monkey.asked) == 1


def test_bodies_without_media_go_on_as_they_came(routed: Routed) -> None:
    body = b'{"model":"m", "messages":[{"role":"user","content":[{"type":"text","text":"t"}]}]}'

    assert routed.read_body(body).unforeseen == ""
    assert routed.sent == body


def test_pictures_of_a_body_too_long_to_be_read_are_named_all_the_same(
    routed: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvmesh.app.prompts.reading.MOST_READ_BYTES", 10)
    monkeypatch.setattr("kvmesh.app.prompts.prompt_reader.MOST_READ_BYTES", 10)

    read = routed.read(user(TEXT, picture(1)))
    named = routed.sent
    plain = routed.read(user(TEXT))

    assert (read.unforeseen, plain.unforeseen) == ("media", "")
    assert b'"uuid":' in named


def test_templates_that_take_texts_alone_show_no_picture(tmp_path: Path) -> None:
    model = write_model(tmp_path)

    assert not load_tokenizer(model).sees_media
    assert not load_tokenizer(write_model(tmp_path / "none", template=None)).sees_media


@pytest.mark.parametrize("uses_caches", [True, False])
def test_a_scan_leaves_pictures_to_be_named(routed: Routed, *, uses_caches: bool) -> None:
    body = msgspec.json.encode({"model": "m", "messages": [user(TEXT, picture(1))]})
    plain = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "t"}]})

    def scan(body: bytes) -> object:
        request = Request("POST", b"/v1/chat/completions", [], body)
        return routed.reader.scan(request, chat=True, uses_caches=uses_caches)

    assert scan(body) is None
    assert scan(plain) is not None
