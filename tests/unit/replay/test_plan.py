import dataclasses
import gzip
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.replay.options import ReplayOptions
from kvmesh_lab.replay.plan import RequestFactory, assign_buckets, load_slice, read_lines

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
MOONCAKE = TRACES / "mooncake_conversation_80_b512.jsonl"
SESSIONS = TRACES / "sessions_b64.jsonl"


def test_a_slice_is_cut_smoothed_scaled_and_clipped() -> None:
    options = ReplayOptions(
        trace=MOONCAKE, skip=5, requests=20, speedup=10, max_input_tokens=1000, output_tokens=7
    )

    found = load_slice(options)

    assert found.block_size == 512
    assert len(found.requests) == 20
    times = [request.timestamp_ms for request in found.requests]
    assert times[0] == 0
    assert len(set(times)) == 20
    assert max(times) < 900
    assert max(request.input_tokens for request in found.requests) == 1000
    assert max(request.output_tokens for request in found.requests) == 7
    assert found.requests[0].index == 5


def test_rounded_times_are_kept_when_asked() -> None:
    found = load_slice(ReplayOptions(trace=MOONCAKE, smooth=False))

    assert {request.timestamp_ms % 1000 for request in found.requests} <= {0, 999}


def test_gzip_is_told_by_content_and_the_block_size_inferred(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(gzip.compress(SESSIONS.read_bytes()))

    assert load_slice(ReplayOptions(trace=path)).block_size == 64


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.exists(), "no such trace file"),
        (lambda path: path.mkdir(), "cannot be read"),
        (lambda path: path.write_bytes(gzip.compress(bytes(range(256)))[:99]), "cannot be read"),
        (lambda path: path.write_bytes(b"\x1f\x8b" + b"x" * 40), "cannot be read"),
        (lambda path: path.write_bytes(b"{}\n"), r"t\.jsonl:1: .*input_length"),
    ],
)
def test_a_file_that_is_no_trace_is_named(
    tmp_path: Path, write: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "t.jsonl"
    write(path)

    with pytest.raises(ConfigError, match=message):
        load_slice(ReplayOptions(trace=path))


def test_lines_of_a_plain_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"a\nb\n")

    assert read_lines(path) == [b"a", b"b"]


def test_chat_and_completions_carry_the_prompt_where_it_belongs() -> None:
    chat = ReplayOptions(trace=SESSIONS)
    raw = ReplayOptions(trace=SESSIONS, endpoint="completions", prompt_unit="token-ids")
    trace = load_slice(chat)
    request = trace.requests[0]

    chat_factory = RequestFactory(chat, trace, "m", "", "0")
    raw_factory = RequestFactory(dataclasses.replace(raw, ignore_eos=False), trace, "m", "kv", "0")

    body = msgspec.json.decode(chat_factory.body(request))
    assert chat_factory.path == "/v1/chat/completions"
    assert len(body["messages"][0]["content"]) == request.input_tokens
    assert body["stream_options"] == {"include_usage": True}
    assert (body["max_tokens"], body["ignore_eos"]) == (request.output_tokens, True)
    body = msgspec.json.decode(raw_factory.body(request))
    assert raw_factory.path == "/v1/completions"
    assert len(body["prompt"]) == request.input_tokens
    assert "ignore_eos" not in body
    assert (b"x-kvmesh-router-mode", b"kv") in raw_factory.headers(request)


def test_key_and_bucket_go_into_headers() -> None:
    options = ReplayOptions(trace=SESSIONS, api_key="secret", bucket=("code",))
    trace = load_slice(options)

    headers = dict(RequestFactory(options, trace, "m", "", "0").headers(trace.requests[0]))

    assert headers[b"authorization"] == b"Bearer secret"
    assert headers[b"x-kvmesh-bucket"] == b"code"
    assert b"x-kvmesh-router-mode" not in headers


def test_sessions_stay_in_their_bucket() -> None:
    options = ReplayOptions(trace=SESSIONS, bucket=("a", "b"), bucket_by="session")
    requests = load_slice(options).requests

    buckets = assign_buckets(options, requests)

    by_session = {(request.session, buckets[request.index]) for request in requests}
    assert by_session == {("a", "a"), ("b", "b"), ("c", "a")}


def test_prefix_families_stay_in_their_bucket() -> None:
    options = ReplayOptions(trace=MOONCAKE, bucket=("a", "b"), bucket_by="prefix")
    requests = load_slice(options).requests

    buckets = assign_buckets(options, requests)

    assert set(buckets.values()) == {"a", "b"}
    families: dict[int, str] = {}
    for request in requests:
        first = request.block_ids[1] if len(request.block_ids) > 1 else None
        if request.block_ids[0] == 0 and first is not None:
            assert families.setdefault(first, buckets[request.index]) == buckets[request.index]


def test_sessions_are_refused_where_the_trace_has_none() -> None:
    options = ReplayOptions(trace=MOONCAKE, bucket=("a", "b"), bucket_by="session")

    with pytest.raises(ConfigError, match="--bucket-by prefix"):
        assign_buckets(options, load_slice(options).requests)
