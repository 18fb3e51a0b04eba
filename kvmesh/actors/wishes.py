"""Wishes that are answered: who asked remembers how to go on."""

from collections.abc import Callable, Iterable

from kvmesh.actors.kernel import Effect, Message

Then = Callable[[Message, float], Iterable[Effect]]
"""Takes the answer, or `storage.Failed`, and the time it came."""


class PendingEffects:
    """Gives each wish its token and calls its continuation with the one answer."""

    def __init__(self) -> None:
        self._then: dict[int, Then] = {}
        self._tokens = 0

    def make(self, wish: Callable[[int], Effect], then: Then) -> Effect:
        """Return `wish(token)`; `then` is called when its answer is given to `answer`."""
        self._tokens += 1
        self._then[self._tokens] = then
        return wish(self._tokens)

    def answer(self, message: Message, now: float) -> Iterable[Effect]:
        """Run the continuation of what `message` answers; an answer without one is ignored."""
        token: object = getattr(message, "token", None)
        then = self._then.pop(token, None) if isinstance(token, int) else None
        return then(message, now) if then is not None else ()


def ignore(answer: Message, now: float) -> Iterable[Effect]:
    """Go on with nothing, whatever the answer."""
    del answer, now
    return ()
