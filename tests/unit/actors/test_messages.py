from kvmesh.actors.messages import WorkerLoad


def test_cache_usage_is_a_fraction_and_zero_when_the_total_is_unknown() -> None:
    assert WorkerLoad(used_blocks=25, total_blocks=100).gpu_cache_usage_perc == 0.25
    assert WorkerLoad(used_blocks=25).gpu_cache_usage_perc == 0.0
