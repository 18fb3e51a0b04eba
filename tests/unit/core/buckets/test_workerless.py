from kvmesh.core.buckets.workerless import MOST_KNOWN, Workerless


def test_of_many_the_oldest_are_forgotten() -> None:
    workerless = Workerless()

    for number in range(MOST_KNOWN + 1):
        workerless.refused("r0", f"m{number}", 0.0)

    assert len(workerless.pauses) == MOST_KNOWN
    assert not workerless.refuses("r0", "m0", 0.0)
    assert workerless.refuses("r0", f"m{MOST_KNOWN}", 0.0)
