"""Something that is opened by `await` or for the length of an `async with` block."""

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar


class Closing(Protocol):
    """What must be closed."""

    async def close(self) -> None:
        """End; safe to call twice."""
        ...


class ClosedByBlock:
    """What an `async with` block of its own closes."""

    async def close(self) -> None:
        """End; safe to call twice."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        """Return it."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()


T = TypeVar("T", bound=Closing)


class Opening(Generic[T]):
    """`thing = await Opening(open)`, closed by `await thing.close()`, or
    `async with Opening(open) as thing:`, closed with the block.
    """

    def __init__(self, opened: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._open = opened
        self._thing: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        """Open it; the caller closes it."""
        return self._open().__await__()

    async def __aenter__(self) -> T:
        """Open it."""
        self._thing = await self._open()
        return self._thing

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        assert self._thing is not None
        await self._thing.close()
