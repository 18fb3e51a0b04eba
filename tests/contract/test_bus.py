"""What every Bus promises."""

from typing import Any

import pytest


async def subscribed(backend: Any, pattern: str) -> tuple[Any, Any, list[tuple[str, bytes]]]:
    bus = await backend.bus()
    messages: list[tuple[str, bytes]] = []
    subscription = await bus.subscribe(
        f"{backend.prefix}.{pattern}", lambda subject, data: messages.append((subject, data))
    )
    return bus, subscription, messages


async def test_a_message_reaches_every_matching_subscription_once(
    backend: Any, eventually: Any
) -> None:
    bus, _, first = await subscribed(backend, "hb.>")
    _, _, second = await subscribed(backend, "hb.code.*")
    subject = f"{backend.prefix}.hb.code.w1"

    bus.publish(subject, b"alive")
    await eventually(lambda: first and second)

    assert first == second == [(subject, b"alive")]


async def test_messages_of_one_publisher_keep_their_order(backend: Any, eventually: Any) -> None:
    bus, _, messages = await subscribed(backend, "hb.>")

    for number in range(500):
        bus.publish(f"{backend.prefix}.hb.code.w1", b"%d" % number)
    await eventually(lambda: len(messages) == 500)

    assert [data for _, data in messages] == [b"%d" % number for number in range(500)]


@pytest.mark.parametrize(
    ("pattern", "subject", "matches"),
    [
        ("hb.code.w1", "hb.code.w1", True),
        ("hb.code.*", "hb.code.w1", True),
        ("hb.*.w1", "hb.code.w1", True),
        ("hb.*", "hb.code.w1", False),
        ("hb.>", "hb.code.w1", True),
        ("hb.code.w1.>", "hb.code.w1", False),
        ("hb.code.w2", "hb.code.w1", False),
        ("hb.chat.>", "hb.code.w1", False),
    ],
)
async def test_wildcards_match_words(
    backend: Any, eventually: Any, pattern: str, subject: str, matches: bool
) -> None:
    bus, _, messages = await subscribed(backend, pattern)
    fence: list[Any] = []
    await bus.subscribe(f"{backend.prefix}.fence", lambda *each: fence.append(each))

    bus.publish(f"{backend.prefix}.{subject}", b"x")
    bus.publish(f"{backend.prefix}.fence", b"")
    await eventually(lambda: fence)

    assert bool(messages) == matches


async def test_publish_never_delivers_from_within(backend: Any, eventually: Any) -> None:
    bus, _, messages = await subscribed(backend, "hb.>")

    bus.publish(f"{backend.prefix}.hb.code.w1", b"x")

    assert messages == []
    await eventually(lambda: messages)


async def test_nothing_is_delivered_after_close(backend: Any, eventually: Any) -> None:
    bus, subscription, closed = await subscribed(backend, "hb.>")
    running: list[Any] = []
    await bus.subscribe(f"{backend.prefix}.hb.>", lambda *each: running.append(each))

    await subscription.close()
    await subscription.close()
    bus.publish(f"{backend.prefix}.hb.code.w1", b"x")
    await eventually(lambda: running)

    assert closed == []


async def test_publishing_to_nobody_is_no_error(backend: Any) -> None:
    bus = await backend.bus()

    bus.publish(f"{backend.prefix}.hb.code.w1", b"x")


async def test_a_subscriber_that_raises_gets_the_next_message(
    backend: Any, eventually: Any, reported: Any
) -> None:
    bus, received = await backend.bus(), []

    def deliver(subject: str, data: bytes) -> None:
        del subject
        received.append(data)
        if data == b"1":
            raise ValueError("odd")

    await bus.subscribe(f"{backend.prefix}.hb.>", deliver)
    for data in (b"1", b"2"):
        bus.publish(f"{backend.prefix}.hb.code.w1", data)
    await eventually(lambda: received == [b"1", b"2"])

    assert [str(one["exception"]) for one in reported] == ["odd"]
