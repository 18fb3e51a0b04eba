"""What became of the streams of gateways."""

from collections import Counter
from typing import Final

import msgspec

from kvmesh._native import Histogram
from kvmesh.core.insight.histogram import SECONDS
from kvmesh.transport.grpc.extproc_messages import Modes

MODE_NAMES: Final = ("none", "streamed", "buffered", "buffered-partial", "full-duplex")
"""Names of `ProcessingMode.BodySendMode`, by number."""

PICK_SECONDS: Final = (0.0001, 0.00025, 0.0005, *SECONDS)


class PickCounts(msgspec.Struct):
    """Counters since the start; `open_streams` is of now.

    `picks` were sent on, `refused` answered here. `responses` were begun, `followed` seen to their
    end. `duplicates` are messages that came once too often, `malformed` those that were none.
    `moved`: gateways that went on to an alternative. `silent`: streams that ended before the
    response did. `modes` counts streams by how their gateway tells bodies; `seconds` is from the
    last of a request to its pick, in the queue of admission included.
    """

    streams: int = 0
    open_streams: int = 0
    messages: int = 0
    picks: int = 0
    refused: int = 0
    responses: int = 0
    followed: int = 0
    silent: int = 0
    gone: int = 0
    moved: int = 0
    duplicates: int = 0
    malformed: int = 0
    modes: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter[tuple[str, str]])
    seconds: Histogram = msgspec.field(default_factory=lambda: Histogram(PICK_SECONDS))

    def begin(self, modes: Modes) -> None:
        """Count a request by how its gateway tells bodies; what is no known way is one."""
        self.modes[_name(modes.request_body), _name(modes.response_body)] += 1


def _name(mode: int) -> str:
    return MODE_NAMES[mode] if 0 <= mode < len(MODE_NAMES) else "unknown"
