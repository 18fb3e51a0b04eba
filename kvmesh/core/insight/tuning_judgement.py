"""What speaks for and against weights: a search's result, a shadow's figures, in words."""

from typing import Final

from kvmesh.core.insight.load_character import Character, ratio_of
from kvmesh.core.insight.weight_search import Found, Judged, alike
from kvmesh.core.routing.shadow_policy import ShadowReport

SAME_SHARE: Final = 0.995
"""A shadow that agrees in more decisions than this changes nothing."""

MOST_WORSE: Final = 1.25
"""A shadow whose requests would have waited and prefilled so much longer is not tried."""


def pick(found: Found, min_gain: float) -> Judged | None:
    """Return what is worth a trial; None: what is in force is as good.

    It is better by `min_gain`, on requests that were held out, than the present weights and the
    default; or the default is by so much better than the present.
    """
    least = 1.0 - min_gain
    present, default, best = found.present, found.default, found.best
    better = best.held_out <= least * min(present.held_out, default.held_out)
    if better and best.searched < 1.0 and not alike(best.weights, present.weights):
        return best
    worse = default.held_out <= least * present.held_out
    return default if worse and not alike(default.weights, present.weights) else None


def model_error(found: Found, most: float) -> str:
    """Return in words that the simulator is more than `most` times off; "" when it is not."""
    measured, simulated = found.measured_ttft_ms, found.simulated_ttft_ms
    if measured is None or ratio_of(measured, simulated) <= most:
        return ""
    return (
        f"the simulated fleet is not like this one: median TTFT {simulated:.0f} ms against"
        f" {measured:.0f} ms measured"
    )


def ratios(judged: Judged, found: Found) -> str:
    """Return in words how weights did in a search."""
    of_present = judged.held_out / max(found.present.held_out, 1e-9)
    return (
        f"p90 TTFT {judged.ttft_ms_p90:.0f} ms, p90 per token {judged.tpot_ms_p90:.1f} ms;"
        f" scores {judged.held_out:.3f} of the default, {of_present:.3f} of the present"
        f" weights on requests held out ({judged.searched:.3f} where it was searched)"
    )


def judge_shadow(report: ShadowReport, block_ms: float) -> tuple[str, bool]:
    """Return what a shadow showed, in words, and whether it speaks against a trial.

    It sees the load that the present weights made: only much longer waits count against it.
    """
    count = max(1, report.decisions)
    same = report.agreed / count
    blocks = report.request_blocks
    live = report.achieved_wait_ms + (blocks - report.achieved_blocks) * block_ms
    would_be = report.would_be_wait_ms + (blocks - report.would_be_blocks) * block_ms
    text = (
        f"of {report.decisions} decisions {same:.1%} are the same; prefix cached"
        f" {report.would_be_blocks / max(1, blocks):.1%} against"
        f" {report.achieved_blocks / max(1, blocks):.1%}, wait and prefill"
        f" {would_be / count:.1f} ms against {live / count:.1f} ms"
    )
    if same > SAME_SHARE:
        return f"{text}: it would change nothing", True
    if would_be > MOST_WORSE * live + count:
        return f"{text}: much longer", True
    return text, False


def describe(character: Character) -> str:
    """Return a character in words."""
    return (
        f"{character.requests_per_s:.3g} requests/s, {character.prompt_tokens:.0f} prompt tokens,"
        f" {character.shared:.0%} of them shared, {character.output_tokens:.0f} output tokens,"
        f" {character.hot:.0%} with one beginning"
    )
