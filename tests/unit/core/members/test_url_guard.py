from kvmesh.core.members.url_guard import MOST, REMEMBER_S, UrlGuard

BAD = "http://169.254.169.254"


def test_a_refusal_is_news_once_and_forgotten_when_it_stops() -> None:
    guard = UrlGuard()

    first, second = (guard.judge("w1", BAD, now) for now in (0.0, 1.0))

    assert first is not None
    assert first.new
    assert "http://169.254.169.254" in first.reason
    assert "--upstream-allow" in first.reason
    assert second is not None
    assert not second.new
    assert (list(guard.refused(1.0)), guard.refusals) == (["w1"], 2)
    assert guard.refused(1.0 + REMEMBER_S) == {}


def test_a_member_that_names_a_good_url_is_no_longer_shown() -> None:
    guard = UrlGuard()
    guard.judge("w1", BAD, 0.0)

    assert guard.judge("w1", "http://10.0.0.1:8000", 1.0) is None
    assert guard.refused(1.0) == {}


def test_an_address_behind_a_name_is_refused_by_the_names_host() -> None:
    guard = UrlGuard()

    assert "link-local" in guard.judge_peer("engine", 8000, "169.254.169.254", 0.0)
    assert guard.judge_peer("engine", 8000, "10.0.0.1", 0.0) == ""
    assert list(guard.refused(0.0)) == ["engine"]


def test_names_from_outside_cannot_fill_the_memory() -> None:
    guard = UrlGuard()

    for number in range(10 * MOST):
        guard.judge(f"w{number}", BAD, 0.0)

    assert (len(guard.refused(0.0)), guard.refusals) == (MOST, 10 * MOST)
