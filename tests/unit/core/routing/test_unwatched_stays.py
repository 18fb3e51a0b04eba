from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.routing.unwatched_stays import MOST_S, Stays

W1, W2 = WorkerId("w1"), WorkerId("w2")


def test_the_time_of_a_token_is_a_ratio_of_means() -> None:
    stays = Stays()

    stays.learn(W1, 100, 1.0)
    stays.learn(W1, 300, 5.0)

    assert stays.ms_per_token(W1) == 6.0 * 1000.0 / 400


def test_a_worker_has_the_fleets_time_until_it_has_shown_its_own() -> None:
    stays = Stays()
    for _ in range(19):
        stays.learn(W1, 100, 1.0)
        stays.learn(W2, 100, 3.0)

    before = stays.ms_per_token(W1)
    stays.learn(W1, 100, 1.0)

    assert 15.0 < before < 25.0
    assert stays.ms_per_token(W1) == 10.0


def test_a_worker_that_left_is_forgotten() -> None:
    stays = Stays()
    for _ in range(20):
        stays.learn(W1, 100, 1.0)
    for _ in range(60):
        stays.learn(W2, 100, 3.0)

    stays.retain({W2})

    assert stays.ms_per_token(W1) == stays.ms_per_token(WorkerId("never seen")) > 20.0


def test_what_makes_no_sense_teaches_nothing() -> None:
    stays = Stays()

    stays.learn(W1, 0, 1.0)
    stays.learn(W1, 10, -1.0)
    stays.learn(W1, 10, MOST_S + 1.0)
    stays.learn(W1, 10, float("nan"))

    assert stays.ms_per_token(W1) == 0.0
