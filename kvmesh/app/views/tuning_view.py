"""A tuner as JSON: what it does, why, and the trace it goes by."""

import msgspec

from kvmesh.core.insight.trace_ring import TraceRingStatistics
from kvmesh.core.tuning.acts import TunerStatus


class TuningRow(msgspec.Struct, frozen=True):
    """The tuner of one replica; times of its steps are Unix times."""

    bucket: str
    router: str
    tuner: TunerStatus
    trace: TraceRingStatistics
