from kvmesh.core.insight.weight_search import alike, name_policy


def test_a_policy_is_named_as_flags_take_it() -> None:
    assert name_policy("dynamo", {"a": 2.0, "b": 0.125}) == "kv:dynamo:a=2:b=0.125"
    assert name_policy("lmetric", {}) == "kv:lmetric"


def test_weights_are_alike_to_a_part_in_a_hundred() -> None:
    assert alike({"a": 1.0}, {"a": 1.005})
    assert alike({"a": 1.0, "b": 0.0}, {"a": 1.0})
    assert not alike({"a": 1.0}, {"a": 1.02})
    assert not alike({"a": 1.0}, {"a": 1.0, "b": 0.1})
