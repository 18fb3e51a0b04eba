"""One bound for the request bodies of all connections together."""


class BodyBudget:
    """Bytes of request bodies held in memory, from their arrival until nobody needs them."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @property
    def tight(self) -> bool:
        """Return whether more than half of it is in use."""
        return self.used > self.limit // 2

    @property
    def exceeded(self) -> bool:
        """Return whether more is held than allowed."""
        return self.used > self.limit
