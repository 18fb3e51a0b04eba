from kvmesh.core.members.incarnations import MOST_FORMER, Incarnations

W = "w"


def test_a_low_epoch_of_an_incarnation_never_seen_has_to_be_raised() -> None:
    incarnations = Incarnations()
    assert incarnations.to_pass(W, 7, 10, None) is None

    assert incarnations.to_pass(W, 8, 3, 10) == 10
    assert incarnations.to_pass(W, 8, 11, 10) is None
    assert incarnations.to_pass(W, 8, 11, 11) is None


def test_two_incarnations_with_one_epoch_are_told_apart() -> None:
    incarnations = Incarnations()
    incarnations.to_pass(W, 7, 10, None)

    assert incarnations.to_pass(W, 7, 10, 10) is None
    assert incarnations.to_pass(W, 8, 10, 10) == 11


def test_a_former_incarnation_is_not_asked() -> None:
    incarnations = Incarnations()
    for mark in range(1, MOST_FORMER + 2):
        incarnations.to_pass(W, mark, 10 * mark, 10 * mark - 10)

    assert all(incarnations.to_pass(W, one, 1, 90) is None for one in range(1, MOST_FORMER + 1))


def test_marks_are_asked_of_a_worker_known_by_a_version_without() -> None:
    incarnations = Incarnations()
    assert incarnations.to_pass(W, 0, 10, None) is None
    assert incarnations.to_pass(W, 0, 3, 10) is None

    assert incarnations.to_pass(W, 7, 3, 10) == 10
    assert incarnations.to_pass(W, 7, 10, 10) is None


def test_a_worker_that_left_begins_anew() -> None:
    incarnations = Incarnations()
    incarnations.to_pass(W, 7, 10, None)
    incarnations.to_pass(W, 8, 20, 10)
    incarnations.forget(W)

    assert incarnations.to_pass(W, 7, 3, None) is None
    assert incarnations.to_pass(W, 8, 3, 10) == 10
