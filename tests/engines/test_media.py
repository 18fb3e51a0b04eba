"""A real vLLM that sees pictures: what routers predict behind one is what the engine reuses."""

import base64
import itertools
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.conftest import interpreter
from tests.engines.engine import VLLM_BLOCK_SIZE
from tests.engines.engine_venv import VLLM
from tests.engines.media import QUESTION, as_block, routed, sent
from tests.engines.reuse.alone import RouterAlone
from tests.engines.tiny_model import IMAGE_TOKENS, write_tiny_llava
from tests.engines.traffic import Comparison, ask

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

SIDE = 40
_numbers = itertools.count()


@pytest.fixture(scope="module")
def routers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[RouterAlone]]:
    """Two routers over one engine."""
    directory = tmp_path_factory.mktemp("media")
    model = write_tiny_llava(directory / "tiny")
    with routed(interpreter(request, VLLM), directory, model, 2) as made:
        yield made


@pytest.fixture
def router(routers: list[RouterAlone]) -> RouterAlone:
    return routers[0]


def picture() -> dict[str, Any]:
    """Return a picture that nobody has seen."""
    colour = next(_numbers).to_bytes(3, "big")
    rows = zlib.compress((b"\0" + colour * SIDE) * SIDE)
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", head), (b"IDAT", rows), (b"IEND", b""))
    )
    url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_pictures_of_the_other_apis_are_predicted_once_they_were_seen(
    router: RouterAlone, api: str
) -> None:
    shown, other = picture(), picture()

    first, *more = (sent(router, QUESTION, shown, QUESTION, turns=n, api=api) for n in range(4))
    several = [
        sent(router, shown, QUESTION, other, QUESTION, shown, turns=n, api=api) for n in range(4)
    ]

    assert first.unforeseen == "media"
    assert [one.unforeseen for one in more] == [""] * 3
    assert [one.predicted for one in more] == [one.cached for one in more]
    assert all(one.cached > IMAGE_TOKENS for one in more)
    assert [one.predicted for one in several[1:]] == [one.cached for one in several[1:]]
    assert several[3].cached > 3 * IMAGE_TOKENS


def test_a_picture_within_the_result_of_a_tool_is_predicted(router: RouterAlone) -> None:
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    result = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [QUESTION, as_block(picture())],
    }
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": QUESTION["text"]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, QUESTION]},
    ]
    body = {"model": "tiny", "max_tokens": 4, "temperature": 0.0, "messages": messages}
    made: list[Comparison] = []
    for _ in range(3):
        router.settle()
        sent_so = ("media", "/v1/messages", body)
        made.append(ask(router, router.front_url, sent_so, VLLM_BLOCK_SIZE))

    assert [one.unforeseen for one in made] == ["media", "", ""]
    assert made[2].predicted == made[2].cached > IMAGE_TOKENS


def test_the_same_picture_with_another_detail_is_never_credited_wrongly(
    router: RouterAlone,
) -> None:
    shown = picture()
    low = {**shown, "image_url": {**shown["image_url"], "detail": "low"}}
    for one in (shown, low, shown, low):
        sent(router, QUESTION, one)

    made = [sent(router, QUESTION, one, QUESTION) for one in (shown, low)]

    assert [one.predicted for one in made] == [one.cached for one in made]


def test_a_picture_behind_a_url_is_the_text_before(router: RouterAlone) -> None:
    elsewhere = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/no.png"}}
    body = {"model": "tiny", "messages": [{"role": "user", "content": [QUESTION, elsewhere]}]}

    told = router.http.post(f"{router.front_url}/v1/route", json=body).json()

    assert "its content did not come with it" in told["media"]
    assert told["unforeseen"].startswith("media")


def test_turns_behind_a_picture_are_predicted_once_it_was_seen(router: RouterAlone) -> None:
    shown = picture()

    first, *more = (sent(router, QUESTION, shown, QUESTION, turns=n) for n in range(4))

    assert first.unforeseen == "media"
    assert [one.unforeseen for one in more] == [""] * 3
    assert [one.predicted for one in more] == [one.cached for one in more]
    assert all(one.cached > IMAGE_TOKENS for one in more)


def test_another_picture_with_the_same_text_is_not_credited(router: RouterAlone) -> None:
    one, other = picture(), picture()
    for shown in (one, other):
        sent(router, QUESTION, shown, QUESTION)

    third = picture()
    made = [sent(router, QUESTION, shown, QUESTION, turns=1) for shown in (one, other)]
    new = sent(router, QUESTION, third, QUESTION, turns=1)

    assert [two.predicted for two in made] == [two.cached for two in made]
    assert new.predicted == new.cached < IMAGE_TOKENS + min(two.cached for two in made)
    assert new.unforeseen == "media"


def test_a_picture_at_another_place_is_another_block(router: RouterAlone) -> None:
    shown = picture()
    sent(router, QUESTION, shown)
    moved = {"type": "text", "text": f"Well: {QUESTION['text']}"}

    made = [sent(router, moved, shown, QUESTION) for _ in range(2)]

    assert [one.predicted for one in made] == [one.cached for one in made]
    assert made[0].cached < IMAGE_TOKENS < made[1].cached


def test_several_pictures_of_a_chat_are_told_apart(router: RouterAlone) -> None:
    parts = [picture(), QUESTION, picture(), QUESTION, picture()]
    sent(router, *parts)

    made = [sent(router, *parts, turns=n) for n in (1, 1, 2)]
    swapped = sent(router, parts[2], QUESTION, parts[0], QUESTION, parts[4])

    assert [one.predicted for one in made] == [one.cached for one in made]
    assert swapped.predicted == swapped.cached == 0


def test_each_router_learns_for_itself_and_names_it_the_same(routers: list[RouterAlone]) -> None:
    one, other = routers
    shown = picture()
    sent(one, QUESTION, shown, QUESTION)

    first, second = (sent(other, QUESTION, shown, QUESTION, turns=1) for _ in range(2))

    assert first.unforeseen == "media"
    assert first.cached > IMAGE_TOKENS
    assert second.predicted == second.cached > first.cached
