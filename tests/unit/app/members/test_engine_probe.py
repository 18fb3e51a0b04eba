import pytest

from kvmesh.app.members.engine_probe import given_endpoints, refuse_collisions
from kvmesh.core.engines.facts import EventEndpoint
from kvmesh.errors import ConfigError


def test_ranks_add_their_number_to_both_given_ports() -> None:
    assert given_endpoints("tcp://h:5557", "tcp://h:5567", 2, topic="t") == (
        EventEndpoint(0, "tcp://h:5557", "tcp://h:5567", "t"),
        EventEndpoint(1, "tcp://h:5558", "tcp://h:5568", "t"),
    )
    assert given_endpoints("ipc:///a", "", 1) == (EventEndpoint(0, "ipc:///a"),)


def test_an_endpoint_without_a_port_cannot_have_two_ranks() -> None:
    with pytest.raises(ConfigError, match="has no port to add the rank 1 to"):
        given_endpoints("ipc:///a", "", 2)


@pytest.mark.parametrize(
    ("endpoint", "replay", "ranks", "words"),
    [
        ("tcp://h:5557", "tcp://h:5558", 2, "port 5558 is used by rank 0 replay and rank 1 events"),
        ("tcp://h:5557", "tcp://h:5557", 1, "port 5557 is used by rank 0 events and rank 0 replay"),
    ],
)
def test_ranks_that_would_share_a_port_are_refused(
    endpoint: str, replay: str, ranks: int, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        refuse_collisions(given_endpoints(endpoint, replay, ranks))
