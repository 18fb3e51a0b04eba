from collections import Counter

import pytest

from kvmesh_lab.demo.measures import SentBefore
from kvmesh_lab.demo.texts import (
    ALICE,
    DEMONSTRATIONS,
    EXPLAINER,
    PROFESSION,
    Demonstration,
    LoadName,
    Size,
    Workload,
    make_workload,
)

SIZE = Size(workers=4, scale=0.25)


def prompts(workload: Workload) -> list[str]:
    return [f"{one.system}\2{one.turns[0]}" for one in workload.dialogues]


def test_the_printed_texts_are_sent_as_printed_behind_the_salt() -> None:
    shared = make_workload("shared system prompt", "printed", "s", SIZE)
    talk = make_workload("multi-turn", "printed", "s", SIZE)
    topics = make_workload("load spread", "printed", "s", SIZE)

    assert [one.system for one in shared.dialogues] == [f"s {EXPLAINER}"] * 5
    assert shared.dialogues[2].turns == ("Question 3: What is machine learning?",)
    assert {one.max_tokens for one in shared.dialogues} == {100}
    assert [one.turns for one in talk.dialogues] == [(ALICE, PROFESSION)]
    assert topics.dialogues[4].turns[0].startswith("Tell me about music")
    assert {one.lanes for one in (shared, talk, topics)} == {5}


@pytest.mark.parametrize("demonstration", DEMONSTRATIONS)
@pytest.mark.parametrize("load", ["printed", "light", "full"])
def test_another_salt_shares_no_block_and_the_same_one_all(
    demonstration: Demonstration, load: LoadName
) -> None:
    first = make_workload(demonstration, load, "aaaaaa", SIZE)
    again = make_workload(demonstration, load, "aaaaaa", SIZE)
    other = make_workload(demonstration, load, "bbbbbb", SIZE)

    sent = SentBefore(48)
    for text in prompts(first):
        sent.add(text, 0.0, 0.0)

    assert first == again
    assert sent.add(prompts(other)[0], 1.0, 1.0)[0] == 0.0
    assert sent.add(prompts(again)[0], 1.0, 1.0)[0] > 0.8 or load == "printed"


@pytest.mark.parametrize(
    ("demonstration", "least", "most"),
    [
        ("shared system prompt", 0.70, 0.80),
        ("related queries", 0.55, 0.65),
        ("load spread", 0.0, 0.05),
    ],
)
def test_one_cache_would_hit_what_is_promised_at_most(
    demonstration: Demonstration, least: float, most: float
) -> None:
    texts = prompts(make_workload(demonstration, "full", "s", SIZE))
    sent = SentBefore(16)
    held = sum(sent.add(text, float(at), float(at))[0] * len(text) for at, text in enumerate(texts))

    assert least <= held / sum(map(len, texts)) <= most


def test_full_load_mixes_whose_questions_come_and_light_load_does_not() -> None:
    def starts(load: LoadName) -> list[str]:
        made = make_workload("shared system prompt", load, "s", SIZE)
        return [one.system.split(":")[0] for one in made.dialogues]

    light, full = starts("light"), starts("full")

    assert light == sorted(light)
    assert full != sorted(full)
    assert set(Counter(full).values()) == set(Counter(light).values()) == {5}


def test_texts_are_as_long_in_tokens_wherever_a_token_is_longer() -> None:
    short = make_workload("load spread", "light", "s", SIZE).dialogues[0].turns[0]
    long = make_workload("load spread", "light", "s", Size(4, 4.0, 0.25)).dialogues[0].turns[0]

    assert len(short) == pytest.approx(1000, rel=0.1)
    assert len(long) == pytest.approx(4000, rel=0.1)


def test_lanes_fill_the_workers_at_full_load_and_one_is_used_at_light() -> None:
    full = make_workload("multi-turn", "full", "s", Size(3))
    light = make_workload("multi-turn", "light", "s", Size(3))

    assert (full.lanes, light.lanes) == (48, 1)
    assert full.ramp_s > light.ramp_s == 0.0
