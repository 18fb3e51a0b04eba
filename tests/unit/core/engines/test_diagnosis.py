from typing import Any

import pytest

from kvmesh.core.engines.diagnosis import check_engine
from kvmesh.core.engines.seen import EngineSeen, Finding, GroupSeen, Level, ProbeSeen, SourceSeen

SOURCE: dict[str, Any] = {
    "rank": 0,
    "endpoint": "tcp://h:5557",
    "replay": "tcp://h:5657",
    "batches": 2,
    "stored_blocks": 4,
    "block_sizes": (16,),
}
PROBE: dict[str, Any] = {
    "prompt_tokens": 70,
    "cached_tokens": 64,
    "tokenizer": "qwen",
    "ids_differ_at": -1,
}


def source(**changes: Any) -> SourceSeen:
    return SourceSeen(**SOURCE | changes)


def probe(**changes: Any) -> ProbeSeen:
    return ProbeSeen(**PROBE | changes)


def engine(**changes: Any) -> EngineSeen:
    seen: dict[str, Any] = {
        "url": "http://h:8000",
        "kind": "vllm",
        "version": "0.32.0",
        "models": ("m",),
        "lists_events": True,
        "block_size": 16,
        "prefix_caching": True,
        "sources": (source(),),
        "probe": probe(),
    }
    return EngineSeen(**seen | changes)


def test_a_router_given_as_engine_is_told_from_one() -> None:
    [finding] = check_engine(EngineSeen(url="http://h:8000", kind="kvmesh"))

    assert finding.level is Level.FAIL
    assert "http://h:8000 is a kvmesh router" in finding.text
    assert "--router-url" in finding.remedy


def wrong(seen: EngineSeen) -> list[Finding]:
    """What is not OK; everything that is not has a remedy, and nothing else has."""
    findings = check_engine(seen)
    for finding in findings:
        assert bool(finding.remedy) is (finding.level is not Level.OK), finding
    return [finding for finding in findings if finding.level is not Level.OK]


def one(seen: EngineSeen) -> tuple[Level, str, str]:
    (finding,) = wrong(seen)
    return finding.level, finding.topic, finding.text


def test_nothing_is_wrong_with_a_healthy_engine() -> None:
    findings = check_engine(engine())

    assert {finding.level for finding in findings} == {Level.OK}
    assert [finding.topic for finding in findings] == [
        "engine",
        "models",
        "prefix caching",
        "block size",
        "events of rank 0",
        "reuse",
        "tokenizer",
    ]


def test_a_block_size_that_events_contradict_is_an_alarm_and_events_win() -> None:
    seen = engine(block_size=16, sources=(source(block_sizes=(32,)),))

    (finding,) = wrong(seen)
    assert finding.text == "announced as 16, but events have blocks of [32]: the events count"
    assert finding.remedy == "routers take it from the events; one that is given a size needs 32"
    assert any(one.text == "32 tokens" for one in check_engine(seen))


def test_a_hybrid_model_is_told_with_its_groups() -> None:
    groups = (
        GroupSeen(0, "full_attention", 16),
        GroupSeen(1, "sliding_window", 16, 512),
        GroupSeen(2, "mamba", 528),
    )

    findings = check_engine(engine(sources=(source(groups=groups),)))

    assert {finding.level for finding in findings} == {Level.OK}
    (reported,) = (finding.text for finding in findings if "hybrid" in finding.text)
    assert reported == (
        "a hybrid model, 3 cache groups: full_attention in blocks of 16; sliding_window of 512 "
        "tokens in blocks of 16; mamba in blocks of 528. All decide where a hit ends"
    )


@pytest.mark.parametrize(
    ("kind", "version", "words"),
    [("vllm", "0.20.0", "(from 0.31.0 on it does)"), ("", "", "where")],
)
def test_an_engine_that_cannot_list_its_publishers_needs_them_given(
    kind: str, version: str, words: str
) -> None:
    finding = wrong(engine(kind=kind, version=version, lists_events=False, sources=()))[-1]
    assert finding.level is Level.FAIL
    assert words in finding.text
    assert "--kv-events-endpoint" in finding.remedy


@pytest.mark.parametrize("seen", [None, ProbeSeen(error="400")])
def test_silence_without_a_prompt_is_only_doubtful(seen: ProbeSeen | None) -> None:
    finding = wrong(engine(sources=(source(stored_blocks=0),), probe=seen))[0]

    assert (finding.level, finding.text) == (Level.WARN, "connected, nothing heard yet")


def test_without_a_model_directory_token_ids_are_not_compared() -> None:
    assert "tokenizer" not in [one.topic for one in check_engine(engine(probe=probe(tokenizer="")))]


RANKS = tuple(
    source(rank=rank, endpoint=f"tcp://h:{5557 + rank}", replay=f"tcp://h:{5558 + rank}")
    for rank in range(2)
)
SILENT = source(rank=1, endpoint="tcp://h:5558", replay="tcp://h:5658", stored_blocks=0)


@pytest.mark.parametrize(
    ("changes", "level", "topic", "words"),
    [
        ({"answers": False}, Level.FAIL, "engine", "http://h:8000 does not answer /v1/models"),
        ({"kind": "", "version": ""}, Level.WARN, "engine", ""),
        ({"version": "0.8.5"}, Level.FAIL, "engine", ""),
        ({"kind": "sglang", "version": "0.4.6.post1"}, Level.FAIL, "engine", ""),
        *(
            ({"kind": kind, "version": version}, Level.WARN, "engine", f"{kind} {version} {newer}")
            for newer in ["is newer than any this kvmesh has read"]
            for kind, version in (("vllm", "0.34.0"), ("vllm", "1.0"), ("sglang", "0.5.24"))
        ),
        ({"models": ()}, Level.FAIL, "models", ""),
        ({"prefix_caching": False}, Level.FAIL, "prefix caching", ""),
        ({"sources": ()}, Level.FAIL, "KV events", "are off"),
        ({"sources": RANKS}, Level.FAIL, "event ports", "5558 is used by rank 0 replay and rank 1"),
    ],
)
def test_what_is_wrong_with_an_engine_is_named(
    changes: dict[str, Any], level: Level, topic: str, words: str
) -> None:
    found, about, text = one(engine(**changes))

    assert (found, about) == (level, topic)
    assert words in text


@pytest.mark.parametrize(
    "changes",
    [
        {"prefix_caching": None},
        {"sources": (source(groups=(GroupSeen(),)),)},
        {"sources": (source(), SILENT)},
        *({"version": version} for version in ("0.9.0", "0.33.7", "", "dev")),
        {"kind": "sglang", "version": "0.5.23"},
    ],
)
def test_what_is_untold_or_new_or_made_up_for_will_do(changes: dict[str, Any]) -> None:
    assert not wrong(engine(**changes))


@pytest.mark.parametrize(
    ("announced", "seen", "level"),
    [(1, (), Level.FAIL), (4, (), Level.WARN), (0, (1,), Level.FAIL), (0, (), Level.WARN)],
)
def test_a_block_size_too_small_or_unknown_is_named(
    announced: int, seen: tuple[int, ...], level: Level
) -> None:
    found = one(engine(block_size=announced, sources=(source(block_sizes=seen),)))

    assert found[:2] == (level, "block size")


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"connected": False}, Level.FAIL, "nothing answers at tcp://h:5557"),
        ({"undecodable": 1}, Level.FAIL, "1 of 2 batches are no KV events"),
        ({"undecodable": 1, "why": "no list"}, Level.FAIL, "are no KV events: no list"),
        (
            {"odd": 3, "why": "no number"},
            Level.WARN,
            "3 events left out, since unreadable: no number",
        ),
        ({"stored_blocks": 0}, Level.FAIL, "nothing heard at tcp://h:5557"),
        ({"replay": ""}, Level.WARN, "no replay socket"),
        ({"replay_connected": False}, Level.FAIL, "the replay socket tcp://h:5657"),
        ({"unknown": 3}, Level.WARN, "3 fields or events"),
        (
            {"groups": (GroupSeen(0, "mamba"), GroupSeen(1, "sliding_window"))},
            *(Level.WARN, "only blocks of mamba, sliding_window are told"),
        ),
        (
            {"groups": (GroupSeen(0, "full_attention", 16), GroupSeen(3, "spiral", 16))},
            *(Level.WARN, "group 3 is of kind spiral, whose rule this kvmesh does not know"),
        ),
    ],
)
def test_what_is_wrong_with_a_publisher_is_named(
    changes: dict[str, Any], level: Level, words: str
) -> None:
    found, topic, text = one(engine(sources=(source(**changes),)))

    assert (found, topic) == (level, "events of rank 0")
    assert words in text


@pytest.mark.parametrize(
    ("changes", "level", "topic", "words"),
    [
        ({"error": "timeout"}, Level.WARN, "probe", "no answer to a prompt: timeout"),
        ({"cached_tokens": None}, Level.WARN, "reuse", "does not report cached tokens"),
        ({"cached_tokens": 0}, Level.FAIL, "reuse", "computed twice"),
        ({"ids_differ_at": 3}, Level.FAIL, "tokenizer", "qwen differs"),
        ({"ids_differ_at": None}, Level.WARN, "tokenizer", "not compared"),
    ],
)
def test_what_a_prompt_sent_twice_shows_is_named(
    changes: dict[str, Any], level: Level, topic: str, words: str
) -> None:
    found = one(engine(probe=probe(**changes)))

    assert found[:2] == (level, topic)
    assert words in found[2]
