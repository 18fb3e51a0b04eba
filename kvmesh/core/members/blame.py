"""Whether a request's failures are its workers' doing, or its own."""

from typing import Final

import msgspec

from kvmesh.core.members.outcomes import Attempt, Verdict

FAILURES_OF_A_PROMPT: Final = 2
"""Workers that serve others and fail the same request: then it is the request."""


_OWN: Final = frozenset({"hung", "timeout"})


class Blame:
    """Judges one request's attempts, in turn.

    A worker that failed its previous request, too, says nothing of this one: its failure counts
    against itself alone. So does one that hung or was late: no prompt is to blame for that. `sent`:
    some worker may have begun to work on the request.
    """

    __slots__ = ("_failures", "_overloads", "prompt", "sent")

    def __init__(self) -> None:
        self.sent = False
        self.prompt = False
        self._failures = 0
        self._overloads = 0

    def judge(self, attempt: Attempt, *, sent: bool, suspect: bool) -> Attempt:
        """Return the attempt with its final verdict: PROMPT takes back what the first one noted.

        `suspect`: the worker had failed its last request before this one.
        """
        self.sent |= sent
        self._overloads += attempt.verdict is Verdict.OVERLOAD
        own = suspect or attempt.kind in _OWN
        if attempt.verdict is not Verdict.WORKER or not sent or own:
            return attempt
        self._failures += 1
        if self._failures < FAILURES_OF_A_PROMPT:
            return attempt
        self.prompt = True
        return msgspec.structs.replace(attempt, verdict=Verdict.PROMPT)

    @property
    def rejected_by_all(self) -> bool:
        """Return whether every worker that was asked had no room, several of them: perhaps none
        has any for this client.
        """
        return self._overloads >= FAILURES_OF_A_PROMPT
