"""One booking whose answer nobody sees."""

from kvmesh._native import Booking
from kvmesh.core.blocks.hashing import Hashes


class Followed:
    """A booking and what is awaited of it. Times are the caller's clock, seconds.

    `number` counts them. `last` is the last full block of the prompt, None where its coming would
    prove nothing; from `due_s` on the prompt counts as computed without that. The answer is
    expected to have `tokens`, 0: unknown. `prefilled_s` is when its prefill ended, -1 before.
    `told`: somebody will tell of its end, so that nothing else ends it.
    """

    __slots__ = ("booking", "due_s", "last", "number", "prefilled_s", "tokens", "told")

    def __init__(self, booking: Booking, last: Hashes | None, due_s: float, tokens: int) -> None:
        self.booking = booking
        self.last = last
        self.due_s = due_s
        self.tokens = tokens
        self.number = 0
        self.prefilled_s = -1.0
        self.told = False
