from kvmesh.core.buckets.workerless import MOST_KNOWN, REST_S, TRIAL_S, Workerless


def test_a_replica_that_refused_gets_one_request_of_its_model_after_its_rest() -> None:
    workerless = Workerless()

    workerless.refused("r0", "m", 0.0)

    assert workerless.refuses("r0", "m", REST_S / 2)
    assert not workerless.refuses("r0", "other", 0.0)
    assert not workerless.refuses("r1", "m", 0.0)
    assert not workerless.refuses("r0", "m", REST_S)
    workerless.chosen("r0", "m", REST_S)
    assert workerless.refuses("r0", "m", REST_S + TRIAL_S / 2), "others wait for its answer"
    workerless.refused("r0", "m", REST_S + TRIAL_S / 2)
    assert workerless.refuses("r0", "m", REST_S + TRIAL_S)


def test_a_replica_that_did_not_refuse_its_trial_is_as_any_other() -> None:
    workerless = Workerless()
    workerless.refused("r0", "m", 0.0)
    workerless.chosen("r0", "m", REST_S)

    assert not workerless.refuses("r0", "m", REST_S + TRIAL_S)
    workerless.chosen("r0", "m", REST_S + TRIAL_S)
    workerless.chosen("r1", "m", REST_S + TRIAL_S)

    assert not workerless.pauses


def test_of_many_the_oldest_are_forgotten() -> None:
    workerless = Workerless()

    for number in range(MOST_KNOWN + 1):
        workerless.refused("r0", f"m{number}", 0.0)

    assert len(workerless.pauses) == MOST_KNOWN
    assert not workerless.refuses("r0", "m0", 0.0)
    assert workerless.refuses("r0", f"m{MOST_KNOWN}", 0.0)
