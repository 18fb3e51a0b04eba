"""No answer is damaged when a picker is killed, and none is lost where Envoy keeps copies."""

from pathlib import Path

import pytest

from kvmesh.app.picker.envoy_options import BodyMode
from tests.integration.gateway.storm import Storm, run

pytestmark = pytest.mark.integration


async def test_a_killed_picker_costs_no_answer_where_envoy_keeps_copies(tmp_path: Path) -> None:
    tally, kills = await run(tmp_path, Storm(answers=600, clients=8, every_s=0.3))

    assert kills >= 1
    assert tally.outcomes == {"whole": 600}, str(tally)
    # A picker dies each 0.3 s, and on a busy machine Envoy takes longer to see it healthy again.
    assert tally.unnamed < tally.total


async def test_pickers_are_asked_over_tls(tmp_path: Path) -> None:
    tally, _ = await run(tmp_path, Storm(answers=20, clients=2, tls=True))

    assert tally.outcomes == {"whole": 20}, str(tally)
    assert tally.unnamed == 0


@pytest.mark.chaos
@pytest.mark.timeout(3600)
async def test_of_100_000_answers_none_is_lost_where_envoy_keeps_copies(tmp_path: Path) -> None:
    tally, kills = await run(tmp_path, Storm(answers=100_000))

    assert kills >= 3
    assert tally.outcomes == {"whole": 100_000}, str(tally)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
async def test_of_100_000_answers_streamed_both_ways_none_is_damaged(tmp_path: Path) -> None:
    both: BodyMode = "FULL_DUPLEX_STREAMED"
    storm = Storm(answers=100_000, request_body=both, response_body=both, fail_open=False)

    tally, kills = await run(tmp_path, storm)

    assert kills >= 3
    assert tally.total == 100_000
    assert tally.outcomes["damaged"] == 0, str(tally)
    assert tally.outcomes["whole"] > 99_000, str(tally)
