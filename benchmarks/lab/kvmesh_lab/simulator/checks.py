"""What of the options of `kvmesh simulate` makes no sense."""

from collections.abc import Sequence

from kvmesh.core.routing.policy import parse_policy
from kvmesh.errors import ConfigError
from kvmesh_lab.replay.options import PLOT_SUFFIXES
from kvmesh_lab.simulator.options import SimulateOptions
from kvmesh_lab.simulator.tuning import tuned_weights


def check_simulation(options: SimulateOptions) -> None:
    """Refuse values that cannot work, before anything is simulated. Raises `ConfigError`."""
    positive: dict[str, Sequence[float | None]] = {
        "--requests": (options.requests,),
        "--kv-cache-block-size": (options.block_size,),
        "--num-gpu-blocks": (options.blocks,),
        "--trace-block-size": (options.trace_block_size,),
        "--max-input-tokens": (options.max_input_tokens,),
        "--output-tokens": (options.output_tokens,),
        "--load": options.load,
        "--live": options.live,
        "--sessions": (options.sessions,),
        "--time-scale": (options.time_scale,),
        "--rate": options.rate,
        "--engine-speeds": options.engine_speeds,
        "--client-timeout-ms": (options.client_timeout_ms,),
    }
    for flag, values in positive.items():
        wrong = [one for one in values if one is not None and not 0 < one < float("inf")]
        if wrong:
            raise ConfigError(f"{flag} {wrong[0]}: must be more than 0")
    if options.skip < 0:
        raise ConfigError(f"--skip {options.skip}: must be 0 or more")
    if not options.policy or not (options.load or options.rate):
        raise ConfigError("name at least one --policy and one --load")
    if len(set(options.policy)) != len(options.policy):
        raise ConfigError(f"--policy {','.join(options.policy)}: name each policy once")
    _check_programs(options)
    formulas = options.formulas()
    for policy in options.policy:
        parse_policy(policy, options.block_size or 1, formulas)
    if options.tune is not None:
        tuned_weights(options.tune, formulas)
    if not 0 < options.train_share < 1:
        raise ConfigError(f"--train-share {options.train_share}: must be between 0 and 1")
    options.fleet(options.trace_block_size or 1)
    if options.prefill_engines and "oracle" in options.policy:
        raise ConfigError("--policy oracle knows no --prefill-engines: leave one of them out")
    _check_files(options)


def _check_programs(options: SimulateOptions) -> None:
    turns = options.program_turns
    if not turns or len(set(turns)) != len(turns) or not set(turns) <= {"on", "off"}:
        raise ConfigError(f"--program-turns {','.join(turns)}: on, off or off,on")
    if not 0 < options.capacity_share <= 1:
        raise ConfigError(f"--capacity-share {options.capacity_share}: must be above 0, at most 1")


def _check_files(options: SimulateOptions) -> None:
    if options.plot is not None and options.plot.suffix not in PLOT_SUFFIXES:
        raise ConfigError(f"--plot {options.plot}: name it {', '.join(PLOT_SUFFIXES)}")
    for path in (options.json, options.csv, options.html, options.plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"{path}: its directory does not exist")
