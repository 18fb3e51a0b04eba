"""How much of its cache each worker reused, by its own word: engines publish what they store and
remove, but what they access only their answers tell (`cached_tokens` of the usage).
"""

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.sse import Usage


class AccessReport(msgspec.Struct):
    """What one worker's served answers told.

    `tokens` of prompts were found in its cache, `blocks` are the whole blocks of them. `told`
    answers said so, also that it was none; of `untold` ones nothing is known: the engine does not
    tell, or the client of a stream did not ask for its usage.
    """

    told: int = 0
    untold: int = 0
    tokens: int = 0
    blocks: int = 0


class CacheAccesses:
    """Sums up what answers tell, a worker at a time. One row a worker until `forget`."""

    def __init__(self) -> None:
        self.reports: dict[WorkerId, AccessReport] = {}

    def count(self, worker: WorkerId, usage: Usage | None, block_size: int) -> None:
        """Take the usage of a served answer. An engine cannot have found more than the prompt."""
        report = self.reports.get(worker)
        if report is None:
            report = self.reports[worker] = AccessReport()
        if usage is None or usage.cached_tokens is None:
            report.untold += 1
            return
        tokens = max(0, min(usage.cached_tokens, usage.prompt_tokens))
        report.told += 1
        report.tokens += tokens
        report.blocks += tokens // block_size

    def forget(self, worker: WorkerId) -> None:
        """Drop what is known of a worker that is gone."""
        self.reports.pop(worker, None)
