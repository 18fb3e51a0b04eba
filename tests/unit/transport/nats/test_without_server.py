"""Options, names and answers, as far as they need no server."""

import asyncio
from pathlib import Path

import msgspec
import nats.errors
import pytest

from kvmesh.errors import ConfigError, TransportError
from kvmesh.transport.nats.jetstream.api import (
    NO_ANSWER,
    ApiError,
    ErrorBody,
    Ignored,
    StoredMessage,
    StreamInfo,
    decode_answer,
    is_passing,
    refusal,
    shortage,
)
from kvmesh.transport.nats.jetstream.journal import MAX_OUTSTANDING, JournalOptions, NatsJournal
from kvmesh.transport.nats.jetstream.kv import KeyValueOptions, NatsKeyValue, is_marker
from kvmesh.transport.nats.jetstream.objects import decode_digest, seconds_of, to_info, to_meta
from kvmesh.transport.nats.link import troubles
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions
from kvmesh.transport.nats.link.login import denied_subject, hide_password, is_fatal

JOURNAL = JournalOptions(stream="S", subjects=("ev.*",), max_age_s=5)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
        ("nats://user:p@ss@host:4222", "nats://host:4222"),
        ("nats://a:b@one:1, tls://c:d@two:2", "nats://one:1,tls://two:2"),
        ("token@host", "host"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert hide_password(url) == shown


def test_only_a_refused_login_ends_the_first_connect() -> None:
    assert is_fatal("nats: 'Authorization Violation'")
    assert is_fatal("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    assert is_fatal("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")
    assert not is_fatal("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol")
    assert not is_fatal("[Errno 111] Connect call failed ('127.0.0.1', 4222)")


def test_a_denied_subject_is_found_in_the_servers_words() -> None:
    error = 'nats: Permissions Violation for Publish to "$JS.API.STREAM.CREATE.S"'

    assert denied_subject(error) == "$js.api.stream.create.s"
    assert denied_subject("nats: Slow Consumer") == ""


async def test_a_file_without_a_seed_is_named(tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    seed.write_text("SUAxxx")

    with pytest.raises(ConfigError, match=r"seed: holds no nkey seed"):
        await NatsConnection(NatsOptions(creds=seed)).connect()


async def test_a_url_that_is_none_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="connect url"):
        await NatsConnection(NatsOptions(url="nats://:99999999")).connect()


def test_an_error_answer_keeps_its_code() -> None:
    data = b'{"error":{"code":404,"err_code":10059,"description":"stream not found"}}'

    with pytest.raises(ApiError, match="stream not found") as caught:
        decode_answer("STREAM.INFO.S", data, StreamInfo)

    assert caught.value.code == 10059


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"config":1}', b"\xff"])
def test_a_garbage_answer_is_a_transport_error(data: bytes) -> None:
    with pytest.raises(TransportError, match="not a JetStream answer"):
        decode_answer("STREAM.INFO.S", data, StreamInfo)


def test_what_a_forming_cluster_says_is_asked_again() -> None:
    silence = TransportError("no answer")
    silence.__cause__ = TimeoutError()

    assert is_passing(silence)
    assert is_passing(ApiError("no suitable peers", 10005))
    assert not is_passing(ApiError("stream not found", 10059))
    assert not is_passing(TransportError("nobody listens"))
    assert decode_answer("x", b"{}", Ignored) == Ignored()


def test_the_streams_settings_are_those_that_were_decided() -> None:
    config = JOURNAL.to_config()

    assert config["max_age"] == 5_000_000_000
    assert config["duplicate_window"] == 5_000_000_000
    assert config["deny_delete"] is True
    assert "allow_rollup_hdrs" not in config
    assert KeyValueOptions(bucket="b").to_config()["allow_direct"] is False


async def test_appending_while_disconnected_is_counted_and_never_acked() -> None:
    journal = NatsJournal(NatsConnection(NatsOptions()), JOURNAL)

    journal.append("ev.w1", b"x", lambda _: pytest.fail("nothing was sent"))

    assert journal.statistics().unsent == 1
    assert journal.statistics().outstanding == 0


async def connected_journal() -> NatsJournal:
    journal = NatsJournal(NatsConnection(NatsOptions()), JOURNAL)
    # Stands in for the socket.
    journal._client.publish_nowait = lambda *_: None  # type: ignore[method-assign]
    return journal


async def test_the_oldest_unanswered_appends_are_forgotten() -> None:
    journal = await connected_journal()
    acks: list[int] = []

    for _ in range(MAX_OUTSTANDING + 2):
        journal.append("ev.w1", b"x", acks.append)
    journal._on_ack(f"{journal._inbox}1", b"", b'{"seq":1}', None)
    journal._on_ack(f"{journal._inbox}3", b"", b'{"seq":3}', None)

    assert acks == [3]
    assert journal.statistics().forgotten == 2


@pytest.mark.parametrize(
    ("number", "data", "headers", "count", "acked"),
    [
        ("1", b"garbage", None, "refused", []),
        ("x", b'{"seq":1}', None, "refused", [9]),
        ("1", b'{"error":{"err_code":10077,"description":"no room"}}', None, "refused", []),
        ("1", b'{"seq":4,"duplicate":true}', None, "duplicates", [4]),
        ("1", b"", b"NATS/1.0 503\r\n\r\n", "homeless", []),
    ],
)
async def test_an_ack_counts_as_what_it_is(
    number: str, data: bytes, headers: bytes | None, count: str, acked: list[int]
) -> None:
    journal = await connected_journal()
    acks: list[int] = []
    journal.append("ev.w1", b"x", acks.append)

    journal._on_ack(f"{journal._inbox}{number}", b"", data, headers)
    journal._on_ack(f"{journal._inbox}1", b"", b'{"seq":9}', None)

    statistics = journal.statistics()
    counts = {one: getattr(statistics, one) for one in ("refused", "duplicates", "homeless")}
    assert counts == {**dict.fromkeys(counts, 0), count: 1}
    assert acks == acked


async def test_appends_that_nobody_answers_are_a_trouble_until_one_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = NatsConnection(NatsOptions())
    journal = NatsJournal(connection, JOURNAL)
    journal._client.publish_nowait = lambda *_: None  # type: ignore[method-assign]
    clock = [0.0]
    journal._now = lambda: clock[0]

    def append_at(second: float) -> tuple[str, ...]:
        clock[0] = second
        journal.append("ev.w1", b"x", lambda _: None)
        return connection.troubles.warnings()

    assert not any(append_at(float(second)) for second in range(6))
    # Nothing was sent for a while: it is not the server that was silent.
    assert not any(append_at(float(second)) for second in range(60, 66))
    silent = ("JetStream: writes to S: no answer, is its disk full?",)
    assert append_at(66.0) == silent

    monkeypatch.setattr(troubles, "SURE_S", 0.0)
    journal._on_ack(f"{journal._inbox}1", b"", b'{"seq":1}', None)
    await asyncio.sleep(0.01)
    assert connection.troubles.warnings() == ()
    assert append_at(67.0) == ()


async def test_a_full_buffer_is_no_silence_of_the_servers() -> None:
    connection = NatsConnection(NatsOptions())
    journal = NatsJournal(connection, JOURNAL)
    clock = [0.0]
    journal._now = lambda: clock[0]

    def publish(*_: object) -> None:
        if clock[0] % 2:
            raise nats.errors.OutboundBufferLimitError

    journal._client.publish_nowait = publish  # type: ignore[assignment]
    for second in range(20):
        clock[0] = float(second)
        journal.append("ev.w1", b"x", lambda _: None)

    assert journal.statistics().unsent == 10
    assert connection.troubles.warnings() == ()


def test_a_shortage_is_told_from_other_refusals() -> None:
    silence = TransportError("no answer in 2 s")
    silence.__cause__ = TimeoutError()

    assert shortage(silence) == NO_ANSWER
    assert shortage(refusal("S", ErrorBody(503, 10023, "no room"))) == "no room (code 10023)"
    assert shortage(refusal("S", ErrorBody(400, 10071, "wrong last sequence"))) == ""
    assert shortage(TransportError("nobody listens")) == ""


async def test_a_message_that_cannot_be_sent_is_refused() -> None:
    journal = NatsJournal(NatsConnection(NatsOptions()), JOURNAL)
    journal._client._status = journal._client.CONNECTED
    journal._client._room = 1024

    journal.append("two words", b"x", lambda _: pytest.fail("nothing was sent"))

    assert journal.statistics().refused == 1


@pytest.mark.parametrize("key", ["", ".a", "a.", "a..b", "a b", "a*", ">", "ä"])
async def test_a_key_that_is_no_subject_is_refused(key: str) -> None:
    store = NatsKeyValue(NatsConnection(NatsOptions()), KeyValueOptions(bucket="b"))

    with pytest.raises(TransportError, match="use letters"):
        await store.get(key)


@pytest.mark.parametrize(
    ("headers", "marker"),
    [
        (b"", False),
        (b"NATS/1.0\r\nNats-TTL: 3s\r\n\r\n", False),
        (b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n", True),
        (b"NATS/1.0\r\nKV-Operation: PURGE\r\n\r\n", True),
        (b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 10s\r\n\r\n", True),
    ],
)
def test_markers_are_told_from_values(headers: bytes, marker: bool) -> None:
    assert is_marker(StoredMessage("$KV.b.k", 1, hdrs=headers)) is marker


def test_a_meta_message_that_is_none_is_no_object() -> None:
    garbage = StoredMessage("$O.b.M.x", 1, data=b"garbage")
    deleted = StoredMessage("$O.b.M.x", 1, data=b'{"name":"x","deleted":true}')

    assert to_meta(garbage) is None
    assert to_info(garbage) is None
    assert to_info(deleted) is None
    assert decode_digest("SHA-256=AAEC") == b"\x00\x01\x02"
    assert decode_digest("SHA-256=A") == b""


def test_server_times_are_read_with_nanoseconds_and_without() -> None:
    assert seconds_of("1970-01-01T00:00:10Z") == 10
    assert seconds_of("1970-01-01T00:00:10.5Z") == 10.5
    assert seconds_of("1970-01-01T00:00:10.123456789Z") == pytest.approx(10.123456)


def test_stream_info_of_an_unused_stream_starts_at_one() -> None:
    data = msgspec.json.encode({"config": {}, "created": "t", "state": {"messages": 0}})

    assert decode_answer("x", data, StreamInfo).to_state().first_sequence == 1
