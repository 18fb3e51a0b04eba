import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.replay.policy import policy_headers


def test_a_formula_of_a_file_is_named_and_not_read() -> None:
    assert policy_headers("kv:no/such/folder/b.py:f:overlap_score_weight=2") == [
        (b"x-kvmesh-router-mode", b"kv"),
        (b"x-kvmesh-cost", b"b.py:f"),
        (b"x-kvmesh-overlap-score-weight", b"2"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "kv:lmetric:overlap_score_weight=2",
            "--compare '.*': there is no weight .* has no weights",
        ),
        ("kv:dynamo:overlap_score_weight=2e6", "use a number from 0 to"),
        ("kv:best", "kv_cost 'best' is unknown"),
    ],
)
def test_a_published_formula_is_checked(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        policy_headers(text)
