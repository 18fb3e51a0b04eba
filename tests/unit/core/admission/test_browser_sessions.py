"""Sessions of browsers: what opens, and what does not."""

from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.admission.browser_sessions import (
    AHEAD_S,
    MOST_ENDED,
    NONCE_BYTES,
    SESSION_S,
    BrowserSessions,
)

ANN, BEN = "aa" * 32, "bb" * 32
NOW = 1.8e9


def nonce(number: int) -> bytes:
    return number.to_bytes(NONCE_BYTES, "big")


def sessions(secret: bytes = b"s", *digests: str) -> BrowserSessions:
    made = BrowserSessions(secret)
    made.replace(digests or (ANN, BEN))
    return made


def test_a_session_is_its_keys_for_a_working_day_and_names_no_key() -> None:
    made = sessions()
    cookie = made.begin(ANN, nonce(1), NOW)

    assert (made.find(cookie, NOW), made.find(cookie, NOW + SESSION_S - 1)) == (ANN, ANN)
    assert made.find(cookie, NOW + SESSION_S) is None
    assert ANN not in cookie
    assert bytes.fromhex(ANN) not in urlsafe_b64decode(cookie)
    assert made.begin(BEN, nonce(1), NOW) != cookie


def test_processes_with_one_secret_know_each_others_sessions_and_no_others() -> None:
    cookie = sessions(b"one").begin(ANN, nonce(1), NOW)

    assert sessions(b"one").find(cookie, NOW - AHEAD_S + 1) == ANN
    assert sessions(b"one").find(cookie, NOW - AHEAD_S - 1) is None
    assert sessions(b"two").find(cookie, NOW) is None


def test_a_session_is_over_with_its_key() -> None:
    made = sessions()
    cookie = made.begin(ANN, nonce(1), NOW)
    made.end(made.begin(ANN, nonce(2), NOW), NOW)

    made.replace((BEN,))
    assert made.find(cookie, NOW) is None
    made.replace((ANN, BEN))
    assert made.find(cookie, NOW) == ANN


@given(st.integers(0, 1000), st.integers(1, 255))
def test_no_changed_cookie_opens(place: int, change: int) -> None:
    made = sessions()
    data = bytearray(urlsafe_b64decode(made.begin(ANN, nonce(1), NOW)))
    data[place % len(data)] ^= change

    assert made.find(urlsafe_b64encode(bytes(data)).decode(), NOW) is None


@given(st.text(max_size=200))
def test_no_text_opens(text: str) -> None:
    assert sessions().find(text, NOW) is None


@pytest.mark.parametrize("text", ["", "é" * 96, "*" * 96, "*" + "A" * 95, "A" * 95 + "=", "A" * 96])
def test_what_is_no_cookie_does_not_open(text: str) -> None:
    made = sessions()
    made.end(text, NOW)

    assert made.find(text, NOW) is None


def test_an_ended_session_is_over_and_others_go_on() -> None:
    made = sessions()
    first, second = made.begin(ANN, nonce(1), NOW), made.begin(ANN, nonce(2), NOW)

    made.end(first, NOW + 1)
    made.end(first, NOW + 1)

    assert made.find(first, NOW + 2) is None
    assert made.find(second, NOW + 2) == ANN


def test_ends_are_bounded_and_none_comes_back() -> None:
    made = sessions()
    kept = made.begin(BEN, nonce(0), NOW)
    ended = [made.begin(ANN, nonce(number), NOW) for number in range(MOST_ENDED + 1)]
    for cookie in ended:
        made.end(cookie, NOW + 1)

    assert {made.find(cookie, NOW + 2) for cookie in ended} == {None}
    assert made.find(kept, NOW + 2) == BEN
    assert made.find(made.begin(ANN, nonce(1), NOW + 2), NOW + 2) == ANN


def test_ends_are_forgotten_when_nobody_could_use_them() -> None:
    made = sessions()
    late = NOW + SESSION_S + 1
    for number in range(MOST_ENDED):
        made.end(made.begin(ANN, nonce(number), NOW), NOW)
    last = made.begin(ANN, nonce(999), late)
    made.end(made.begin(ANN, nonce(1000), late), late)

    assert made.find(last, late) == ANN
