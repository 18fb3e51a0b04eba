from kvmesh.core.membership import Change, ChangeKind, Membership


def kinds(*changes: Change | None) -> list[ChangeKind | None]:
    return [change.kind if change else None for change in changes]


def test_a_member_lives_until_three_and_a_half_seconds_after_its_last_sign() -> None:
    members = Membership()

    assert members.observe("w1", 1, 0.0) == Change(ChangeKind.JOINED, "w1", 1)
    assert members.observe("w1", 1, 1.0) is None
    assert members.usable(4.4) == ("w1",)
    assert members.expire(4.4) == []
    assert members.usable(4.5) == ()
    assert members.why_not("w1", 4.5) == "no heartbeat for 3.5 s"
    assert members.expire(4.5) == [Change(ChangeKind.LEFT, "w1", 1)]
    assert members.why_not("w1", 4.5) == "unknown"
    assert len(members) == 0


def test_a_late_sign_before_the_expiry_was_noticed_keeps_the_member() -> None:
    members = Membership()
    members.observe("w1", 1, 0.0)
    members.observe("w2", 1, 3.0)
    assert members.usable(5.0) == ("w2",)

    assert members.observe("w1", 1, 5.0) is None

    assert members.usable(5.0) == ("w1", "w2")


def test_a_larger_epoch_is_a_restart_and_an_older_one_is_ignored() -> None:
    members = Membership()
    members.observe("w1", 5, 0.0)
    members.mark_failed("w1", 0.0)

    assert members.observe("w1", 4, 1.0) is None
    assert members.usable(0.5) == ()
    assert members.observe("w1", 6, 0.5) == Change(ChangeKind.RESTARTED, "w1", 6)
    assert members.usable(0.5) == ("w1",)
    assert members.epoch("w1") == 6
    assert members.epoch("w2") is None


def test_a_member_from_configuration_never_expires() -> None:
    members = Membership()

    assert kinds(members.add("w1", 0.0)) == [ChangeKind.JOINED]
    assert members.add("w1", 1.0) is None
    assert members.epoch("w1") == 0
    members.observe("w1", 0, 2.0)

    assert members.expire(1e9) == []
    assert members.usable(1e9) == ("w1",)


def test_draining_and_unready_members_stay_but_get_nothing() -> None:
    members = Membership()
    members.observe("w1", 1, 0.0)

    assert kinds(members.observe("w1", 1, 1.0, draining=True)) == [ChangeKind.UPDATED]
    assert (members.usable(1.0), members.why_not("w1", 1.0)) == ((), "draining")
    assert kinds(members.observe("w1", 1, 2.0, ready=False)) == [ChangeKind.UPDATED]
    assert (members.usable(2.0), members.why_not("w1", 2.0)) == ((), "not ready")
    assert kinds(members.observe("w1", 1, 3.0)) == [ChangeKind.UPDATED]
    assert (members.usable(3.0), members.why_not("w1", 3.0)) == (("w1",), None)
    assert members.members() == ("w1",)
    assert "w1" in members


def test_a_failure_leaves_a_member_out_longer_each_time() -> None:
    members = Membership(backoff_s=1.0, max_backoff_s=3.0)
    members.add("w1", 0.0)
    now = 0.0

    for wait in (1.0, 2.0, 3.0, 3.0):
        assert kinds(members.mark_failed("w1", now)) == [ChangeKind.SUSPECTED]
        assert members.usable(now + wait - 0.1) == ()
        now += wait
        assert members.usable(now) == ("w1",)
    assert members.why_not("w1", now) is None


def test_failures_reported_while_out_count_once() -> None:
    members = Membership(backoff_s=1.0)
    members.add("w1", 0.0)

    changes = kinds(*(members.mark_failed("w1", 0.1 * number) for number in range(5)))

    assert changes == [ChangeKind.SUSPECTED, None, None, None, None]
    assert members.why_not("w1", 0.5) == "failed 1 times, tried again in 0.5 s"


def test_a_half_open_member_gets_one_request_until_its_outcome() -> None:
    members = Membership(backoff_s=1.0, max_backoff_s=30.0)
    members.add("w1", 0.0)
    members.mark_failed("w1", 0.0)
    assert members.usable(1.0) == ("w1",)

    members.mark_chosen("w1", 1.0)

    assert members.usable(1.0) == ()
    assert kinds(members.mark_failed("w1", 2.0)) == [ChangeKind.SUSPECTED]
    assert members.usable(3.9) == ()
    members.mark_chosen("w1", 4.0)
    assert kinds(members.mark_ok("w1")) == [ChangeKind.RECOVERED]
    assert members.usable(4.0) == ("w1",)
    members.mark_chosen("w1", 4.0)
    assert members.usable(4.0) == ("w1",)


def test_a_failed_probe_counts_once_like_any_failure() -> None:
    members = Membership(backoff_s=1.0)
    members.add("w1", 0.0)
    members.mark_failed("w1", 0.0)
    members.mark_chosen("w1", 1.0)

    changes = kinds(members.mark_failed("w1", 1.5), members.mark_failed("w1", 1.6))

    assert changes == [ChangeKind.SUSPECTED, None]
    assert members.usable(3.5) == ("w1",)


def test_a_probe_whose_outcome_never_comes_is_given_up() -> None:
    members = Membership(backoff_s=1.0, max_backoff_s=30.0)
    members.add("w1", 0.0)
    members.mark_failed("w1", 0.0)
    members.mark_chosen("w1", 1.0)

    assert members.usable(30.9) == ()
    assert members.usable(31.0) == ("w1",)


def test_strangers_and_trusted_members_change_nothing() -> None:
    members = Membership()
    members.add("w1", 0.0)

    assert members.mark_ok("w1") is None
    assert members.mark_ok("w2") is None
    assert members.mark_failed("w2", 0.0) is None
    assert members.remove("w2") is None
    members.mark_chosen("w2", 0.0)

    assert members.usable(0.0) == ("w1",)


def test_a_heartbeat_alone_does_not_end_suspicion() -> None:
    members = Membership(backoff_s=10.0)
    members.observe("w1", 1, 0.0)
    members.mark_failed("w1", 0.0)

    members.observe("w1", 1, 1.0)

    assert members.usable(1.0) == ()


def test_the_same_answer_is_the_same_object() -> None:
    members = Membership()
    members.observe("w1", 1, 0.0)
    first = members.usable(0.0)

    members.observe("w1", 1, 3.0)

    assert members.usable(3.6) is first


def test_the_view_shows_everyone() -> None:
    members = Membership(backoff_s=4.0)
    members.observe("w2", 7, 0.0)
    members.add("w1", 0.0)
    members.mark_failed("w1", 1.0)

    first, second = members.view(2.0)

    assert (first.member, first.usable, first.failures, first.retry_in_s) == ("w1", False, 1, 3.0)
    assert (second.member, second.epoch, second.usable, second.retry_in_s) == ("w2", 7, True, 0.0)
    assert second.last_sign_s == 2.0
    members.observe("w2", 7, 1.5)
    assert members.view(2.0)[1].last_sign_s == 0.5


def test_the_defaults_are_a_second_doubled_up_to_half_a_minute() -> None:
    members = Membership()
    members.add("w1", 0.0)
    waits: list[float] = []
    for _ in range(7):
        members.mark_failed("w1", 0.0)
        waits.append(members.view(0.0)[0].retry_in_s)
        members.mark_chosen("w1", 0.0)

    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_an_expired_member_entered_again_with_an_older_epoch_is_usable() -> None:
    members = Membership()
    members.observe("a", 2, 0.0)
    assert members.usable(10.0) == ()

    members.add("a", 10.0, epoch=1)

    assert members.usable(10.0) == ("a",)


def test_while_paused_nobody_is_dead_and_afterwards_everybody_has_time_to_speak() -> None:
    members = Membership()
    members.observe("w1", 1, 0.0)
    members.observe("w2", 1, 3.0)
    members.add("w3", 0.0)
    assert members.usable(4.0) == ("w2", "w3")

    members.pause()

    assert members.usable(1e6) == ("w1", "w2", "w3")
    assert members.expire(1e6) == []
    assert members.why_not("w1", 1e6) is None
    members.mark_failed("w1", 1e6)
    assert members.usable(1e6) == ("w2", "w3")
    members.resume(1e6)
    assert members.usable(1e6 + 3.4) == ("w1", "w2", "w3")
    members.observe("w2", 1, 1e6 + 1.0)
    assert members.usable(1e6 + 3.5) == ("w2", "w3")
    assert kinds(*members.expire(1e6 + 3.5)) == [ChangeKind.LEFT]


def test_a_pause_shortens_no_life() -> None:
    members = Membership()
    members.observe("w1", 1, 5.0)

    members.pause()
    members.resume(1.0)

    assert members.usable(8.4) == ("w1",)
    assert members.usable(8.5) == ()
