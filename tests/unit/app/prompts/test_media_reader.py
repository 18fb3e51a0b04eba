"""Chats with pictures, read by a router whose engine makes many tokens of each."""

import asyncio
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from kvmesh.app.prompts import media_reader
from kvmesh.app.prompts.prompt_reader import PromptReader
from kvmesh.app.prompts.reading import Reader
from kvmesh.app.prompts.token_check import TokenCheck
from kvmesh.app.prompts.tokenizer import ModelTokenizer, load_tokenizer
from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.chat.media import Sent
from kvmesh.core.engines.registry import engine_of
from kvmesh.core.prompts.media_tokens import Span, Told, spanned_hashes
from kvmesh.core.prompts.parity import ParityOptions, ParityProbe
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.transport.http.openai import ENDPOINTS
from kvmesh.transport.http.server.request import Request
from tests.unit.app.prompts.tokenizer_models import PARTS, SPECIAL, write_model

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
        self.refused = self.busy = self.nameless = False
        self._tokenizer = tokenizer
        self._waiting: list[Callable[[], None]] = []

    def ask_of_media(
        self,
        model: str,
        sent: Sent,
        request: Request,
        then: Callable[[Told | None], None],
        put_off: Callable[[], object],
    ) -> None:
        del request
        assert model == "m"
        if self.busy:
            put_off()
            return
        part = sent.part()
        self.asked.append(part)
        message = {"role": "user", "content": [msgspec.json.decode(part)]}
        name = "" if sent.named else f"own-{hash(part)}"
        told = None if self.refused else Told(self.ids_of(message), name)
        self._waiting.append(lambda: then(told))

    def tells_names(self) -> bool:
        return not self.nameless

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

    def __init__(self, directory: Path, template: str = PARTS, kind: str = "vllm") -> None:
        tokenizer = load_tokenizer(write_model(directory, template=template))
        self.engine = Engine(tokenizer)
        check = cast("TokenCheck", self.engine)
        self.prompts = PromptReader(tokenizer, SIZE, check=check, engine=engine_of(kind))
        self.reader = Reader(self.prompts, "router")
        self.sent = b""

    def read(
        self, *messages: dict[str, Any], api: str = "chat/completions", **more: Any
    ) -> RouteRequest:
        field = "input" if api == "responses" else "messages"
        body = msgspec.json.encode({"model": "m", field: messages, **more})
        return self.read_body(body, f"/v1/{api}")

    def read_body(self, body: bytes, path: str = "/v1/chat/completions") -> RouteRequest:
        asked = Request("POST", path.encode(), [], body)
        exchange = _Asked(asked)
        found: list[RouteRequest] = []
        endpoint = ENDPOINTS[path]
        self.reader.read(cast("Any", exchange), endpoint, lambda _, request: found.append(request))
        self.sent = asked.body
        self.engine.answer()
        return found[0]


class _Asked:
    request_id = b"r"

    def __init__(self, request: Request) -> None:
        self.request = request
        self.scope = SimpleNamespace(start=asyncio.run)


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
    assert read.media.endswith("its text holds the token that stands for media")


@pytest.mark.parametrize("field", ["mm_processor_kwargs", "media_io_kwargs"])
def test_what_changes_an_engines_names_leaves_the_text_before(routed: Routed, field: str) -> None:
    turn = user(TEXT, picture(1))
    routed.read(turn)

    more: dict[str, Any] = {field: {"image": {}}}
    changed = routed.read(turn, **more)

    assert changed.unforeseen == "media"
    assert "a field of the request changes" in changed.media
    assert routed.read(turn, **{**more, field: None}).unforeseen == ""


def test_pictures_among_the_results_of_tools_are_not_followed(routed: Routed) -> None:
    turn = {"role": "tool", "content": [TEXT, picture(1)]}

    made = [routed.read(turn) for _ in range(2)]

    assert [one.unforeseen for one in made] == ["media", "media"]
    assert made[1].media.endswith("engines make texts of the results of tools")


def test_an_engine_that_does_not_tell_is_asked_again(routed: Routed) -> None:
    routed.engine.refused = True
    assert routed.read(user(picture(1))).media.endswith("the next turn follows it")

    routed.engine.refused = False
    routed.read(user(picture(1)))

    assert routed.read(user(picture(1))).unforeseen == ""


def test_an_engine_that_never_tells_is_given_up(routed: Routed) -> None:
    routed.engine.refused = True

    made = [routed.read(user(picture(1))) for _ in range(5)]

    assert len(routed.engine.asked) == 3
    assert "no engine told what it makes of it" in made[-1].media


def test_questions_that_could_not_be_asked_count_for_nothing(routed: Routed) -> None:
    routed.engine.busy = True
    for _ in range(9):
        routed.read(user(picture(1)))

    routed.engine.busy = False
    routed.read(user(picture(1)))

    assert routed.read(user(picture(1))).unforeseen == ""


def test_of_many_new_pictures_the_first_are_asked_about(
    routed: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media_reader, "MAX_IN_FLIGHT", 2)
    turn = user(*(picture(number) for number in range(5)))

    made = [routed.read(turn) for _ in range(4)]

    assert [one.media.partition(" ")[0] for one in made] == ["0", "2", "4", "all"]
    assert (made[3].unforeseen, made[3].media) == ("", "all 5 followed")
    assert made[3].prompt_tokens > 5 * COUNT


def test_ten_thousand_pictures_are_read_and_asked_about_once(routed: Routed) -> None:
    turns = [user(picture(1), TEXT) for _ in range(10_000)]
    routed.read(*turns)

    read = routed.read(*turns)

    assert (read.unforeseen, len(routed.engine.asked)) == ("", 1)
    assert read.prompt_tokens > 10_000 * COUNT


def test_contents_do_not_count_among_what_is_too_long_to_be_read(
    routed: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("reading", "prompt_reader", "beginning", "media_reader"):
        monkeypatch.setattr(f"kvmesh.app.prompts.{place}.MOST_READ_BYTES", 2_000)
    large = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 4_000}"}}
    turn = user(TEXT, large, TEXT)
    block = {"type": "image", "source": {"type": "base64", "data": "A" * 4_000}}

    made = [routed.read(turn) for _ in range(2)]
    other = [routed.read(user(TEXT, block), api="messages") for _ in range(2)]
    text = routed.read(user(*[TEXT] * 20, large))

    assert [one.unforeseen for one in made] == ["media", ""]
    assert [one.unforeseen for one in other] == ["media", ""]
    assert text.unforeseen == "beginning"


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_pictures_of_the_other_apis_are_followed(routed: Routed, api: str) -> None:
    url = picture(1)["image_url"]["url"]
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    if api == "responses":
        parts = [{"type": "input_text", "text": "t"}, {"type": "input_image", "image_url": url}]
    else:
        parts = [{"type": "text", "text": "t"}, {"type": "image", "source": source}]

    first, second = (routed.read(user(*parts, *parts), api=api) for _ in range(2))

    assert (first.unforeseen, second.unforeseen) == ("media", "")
    shown = [{"type": "text", "text": "t"}, picture(1)] * 2
    ids = routed.engine.ids_of(user(*shown), answers=True)
    if api == "responses":
        name = msgspec.json.decode(routed.sent)["input"][0]["content"][1]["uuid"]
    else:
        name = f"own-{hash(routed.engine.asked[0])}"
        assert b"uuid" not in routed.sent
    place = ids.index(PAD)
    after = ids.index(PAD, place + COUNT)
    spans = [Span(name, place, COUNT), Span(name, after, COUNT)]
    packed = array("I", ids[:-1]).tobytes()
    expected = list(spanned_hashes(spans, packed, SIZE, 0).upto(1 << 20))
    assert list(second.hashes.upto(1 << 20)) == expected


def test_an_engine_that_tells_no_names_is_not_asked_and_it_is_said_what_helps(
    routed: Routed,
) -> None:
    routed.engine.nameless = True
    block = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}

    read = routed.read(user(TEXT, block), api="messages")

    assert routed.engine.asked == []
    assert read.media.endswith("start it with --enable-scale-out")
    assert routed.read(user(picture(1))).media.endswith("the next turn follows it")


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"type": "image_url", "image_url": {"url": "https://a"}}, "did not come with it"),
        (picture(1) | {"extra": 1}, "it has fields besides its content"),
        ({"type": "image_embeds", "image_embeds": "AAAA"}, "did not come with it"),
    ],
)
def test_it_is_said_why_a_part_is_not_followed(
    routed: Routed, part: dict[str, Any], why: str
) -> None:
    routed.read(user(picture(2)))

    read = routed.read(user(picture(2), part))

    assert read.media.startswith("1 followed, the next one and what is behind it not: ")
    assert why in read.media


def test_an_engine_that_takes_no_names_is_said_to_tell_nobody(tmp_path: Path) -> None:
    routed = Routed(tmp_path, kind="sglang")

    read = routed.read(user(TEXT, picture(1)))

    assert read.unforeseen == "media"
    assert read.media.endswith("SGLang tells nobody how it keys blocks of media")


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

    for sent in (body, body.replace(b'"t"', b'"an image_url"')):
        assert routed.read_body(sent).unforeseen == ""
        assert routed.sent == sent


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
