"""What of the options of `kvmesh simulate` makes no sense."""

from collections.abc import Sequence

from kvmesh.core.routing.policy import parse_policy
from kvmesh.errors import ConfigError
from kvmesh_lab.replay.options import PLOT_SUFFIXES
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.options import SimulateOptions
from kvmesh_lab.simulator.slices import Setting, Simulator
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
    _check_members(options)
    if options.prefill_engines and "oracle" in options.policy:
        raise ConfigError("--policy oracle knows no --prefill-engines: leave one of them out")
    _check_files(options)


def _check_programs(options: SimulateOptions) -> None:
    turns = options.program_turns
    if not turns or len(set(turns)) != len(turns) or not set(turns) <= {"on", "off"}:
        raise ConfigError(f"--program-turns {','.join(turns)}: on, off or off,on")
    if not 0 < options.capacity_share <= 1:
        raise ConfigError(f"--capacity-share {options.capacity_share}: must be above 0, at most 1")


def _check_members(options: SimulateOptions) -> None:
    shares = options.warm_share
    wrong = [one for one in shares if not 0.0 <= one <= 1.0]
    if wrong or not shares or len(set(shares)) != len(shares):
        found = ",".join(f"{one:g}" for one in shares)
        raise ConfigError(f"--warm-share {found}: shares from 0 to 1, each once")
    changes = "--join" if options.join else "--leave" if options.leave else ""
    for flag, given in (("--capacity", options.capacity), ("--tune", options.tune)):
        if changes and given:
            raise ConfigError(
                f"{flag} {changes}: it plays many loads, and the run is not as long in each; leave "
                "one of both out"
            )


def check_times(fleet: FleetOptions, simulator: Simulator, settings: Sequence[Setting]) -> None:
    """Refuse engines that join or leave when all has been sent, where that is known before.

    Raises `ConfigError`.
    """
    changes = [("join", *one) for one in fleet.joins] + [("leave", *one) for one in fleet.leaves]
    for setting in settings:
        last_s = simulator.last_sent_s(setting)
        for flag, number, due_s in changes:
            if last_s is not None and due_s >= last_s:
                raise ConfigError(
                    f"--{flag} {number}@{due_s:g}: at {setting.name} the last request is sent at "
                    f"{last_s:.0f} s; name an earlier second, or more --requests"
                )


def _check_files(options: SimulateOptions) -> None:
    if options.plot is not None and options.plot.suffix not in PLOT_SUFFIXES:
        raise ConfigError(f"--plot {options.plot}: name it {', '.join(PLOT_SUFFIXES)}")
    for path in (options.json, options.csv, options.html, options.plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"{path}: its directory does not exist")
