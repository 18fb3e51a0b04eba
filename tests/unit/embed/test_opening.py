import pytest

from kvmesh.embed.opening import Opening


class Door:
    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


async def opened() -> Door:
    return Door()


async def broken_inside(opening: Opening[Door]) -> None:
    async with opening:
        raise ValueError("broken")


async def test_what_is_awaited_is_open_until_it_is_closed() -> None:
    door = await Opening(opened)

    assert door.closed == 0


async def test_what_is_opened_for_a_block_is_closed_with_it() -> None:
    async with Opening(opened) as door:
        assert door.closed == 0

    assert door.closed == 1


async def test_what_raises_in_the_block_is_raised_after_closing() -> None:
    door = Door()

    async def open_it() -> Door:
        return door

    with pytest.raises(ValueError, match="broken"):
        await broken_inside(Opening(open_it))

    assert door.closed == 1


async def test_what_cannot_be_opened_is_not_closed() -> None:
    async def broken() -> Door:
        raise ValueError("shut")

    with pytest.raises(ValueError, match="shut"):
        await broken_inside(Opening(broken))
