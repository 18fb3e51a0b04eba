"""Engines are asked for a stream's usage, and its client gets what it would have got unasked."""

from typing import Any

import pytest

from tests.integration.serve.test_continued_streams import door_to
from tests.integration.support.breaking_front import Break, breaking_fronts
from tests.integration.support.told_stream import asked, tell

pytestmark = pytest.mark.integration

ASKS = {"stream_options": {"include_usage": True}}
COUNTED = 'kvmesh_prompt_tokens_total{kind="%s"}'


def quiet(number: int, **more: Any) -> tuple[str, dict[str, Any]]:
    """Return path and body of a stream whose client does not ask for usage."""
    return asked({"temperature": 0, **more}, number, 40)


@pytest.mark.parametrize(
    ("rejects", "refused"),
    [("ids", [True, False]), ("usage", [True, True, False]), ("both", [True, True, False])],
)
async def test_an_engine_that_rejects_the_fields_is_asked_without_them_and_figures_are_predicted(
    rejects: Any, refused: list[bool]
) -> None:
    async with breaking_fronts(1) as fronts, door_to(fronts) as door:
        fronts[0].rejects = rejects
        told = [await tell(door.client, *quiet(1)) for _ in range(3)]

        assert [(one.status, one.dones, one.usage, one.errors) for one in told] == [
            (200, 1, None, [])
        ] * 3
        asks = ["stream_options" in one for one in fronts[0].prompts]
        last = rejects == "ids"
        assert asks == [True] * (len(refused) - 1) + [last] * 3
        saved, cached = [await door.figure(COUNTED % kind) for kind in ("saved", "cached")]
        assert saved > 0.0
        assert cached == (saved if last else 0.0)
        events = 3 * (40 if last else 41)  # that with the role is counted as one, too
        assert await door.figure("kvmesh_output_tokens_total") == events


async def test_a_client_that_asks_itself_is_told_that_its_engine_does_not_take_it() -> None:
    async with breaking_fronts(1) as fronts, door_to(fronts) as door:
        fronts[0].rejects = "usage"

        told = await tell(door.client, *quiet(1, **ASKS))

        assert told.status == 400
        assert [one.get("return_token_ids") for one in fronts[0].prompts] == [True, None]
        assert all(one["stream_options"] == ASKS["stream_options"] for one in fronts[0].prompts)


@pytest.mark.parametrize("how", ["reset", "error"])
@pytest.mark.parametrize("more", [{}, {"prompt": True}, {"temperature": 0.7}])
async def test_usage_is_left_out_of_a_stream_that_goes_on_elsewhere(
    how: Any, more: dict[str, Any]
) -> None:
    async with breaking_fronts(2, Break(13, how)) as fronts, door_to(fronts) as door:
        told = await tell(door.client, *quiet(1, **more))

        assert (told.dones, told.errors, told.usage) == (1, [], None)
        assert len("".join(told.texts)) == 40
        assert sum(len(one.prompts) for one in fronts) == 2
        assert all("stream_options" in one for front in fronts for one in front.prompts)
        assert await door.figure("kvmesh_output_tokens_total") == 40


async def test_an_end_that_is_lost_lacks_no_usage_that_nobody_asked_for() -> None:
    async with breaking_fronts(2, Break(40)) as fronts, door_to(fronts) as door:
        told = await tell(door.client, *quiet(1))

        assert (told.dones, told.errors, told.usage) == (1, [], None)
        assert len("".join(told.texts)) == 40


async def test_usage_that_comes_continuously_is_that_of_a_client_that_named_it() -> None:
    async with breaking_fronts(1) as fronts, door_to(fronts) as door:
        path, body = quiet(1, stream_options={"continuous_usage_stats": True})
        async with door.client.stream("POST", path, json=body) as answer:
            lines = [one async for one in answer.aiter_lines() if one.startswith("data: {")]

        options = {"include_usage": True, "continuous_usage_stats": True}
        assert fronts[0].prompts[0]["stream_options"] == options
        assert all('"usage":{' in one and '"choices":[{' in one for one in lines)
