"""Names from outside that were heard of, as many as memory is given for."""

from collections.abc import Iterable


class KnownNames:
    """The last `most` names that were new; the oldest of more is forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: dict[str, None] = {}

    def __contains__(self, name: str) -> bool:
        """Return whether the name was heard of."""
        return name in self._names

    def __len__(self) -> int:
        """Return how many are remembered."""
        return len(self._names)

    def add(self, names: Iterable[str]) -> None:
        """Remember names; one that is remembered already stays where it is in the order.

        Of more than fit at once the last ones are remembered.
        """
        for name in names:
            if name not in self._names:
                self._names[name] = None
                if len(self._names) > self._most:
                    del self._names[next(iter(self._names))]
