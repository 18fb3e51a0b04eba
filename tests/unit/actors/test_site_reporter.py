import msgspec

from kvmesh.actors.kernel import Effect, Log, Publish, Wake
from kvmesh.actors.messages import AllReported, BusMessage, Started, Tick
from kvmesh.actors.site_reporter import SiteDigest, SiteReporter, digest_subject
from kvmesh.actors.wire import encode
from kvmesh.core.blocks.hashing import unpack_hashes
from kvmesh.core.buckets.beginnings import Beginning
from kvmesh.core.buckets.spill import BucketHeat, BucketLoad
from kvmesh.core.sites.sites import SiteRequest, Sites

LOADS = (BucketLoad(("m",), BucketHeat(20.0, 0.5, 3)),)


def reporter(most_bytes: int = 512) -> SiteReporter:
    sites = Sites("eu", {"us": "http://us"})
    return SiteReporter(sites, "door-1", lambda _: LOADS, lambda _: True, most_bytes)


def told(effects: object) -> SiteDigest:
    published, wake = list(effects)  # type: ignore[call-overload]
    assert isinstance(published, Publish)
    assert published.subject == "kvmesh_sites.eu.door-1"
    assert wake == Wake(1.0, Tick("tell"))
    return msgspec.msgpack.decode(published.data, type=SiteDigest)


def test_a_site_tells_its_load_and_what_is_hot_each_second() -> None:
    one = reporter()
    for now in (0.0, 0.1):
        one.hot.note([Beginning(256, 7), Beginning(512, 8)], now)

    first, second = told(one.receive(Started(), 1.0)), told(one.receive(Tick("tell"), 2.0))

    assert (first.site, first.door, first.ready, first.loads) == ("eu", "door-1", True, LOADS)
    assert unpack_hashes(first.hot) == (8, 7)
    assert second.hot == b""
    assert one.told_bytes == len(encode(first)) + len(encode(second))


def test_digests_keep_to_their_bound() -> None:
    roomy, tight = reporter(256), reporter(10)
    for one in (roomy, tight):
        for now in (0.0, 0.1):
            one.hot.note([Beginning(256, key) for key in range(1000)], now)

    roomy.receive(Started(), 1.0)

    assert 240 < roomy.told_bytes <= 256 + 2
    assert told(tight.receive(Started(), 1.0)).hot == b""


def hear(one: SiteReporter, subject: str, data: bytes) -> list[Effect]:
    return list(one.receive(BusMessage(subject, data), 1.0))


def test_what_another_site_tells_is_taken() -> None:
    sites = Sites("eu", {"us": "http://us"})
    one = SiteReporter(sites, "door-1", lambda _: (), lambda _: False, 512)
    sites.answered("us", 80.0)
    digest = SiteDigest("us", "d", True, LOADS, (7).to_bytes(8, "little"))

    assert hear(one, digest_subject("us", "d"), encode(digest)) == []

    assert sites.why_not("us", 1.0) == ""
    asked = SiteRequest("m", 256, [Beginning(256, 7)])
    assert sites.known_chars(asked, 1.0) == {"us": 256}


def test_what_is_no_digest_of_its_subject_is_refused_and_said_once() -> None:
    one = reporter()
    digest = SiteDigest("us", "d", True)
    torn = msgspec.structs.replace(digest, hot=b"123")
    unknown = SiteDigest("evil", "d", True)

    (first,) = hear(one, digest_subject("us", "d"), b"garbage")
    assert isinstance(first, Log)
    assert hear(one, digest_subject("us", "d"), encode(torn)) == []
    assert hear(one, digest_subject("ap", "d"), encode(digest)) == []
    assert hear(one, digest_subject("evil", "d"), encode(unknown)) == []

    assert one.refused.count == 4
    assert list(one.receive(AllReported(), 1.0)) == []
