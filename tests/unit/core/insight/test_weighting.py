from kvmesh.core.insight.weight_search import alike


def test_weights_are_alike_to_a_part_in_a_hundred() -> None:
    assert alike({"a": 1.0}, {"a": 1.005})
    assert alike({"a": 1.0, "b": 0.0}, {"a": 1.0})
    assert not alike({"a": 1.0}, {"a": 1.02})
    assert not alike({"a": 1.0}, {"a": 1.0, "b": 0.1})
