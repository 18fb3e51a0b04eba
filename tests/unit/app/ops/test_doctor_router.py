from typing import Any

import msgspec
import pytest

from kvmesh.app.ops.doctor_router import RouterFacts, Signatures, WorkerFacts, check_router
from kvmesh.core.engines.seen import EngineSeen, Finding, Level, ProbeSeen, SourceSeen

ENGINE = EngineSeen(
    url="http://h:8000",
    models=("m",),
    block_size=16,
    sources=(SourceSeen(0, "tcp://h:5557", block_sizes=(16,)),),
    probe=ProbeSeen(prompt_tokens=70, cached_tokens=64),
)


def worker(**changes: Any) -> WorkerFacts:
    seen: dict[str, Any] = {
        "worker": "w",
        "url": "http://H:8000/",
        "models": ("m",),
        "trust": "exact",
    }
    return WorkerFacts(**seen | changes)


def router(**changes: Any) -> RouterFacts:
    seen: dict[str, Any] = {
        "url": "http://r:1",
        "block_size": 16,
        "workers": (worker(), worker(worker="x", url="http://other:8000")),
        "prompt_tokens": 70,
        "overlap_blocks": {"w": 4, "x": 0},
    }
    return RouterFacts(**seen | changes)


def wrong(seen: RouterFacts, engine: EngineSeen = ENGINE) -> list[Finding]:
    """What is not OK; everything that is not has a remedy, and nothing else has."""
    findings = check_router(seen, engine)
    for finding in findings:
        assert bool(finding.remedy) is (finding.level is not Level.OK), finding
    return [finding for finding in findings if finding.level is not Level.OK]


def one(seen: RouterFacts, engine: EngineSeen = ENGINE) -> tuple[Level, str, str]:
    (finding,) = wrong(seen, engine)
    return finding.level, finding.topic, finding.text


def test_nothing_is_wrong_when_the_router_sees_what_the_engine_cached() -> None:
    findings = check_router(router(), ENGINE)

    assert {finding.level for finding in findings} == {Level.OK}
    assert [finding.topic for finding in findings] == [
        "router",
        "router block size",
        "worker w",
        "router tokenizer",
        "end to end",
    ]


def test_each_refusal_of_a_signature_is_a_fault_and_not_looking_at_them_is_told() -> None:
    refusing = Signatures(verifies=True, refused=("the clock of chat/w0 is 600 s behind",))

    assert one(router(signatures=refusing)) == (Level.FAIL, "signatures", refusing.refused[0])
    level, topic, text = one(router(signatures=Signatures(verifies=False)))
    assert (level, topic) == (Level.WARN, "signatures")
    assert "verifies none" in text
    assert not wrong(router(signatures=Signatures(verifies=True)))


def test_what_is_no_router_is_said_to_be_none() -> None:
    assert one(router(error="404")) == (Level.FAIL, "router", "http://r:1: 404")


@pytest.mark.parametrize(
    ("changes", "level", "topic", "words"),
    [
        ({"why_not_ready": "draining"}, Level.WARN, "router", "not ready: draining"),
        ({"mode": "random"}, Level.FAIL, "router mode", "does not look at caches"),
        ({"kv_events": False}, Level.WARN, "router mode", "guessed"),
        (
            {"block_sizes": (32, 64), "workers": ()},
            *(Level.FAIL, "router block size", "blocks of 32, 64, as --kv-cache-block-size says"),
        ),
        (
            {"block_size": 32, "block_size_from": "default", "workers": ()},
            *(Level.FAIL, "router block size", "by default, no worker has reported its own"),
        ),
        ({"workers": ()}, Level.FAIL, "sidecar", "(its workers: none)"),
        ({"workers": (worker(url="http://o:1"),)}, Level.FAIL, "sidecar", "w at http://o:1"),
        ({"prompt_tokens": 400}, Level.FAIL, "router tokenizer", "counts 400 tokens"),
        ({"overlap_blocks": {"x": 4}}, Level.FAIL, "end to end", "sees nothing"),
        ({"overlap_blocks": None}, Level.FAIL, "end to end", "sees nothing"),
    ],
)
def test_what_is_wrong_with_a_router_is_named(
    changes: dict[str, Any], level: Level, topic: str, words: str
) -> None:
    finding = wrong(router(**changes))[0]

    assert (finding.level, finding.topic) == (level, topic)
    assert words in finding.text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"why_not": "silent for 9 s"}, "gets no requests: silent for 9 s"),
        ({"trust": "catching-up"}, "not all read yet"),
        ({"trust": "degraded"}, "events were lost"),
        ({"trust": "approx"}, "it has no events"),
        ({"models": ("other",)}, "its sidecar says ['other'], the engine serves ['m']"),
    ],
)
def test_why_a_worker_is_not_exact_is_said(changes: dict[str, Any], words: str) -> None:
    level, topic, text = one(router(workers=(worker(**changes),)))

    assert (level, topic) == (Level.FAIL, "worker w")
    assert words in text


def test_any_of_the_sizes_that_a_router_looks_for_is_right() -> None:
    assert not wrong(router(block_size=8, block_sizes=(8, 16)))


def test_a_cache_that_changes_before_requests_start_is_a_warning() -> None:
    assert [
        (one.level, one.topic) for one in wrong(router(workers=(worker(trust="estimated"),)))
    ] == [(Level.WARN, "worker w")]


def test_without_events_a_guessed_worker_is_only_doubtful() -> None:
    seen = router(kv_events=False, workers=(worker(trust="approx"),))

    assert {finding.level for finding in wrong(seen)} == {Level.WARN}


@pytest.mark.parametrize("probe", [None, ProbeSeen(error="400")])
def test_without_a_prompt_nothing_is_compared(probe: ProbeSeen | None) -> None:
    engine = EngineSeen(url="http://h:8000", models=("m",), probe=probe)

    topics = [finding.topic for finding in check_router(router(), engine)]

    assert topics == ["router", "worker w"]


def test_the_engines_own_block_size_counts_where_no_event_shows_one() -> None:
    engine = msgspec.structs.replace(ENGINE, sources=(), block_size=32)

    assert (
        "the engine's have 32"
        in {one.topic: one.text for one in wrong(router(), engine)}["router block size"]
    )


def test_a_worker_refused_for_its_url_is_named_with_the_remedy() -> None:
    (finding,) = wrong(router(refused={"w9": "its URL is refused: link-local"}))

    assert (finding.level, finding.topic) == (Level.FAIL, "worker w9")
    assert "link-local" in finding.text
    assert "--upstream-allow" in finding.remedy


def test_members_of_several_versions_are_a_warning() -> None:
    seen = router(versions={"router": {"1.4.0": 2}, "worker": {"1.4.0": 1, "untold": 3}})

    assert one(seen) == (
        Level.WARN,
        "versions",
        "the bucket runs several: 2 routers 1.4.0, 1 worker 1.4.0, 3 workers untold",
    )


def test_what_a_router_cannot_read_is_a_failure() -> None:
    seen = router(unread=("journal of w0 has format 2",), versions={"router": {"1.4.0": 2}})

    assert one(seen) == (Level.FAIL, "versions", "journal of w0 has format 2")


def test_a_worker_that_is_not_read_has_not_lost_its_events() -> None:
    line = "worker w has journal format 2, of kvmesh 1.5.0"
    seen = router(unread=(line,), workers=(worker(trust="degraded"),))

    found = [(finding.topic, finding.text) for finding in wrong(seen)]

    assert found == [
        ("versions", line),
        ("worker w", "this router does not read the format of its records"),
    ]
