import pytest

from kvmesh.app.members.worker_option import parse_words, parse_workers
from kvmesh.errors import ConfigError


def test_a_worker_is_named_after_its_address_unless_it_has_a_name() -> None:
    workers = parse_workers(["http://gpu-1:8000/", "fast=http://gpu-2:8000@llama"])

    assert [one.worker for one in workers] == ["gpu-1-8000", "fast"]
    assert [one.url for one in workers] == ["http://gpu-1:8000", "http://gpu-2:8000"]
    assert [one.models for one in workers] == [(), ("llama",)]


def test_what_the_engine_does_not_tell_may_be_given() -> None:
    text = "w=https://h:1@m,zmq=tcp://h:5557,replay=tcp://h:5567,topic=kv,bind"
    (given,) = parse_workers([text])
    (off,) = parse_workers(["http://h:1,zmq=off"])

    assert (given.worker, given.url, given.models) == ("w", "https://h:1", ("m",))
    assert (given.zmq, given.replay) == ("tcp://h:5557", "tcp://h:5567")
    assert (given.topic, given.bind) == ("kv", True)
    assert (off.worker, off.zmq, off.bind) == ("h-1", "off", False)


def test_how_prefill_and_decode_share_requests_may_be_given() -> None:
    (prefill, decode) = parse_workers(
        [
            "http://a:1,role=prefill,connector=mooncake,bootstrap=8998",
            "http://b:1,role=decode,connector=mooncake",
        ]
    )

    assert (prefill.connector, prefill.bootstrap_port) == ("mooncake", 8998)
    assert (decode.connector, decode.bootstrap_port) == ("mooncake", 0)


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ([], "--worker"),
        (["gpu-1:8000"], "gpu-1:8000"),
        (["http://a:1", "http://a:1"], "two workers are called a-1"),
        (["http://a:1,events=x"], "'events' is none of zmq"),
        (["http://a:1,zmq=5557"], "tcp://host:5557"),
        (["http://a:1,role=prefil"], "role=prefil is none of both, prefill, decode"),
        (["http://a:1,bootstrap=x"], "bootstrap='x' is no port"),
        (["http://a:1,bootstrap=65536"], "bootstrap='65536' is no port"),
        (["http://a:1,connector=nixel"], "connector='nixel' is none of nixl, nixl-push, mooncake"),
        (["http://a:1,role=prefill,connector=mooncake"], "give its bootstrap port"),
        (["http://a:1,role=decode,connector=p2p-nccl"], "where the decode worker's side channel"),
        (["http://a:1,replay=tcp://h:1"], "need zmq="),
    ],
)
def test_a_bad_worker_is_named_with_the_remedy(texts: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_workers(texts)


def test_labels_and_taints_may_come_more_than_once() -> None:
    (worker,) = parse_workers(["w0=http://h:1,label=gpu:h100,label=zone:a,taint=batch"])

    assert worker.labels == ("gpu:h100", "zone:a")
    assert worker.taints == ("batch",)
    assert parse_words(["kvmesh/price/2.5"], "--label") == ("kvmesh/price/2.5",)
    with pytest.raises(ConfigError, match="'a b': use letters"):
        parse_workers(["http://h:1,label=a b"])


@pytest.mark.parametrize("price", ["", "0", "-1", "nan", "inf", "1e999", "1e10", "dear"])
def test_a_price_that_is_none_is_refused(price: str) -> None:
    with pytest.raises(ConfigError, match=r"--label 'kvmesh/price/.*kvmesh/price/NUMBER, from"):
        parse_words([f"kvmesh/price/{price}"], "--label")
