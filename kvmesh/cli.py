"""The command line. Commands load when called, so that `kvmesh router --worker URL` runs on a
machine without NATS and `--help` is quick.
"""

import gc
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, cast

from cyclopts import (
    App,
    ArgumentCollection,
    CycloptsError,
    Group,
    Parameter,
    Token,
    UnusedCliTokensError,
)
from cyclopts.config import Dict, Env
from cyclopts.types import ExistingTomlPath

from kvmesh.errors import ConfigError, KvMeshError
from kvmesh.lab import DISTRIBUTION, PACKAGE, is_lab_installed, require_lab
from kvmesh.settings.spellings import (
    REMOVED,
    SERVING,
    check_removed,
    join_loose,
    read_spellings,
    renamed,
)

COMMANDS = {
    "up": (
        "up:up",
        "Serve a whole mesh on this machine: NATS, engines, routers, one front door.",
    ),
    "router": (
        "entries:router",
        "Run one router replica of a bucket, or a router alone over the engines of --worker.",
    ),
    "picker": (
        "entries:picker",
        "Run an endpoint picker: a router of a bucket that gateways ask where a request goes.",
    ),
    "meta-router": ("entries:meta_router", "Run the front door over all buckets and replicas."),
    "worker": (
        "entries:worker",
        "Run the sidecar that puts one engine's KV events and load on the mesh.",
    ),
    "mocker": ("entries:mocker", "Run a simulated engine: real HTTP, KV cache and events, no GPU."),
    "doctor": (
        "app.ops.doctor",
        "Say why an engine's KV cache would not be seen by routers, and what to do.",
    ),
    "health": ("app.ops.health", "Exit with 0 if a kvmesh process answers, for health checks."),
    "config": ("app.ops.config", "Print a commented TOML file with every setting of a role."),
    "completion": (
        "completion",
        "Print or install what bash, zsh or fish needs to complete commands and flags.",
    ),
    "api-key": (
        "app.front.api_key",
        "Make a key for a client of the front door; only its hash is kept.",
    ),
    "nats-accounts": (
        "app.ops.nats_accounts",
        "Write nkeys and a NATS configuration in which each process may do the least.",
    ),
    "nats-streams": (
        "app.ops.nats_streams",
        "Make the event streams of buckets, as the NATS account that may.",
    ),
    "replay": (
        "replay.command",
        "Send a trace to a live endpoint and report hit rate and latency.",
    ),
    "analyze": (
        "analyze.command",
        "Report what of a load could be reused, and what to set for it.",
    ),
    "demo": (
        "demo.command",
        "Measure the usual demonstrations of KV routing, beside what is promised of them.",
    ),
    "conformance": (
        "conformance.command",
        "Test an endpoint picker against its protocol, over gRPC and behind a real Envoy.",
    ),
    "snapshot": (
        "app.ops.snapshot",
        "List, inspect, verify and take snapshots of a bucket's index.",
    ),
    "simulate": (
        "simulator.command",
        "Play a trace against simulated engines: routing policies side by side.",
    ),
    "plan": (
        "plan.command",
        "Say how many engines hold latency targets under a load, and what one fewer breaks.",
    ),
    "propose": (
        "simulator.propose",
        "Search weights on a trace from standard input: what a router with --auto-tune runs.",
    ),
    "top": ("app.views.top", "Show workers, replicas, traffic and requests live in the terminal."),
    "usage": (
        "app.views.usage_command",
        "List who used what: requests, tokens, engine time, by tenant, key, model and more.",
    ),
    "explain": (
        "app.views.explain_command",
        "Show why a request went where it went, or where a prompt would go.",
    ),
}
"""Each command's module below its package, loaded when it is called, and what it does.

`MODULE:FUNCTION` where the function is not called `command`.
"""

OF_LAB = frozenset(
    {"mocker", "replay", "analyze", "demo", "conformance", "simulate", "plan", "propose"}
)
"""The commands of the package `kvmesh_lab`; all others are in `kvmesh`."""

GC_WHILE_LOADING = 100_000

OURS = frozenset({"KVMESH_DIE_WITH_PARENT", "KVMESH_PROCESS"})
"""Set for the children of `kvmesh up`: no setting."""

HELP_ALL = "--help-all"
FOR_META = frozenset({"--help", "-h", HELP_ALL, "--version"})
MANY_SETTINGS = frozenset({*SERVING, "mocker", "up"})
"""Commands whose `--help` shows the settings used most, in a sentence each."""

SHORT_HELP_END = """`--help-all` shows every setting, at length. `KVMESH_NAME` in the environment is
`--name`; `--config FILE` reads a TOML file, as `kvmesh config {command}` prints it."""
SENTENCE_END = re.compile(r"(?<!e\.g)\.(?:\s|$)")
NAME_WIDTH = 27

CONFIG_GROUP = Group("Configuration file", sort_key=7)
CONFIG_HELP = "TOML file whose keys are the command's flags without dashes, e.g. http-port = 8000."


def print_version() -> str:
    """Return which build this is, in a line."""
    from kvmesh.app.process.build import own_build  # noqa: PLC0415  not for each start

    return str(own_build())


def shown_default(value: object) -> str | None:
    """Return a default as help shows it; None where nothing is set."""
    return None if value in ("", (), None) else str(value)


app = App(
    name="kvmesh",
    help="Route LLM requests to the worker that already holds their KV cache.",
    version=print_version,
    help_flags=("--help", "-h", HELP_ALL),
    default_parameter=Parameter(negative_iterable=(), show_default=shown_default),
)
ENVIRONMENT = Env("KVMESH_", command=False)
app.config = (ENVIRONMENT,)
LAB_INSTALLED = is_lab_installed()
if not LAB_INSTALLED:
    app.help_epilogue = f"pip install {DISTRIBUTION}: {', '.join(sorted(OF_LAB))}"
for _name, (_module, _help) in COMMANDS.items():
    if _name in OF_LAB and not LAB_INSTALLED:
        continue
    _package = PACKAGE if _name in OF_LAB else "kvmesh"
    _place = _module if ":" in _module else f"{_module}:command"
    app.command(f"{_package}.{_place}", name=_name, help=_help)


@app.meta.default
def launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    config: Annotated[
        ExistingTomlPath | None, Parameter(help=CONFIG_HELP, group=CONFIG_GROUP)
    ] = None,
) -> object:
    """Read the settings, strongest first: flags, KVMESH_* variables, the file, defaults."""
    app.config = (ENVIRONMENT,)
    found: dict[str, object] = {}
    if config is not None:
        found = read_toml(config)
        if SERVING.intersection(tokens[:1]):
            check_keys(found, str(config))
        like_commands = {key: value for key, value in found.items() if key in COMMANDS}
        file = Dict(found, source=str(config), use_commands_as_keys=False)
        app.config = (ENVIRONMENT, partial(fill_in, like_commands, str(config)), file)
    check_installed(tokens)
    if tokens and tokens[0] in COMMANDS:
        name_unknown(os.environ)
        warn(renamed(tokens[0], tokens, found, os.environ))
    if SERVING.intersection(tokens[:1]):
        check_environment(os.environ)
    line = read_spellings(tokens)
    try:
        return app(line, exit_on_error=False, print_error=False)
    except UnusedCliTokensError as error:
        return app(join_loose(line, error.unused_tokens or ()))
    except CycloptsError:
        return app(line)  # once more, to print what is wrong and exit


def prepare(tokens: Sequence[str]) -> Callable[[], object]:
    """Return what runs a command line whose settings are read now; what is wrong with them is said
    when it is called, as `main` says it.
    """
    try:
        app.config = (ENVIRONMENT,)
        function, bound, _ = app.parse_args(
            read_spellings(tokens), exit_on_error=False, print_error=False
        )
    except (CycloptsError, KvMeshError):
        return main
    run = partial(function, *bound.args, **bound.kwargs)
    return partial(say_errors, run)


def check_installed(tokens: Sequence[str]) -> None:
    """Raise `ConfigError` for a command of a distribution that is not installed."""
    if tokens and tokens[0] in OF_LAB:
        require_lab(f"`kvmesh {tokens[0]}`")


def name_unknown(variables: Mapping[str, str]) -> None:
    """Name on standard error each variable that no command knows.

    Raises `ConfigError` for one that is a misspelt setting.
    """
    if any(map(is_own, variables)):
        from kvmesh.settings.variables import check_variables  # noqa: PLC0415  where there are any

        warn(check_variables(variables))


def warn(warnings: Iterable[str]) -> None:
    """Write each warning on standard error."""
    for warning in warnings:
        sys.stderr.write(f"kvmesh: warning: {warning}\n")


def check_environment(variables: Mapping[str, str]) -> None:
    """Raise `ConfigError` for a variable of a removed setting."""
    for name in REMOVED:
        variable = f"KVMESH_{name.replace('-', '_').upper()}"
        if variable in variables:
            check_removed(name, variable)


def is_own(name: str) -> bool:
    """Return whether a variable is a setting, or may be meant as one."""
    return name.startswith("KVMESH_") and name not in OURS


def read_toml(path: Path) -> dict[str, object]:
    """Return the settings of a TOML file.

    Raises `ConfigError` naming file, line and column when `path` is not TOML, and when it has
    tables: a setting in one called like a command would count for nothing.
    """
    import tomllib  # noqa: PLC0415  takes 6 ms, and few starts read a file

    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from error
    for key, value in found.items():
        if isinstance(value, dict):
            raise ConfigError(f"{path}: [{key}]: settings stand in no table; leave that line out")
    return found


def check_keys(keys: Iterable[str], path: str) -> None:
    """Raise `ConfigError` for a setting that was removed, and for a constant, which cyclopts leaves
    out.
    """
    from kvmesh.settings.variables import constants  # noqa: PLC0415  few starts read a file

    known = constants()
    for key in keys:
        check_removed(key.replace("_", "-"), f"{path}: {key}")
        if key.replace("-", "_") in known:
            raise ConfigError(f"{path}: {key}: this command has no such setting")


def fill_in(
    settings: Mapping[str, object],
    source: str,
    _app: App,
    _commands: tuple[str, ...],
    arguments: ArgumentCollection,
) -> None:
    """Give `settings` from `source` to the arguments that nothing stronger gave a value.

    For keys called like a command (`worker`): cyclopts skips them, as it takes them for tables.
    Raises `ConfigError` for a key that is no flag of the command.
    """
    for key, value in settings.items():
        try:
            argument, _, _ = arguments.match(f"--{key}")
        except ValueError:
            raise ConfigError(f"{source}: {key}: this command has no such setting") from None
        if not argument.tokens:
            values = cast("list[object]", value) if isinstance(value, list) else [value]
            for index, one in enumerate(values):
                token = Token(keyword=f"[{key}]", value=str(one), source=source, index=index)
                argument.append(token)


def needs_meta(tokens: Sequence[str], variables: Mapping[str, str]) -> bool:
    """Return whether `launch` is to be called by cyclopts, for help or a file of settings.

    That reads all settings of the command twice: a tenth of a router's start.
    """
    asked = any(token in FOR_META or token.startswith("--config") for token in tokens)
    return asked or not tokens or "KVMESH_CONFIG" in variables


def main() -> None:
    """Run the command line; a kvmesh error is one line on standard error and exit code 2."""
    # Loading a command makes objects enough for two full collections, 50 ms each, but no garbage.
    gc.set_threshold(GC_WHILE_LOADING)
    say_errors(run_line)


def run_line() -> None:
    """Run the command of this process's command line."""
    if needs_meta(sys.argv[1:], os.environ):
        check_installed(sys.argv[1:])  # --help of it is answered without `launch`
        if MANY_SETTINGS.intersection(sys.argv[1:2]) and HELP_ALL not in sys.argv:
            shorten_help(sys.argv[1])
        app.meta()
    else:
        launch(*sys.argv[1:])


def shorten_help(command: str) -> None:
    """Let `--help` show the settings marked `Often`, each in a sentence."""
    from cyclopts.help import (  # noqa: PLC0415  for help alone
        ColumnSpec,
        DefaultFormatter,
        DescriptionRenderer,
        HelpEntry,
        InlineText,
        NameRenderer,
    )
    from rich.console import RenderableType  # noqa: PLC0415

    describe = DescriptionRenderer()

    def first_sentence(entry: HelpEntry) -> RenderableType:
        text = SENTENCE_END.split(entry.description.primary_renderable.markup, maxsplit=1)[0]
        return describe(entry.copy(description=InlineText.from_format(text, "markdown")))

    name = ColumnSpec(renderer=NameRenderer(NAME_WIDTH), style="cyclopts.name")
    app.help_formatter = DefaultFormatter(column_specs=(name, ColumnSpec(renderer=first_sentence)))
    app.help_epilogue = SHORT_HELP_END.format(command=command)
    hidden = Parameter(show=False, show_env_var=False)
    app.default_parameter = Parameter.combine(app.default_parameter, hidden)


def say_errors(run: Callable[[], object]) -> None:
    """Call `run`; a kvmesh error is one line on standard error and exit code 2."""
    try:
        run()
    except KvMeshError as error:
        sys.stderr.write(f"kvmesh: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
