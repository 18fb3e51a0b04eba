import json
from pathlib import Path

import pytest

from benchmarks.proxy.chats import CHATS, SYSTEM_PROMPTS, Chats


@pytest.mark.parametrize("size", [400, 4_000, 100_000])
def test_chats_have_their_size_and_half_of_it_is_one_of_the_system_prompts(size: int) -> None:
    chats = Chats(size)
    bodies = [chats.body(number) for number in range(0, CHATS, 997)]

    assert all(abs(len(body) - size) <= 1 for body in bodies)
    for body in bodies:
        system, user = json.loads(body)["messages"]
        assert system["content"] in chats.systems
        assert len(system["content"]) == len(user["content"])
    assert len(set(chats.systems)) == SYSTEM_PROMPTS


def test_so_many_chats_differ_and_then_they_begin_again() -> None:
    chats = Chats(400)

    assert len({chats.body(number) for number in range(2 * CHATS)}) == CHATS
    assert chats.body(7) == chats.body(CHATS + 7)


def test_wrk_is_given_the_same_texts(tmp_path: Path) -> None:
    chats = Chats(400)

    script = chats.script("/v1/x", tmp_path, first=5)

    assert (tmp_path / "systems").read_text().splitlines() == chats.systems
    assert 'wrk.format(nil, "/v1/x", nil' in script
    assert "turn, prose = {}, 4" in script
