"""What `kvmesh plan` can be told."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kvmesh.errors import ConfigError
from kvmesh_lab.plan.kinds import MOST_ENGINES
from kvmesh_lab.replay.options import ReplayOptions
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.options import SimulateOptions


@dataclass(frozen=True)
class PlanOptions:
    """One plan, or with `check` one check of it.

    A dataclass, since the command line is made from it.
    """

    log: Path
    """A router's log (GET /admin/trace), which tells of its engines, too; or a trace in Mooncake's
    format or of sessions. JSON lines, gzip or plain."""
    _: KW_ONLY
    slo: str = ""
    """Targets that p90 (or another percentile) of all requests keeps: ttft, tpot (mean time per
    further token) and e2e, e.g. ttft=2s,tpot=50ms or p99:ttft=5s,e2e=30s."""
    load: float = 1.0
    """How many times as many requests a second to plan for."""
    live: int = 0
    """Closed loop instead: so many sessions are under way in the whole fleet; times --load."""
    prices: Path | None = None
    """TOML file with a table for each kind of engine, [NAME], with price (an hour), profile (as
    --model-profile; default: learned, as the log's engines), speed (relative to it), kv_tokens and
    most (engines there can be): the cheapest fleet, mixed ones too, instead of the fewest
    engines."""
    model_profile: str | None = None
    """Engines of a trace, or others than the log's: model and GPUs as of `kvmesh simulate`:
    8b-1xh100 (default of a trace), 70b-2xh100, 70b-4xh100, dynamo-mocker, or a file, FILE.json."""
    timing_profile: str | None = None
    """With or in place of it: how long a step takes, as of `kvmesh simulate`."""
    blocks: Annotated[int | None, Parameter(name=("--num-gpu-blocks", "--blocks"))] = None
    """KV blocks of an engine; default: those of the profile or of the log's engines."""
    block_size: Annotated[int | None, Parameter(name=("--kv-cache-block-size", "--block-size"))] = (
        None
    )
    """Tokens per engine block, a divisor of the trace's; default: the trace's (quickest)."""
    max_num_seqs: int = 256
    """Requests an engine runs at once."""
    max_num_batched_tokens: int = 8192
    """Tokens an engine computes in one step."""
    policy: str = ""
    """How routers decide, as of `kvmesh simulate`; default: as the log's did, else kv."""
    routers: int | None = None
    """Router replicas; default: those of the log, else 1."""
    most: int = 64
    """Engines of a kind at most."""
    seeds: int = 3
    """Plays of each fleet; all but the first move every arrival by up to four mean gaps."""
    requests: int | None = None
    """Requests to play; default: all. Beyond the trace's end it begins again, with fresh prompts
    but the same system prompts."""
    skip: int = 0
    """Requests (of a trace of sessions: sessions) at the start to leave out."""
    sessions: int | None = None
    """Of a trace of sessions: how many to play, with their sub-agents; default: all."""
    trace_block_size: int | None = None
    """Tokens a hash id stands for; default: from the file name (…_b512.jsonl), else inferred."""
    max_input_tokens: int | None = None
    """Longest prompt, tokens; longer ones are cut at their end."""
    save: Path | None = None
    """Keep the plan in this file, for --check. What checks have shown is kept and used."""
    check: Path | None = None
    """Instead of planning, compare this plan with what LOG shows of a later day, and note there how
    far it was off: the next plan with --save is corrected by it, and its error bar follows."""
    json: bool = False
    """Print the plan, or the check, as JSON."""

    def check_values(self) -> None:
        """Refuse values that cannot work. Raises `ConfigError`."""
        for flag, value in (
            ("--load", self.load),
            ("--most", self.most),
            ("--seeds", self.seeds),
            ("--requests", self.requests),
            ("--sessions", self.sessions),
            ("--routers", self.routers),
            ("--num-gpu-blocks", self.blocks),
            ("--kv-cache-block-size", self.block_size),
            ("--trace-block-size", self.trace_block_size),
            ("--max-input-tokens", self.max_input_tokens),
        ):
            if value is not None and not 0 < value < 1e9:  # noqa: PLR2004  as no one means
                raise ConfigError(f"{flag} {value}: must be more than 0, and less than a billion")
        for flag, count in (("--skip", self.skip), ("--live", self.live)):
            if count < 0:
                raise ConfigError(f"{flag} {count}: must be 0 or more")
        for flag, count, most in (("--most", self.most, MOST_ENGINES), ("--seeds", self.seeds, 20)):
            if count > most:
                raise ConfigError(f"{flag} {count}: at most {most}")
        if not (self.slo or self.check):
            raise ConfigError("name the targets, e.g. --slo ttft=2s,tpot=50ms")

    def reading(self) -> ReplayOptions:
        """Return how the log or trace is read."""
        return self._simulated().reading()

    def fleet(self, trace_block_size: int) -> FleetOptions:
        """Return routers and an engine by the profiles named. Raises `ConfigError`."""
        return self._simulated().fleet(trace_block_size)

    def _simulated(self) -> SimulateOptions:
        return SimulateOptions(
            self.log,
            model_profile=self.model_profile,
            timing_profile=self.timing_profile,
            blocks=self.blocks,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            engines=1,
            routers=self.routers or 1,
            trace_block_size=self.trace_block_size,
            requests=self.requests,
            sessions=self.sessions,
            skip=self.skip,
            max_input_tokens=self.max_input_tokens,
        )
