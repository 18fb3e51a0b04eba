"""What is believed of one worker, and on how much evidence, to compare and to test."""

import msgspec

from kvmesh._native import Speeds
from kvmesh.core.blocks.events import WorkerId
from tests.reference.workers import speeds as model


class SpeedReport(msgspec.Struct, frozen=True):
    """What was never seen is 0; `uncached_tokens` of a prompt and `output_tokens` of an answer are
    the fleet's means.
    """

    ms_per_uncached_token: float
    prefill_evidence_tokens: float
    ms_per_output_token: float
    residence_ms: float
    uncached_tokens: float
    output_tokens: float


def speed_report(speeds: Speeds | model.Speeds, worker: WorkerId) -> SpeedReport:
    """Return what the compiled speeds, or the naive ones, believe of a worker."""
    return SpeedReport(
        ms_per_uncached_token=speeds.ms_per_token(worker),
        prefill_evidence_tokens=speeds.prefill_ratio(worker).tokens,
        ms_per_output_token=speeds.ms_per_output_token(worker),
        residence_ms=speeds.residence_ms(worker),
        uncached_tokens=speeds.uncached_tokens,
        output_tokens=speeds.output_tokens,
    )
