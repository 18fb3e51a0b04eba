from kvmesh.core.members.incarnations import Incarnations

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


def test_marks_are_asked_of_a_worker_known_by_a_version_without() -> None:
    incarnations = Incarnations()
    assert incarnations.to_pass(W, 0, 10, None) is None
    assert incarnations.to_pass(W, 0, 3, 10) is None

    assert incarnations.to_pass(W, 7, 3, 10) == 10
    assert incarnations.to_pass(W, 7, 10, 10) is None
