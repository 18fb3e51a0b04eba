"""`kvmesh explain`: why a request went where it went, or where a prompt would go, for people."""

import asyncio
import sys
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import quote, urlsplit

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvmesh.app.process.running_mesh import find_url
from kvmesh.app.views.ask import ask
from kvmesh.app.views.decision_view import DecisionDetail, DecisionRow
from kvmesh.app.views.tenant_view import TenantDetail
from kvmesh.bounds import UNREADABLE, counted
from kvmesh.core.insight.explain import CandidateView, DecisionView, TenantChoice
from kvmesh.core.members.left_out import LeftOut
from kvmesh.core.programs.standing import Outlook
from kvmesh.errors import ConfigError, TransportError
from kvmesh.settings.types import Flat
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.headers import Header

_CERTAIN: Final = 0.995
"""A confidence of so much is not shown: it would read 100 %."""
_PROMPT_FIELDS: Final = ("messages", "prompt", "input")


@dataclass(frozen=True)
class ExplainOptions:
    """What to explain: a request by its id, or a prompt by a dry run.

    A dataclass, since the command line is made from it.
    """

    request_id: str = ""
    """The request's id: its x-request-id, or the one the answer carried."""
    _: KW_ONLY
    prompt_file: Path | None = None
    """Decide this prompt without sending it: a request's JSON body, or plain text; - is stdin."""
    url: str = ""
    """Base URL of a router or meta-router, without /v1; default: the mesh of a running `kvmesh up`,
    else http://127.0.0.1:8000."""
    bucket: str = ""
    """Bucket that decides a prompt; default: as the meta-router would choose."""
    model: str = ""
    """Model of a prompt given as plain text; default: any."""
    endpoint: Literal["chat", "completions"] = "chat"
    """What plain text is: one user message, or a completion's prompt."""
    api_key: str = ""
    """Sent as bearer token."""
    json: bool = False
    """Print the answer as it came."""


def command(options: Annotated[ExplainOptions, Flat] | None = None) -> None:
    """Show why a request went where it went, or where a prompt would go."""
    given = options or ExplainOptions()
    chosen = replace(given, url=find_url(given.url))
    check(chosen)
    body = asyncio.run(fetch_answer(chosen))
    if chosen.json:
        sys.stdout.write(body.decode())
        return
    print_answer(body, Console(), dry_run=not chosen.request_id)


def check(options: ExplainOptions) -> None:
    """Raise `ConfigError` for options that make no sense."""
    if bool(options.request_id) == (options.prompt_file is not None):
        raise ConfigError("give either a request id or --prompt-file")
    parts = urlsplit(options.url)
    if options.url and (parts.scheme not in {"http", "https"} or not parts.hostname):
        raise ConfigError(f"--url {options.url!r}: write http://host:port")


async def fetch_answer(options: ExplainOptions) -> bytes:
    """Return the router's answer. Raises `TransportError` in its words when it has none."""
    headers: list[Header] = []
    if options.api_key:
        headers.append((b"authorization", f"Bearer {options.api_key}".encode()))
    if options.bucket:
        headers.append((b"x-kvmesh-bucket", options.bucket.encode()))
    json: bytes | None = None
    if options.request_id:
        path = f"/v1/decisions/{quote(options.request_id, safe='')}"
    else:
        path, json = "/v1/route", prompt_body(options)
    pool = UpstreamPool()
    try:
        return await ask(pool, options.url, path, tuple(headers), json)
    finally:
        await pool.close()


def prompt_body(options: ExplainOptions) -> bytes:
    """Return the body to decide: the file itself if it is one, else its text as a prompt.

    Raises `ConfigError` for a file that cannot be read.
    """
    assert options.prompt_file is not None
    try:
        from_stdin = str(options.prompt_file) == "-"
        data = sys.stdin.buffer.read() if from_stdin else options.prompt_file.read_bytes()
    except OSError as error:
        raise ConfigError(f"--prompt-file {options.prompt_file}: {error.strerror}") from error
    try:
        body = msgspec.json.decode(data, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        body = {}
    if any(field in body for field in _PROMPT_FIELDS):
        return data
    text = data.decode("utf-8", "replace")
    made: dict[str, object] = {"model": options.model} if options.model else {}
    if options.endpoint == "chat":
        made["messages"] = [{"role": "user", "content": text}]
    else:
        made["prompt"] = text
    return msgspec.json.encode(made)


def print_answer(body: bytes, console: Console, *, dry_run: bool) -> None:
    """Print what /v1/decisions or, for a `dry_run`, /v1/route said.

    Raises `TransportError` for an answer that is neither's.
    """
    try:
        if print_hidden(body, console, dry_run=dry_run):
            return
        if dry_run:
            print_decision(msgspec.json.decode(body, type=DecisionView), console, "would go")
            return
        detail = msgspec.json.decode(body, type=DecisionDetail)
    except UNREADABLE as error:
        raise TransportError(f"not a decision: {error}; is --url a kvmesh router?") from error
    print_decision(detail.decision, console, "went", detail.outcome)
    console.print(Text(detail.note, "dim"))


def print_hidden(body: bytes, console: Console, *, dry_run: bool) -> bool:
    """Print the message for a key without the operator's role where tenants share cached blocks.

    Return whether it was that. Raises `msgspec.MsgspecError` for no answer of these paths.
    """
    fields = msgspec.json.decode(body, type=dict[str, object])
    if not dry_run and "decision" not in fields:
        detail = msgspec.json.decode(body, type=TenantDetail)
        row = detail.outcome
        console.print(
            f"Request {detail.request_id} went to {row.worker}: {row.state}, {row.status}"
        )
        console.print(Text(detail.note, "dim"))
        return True
    if dry_run and "overlap_blocks" not in fields:
        choice = msgspec.json.decode(body, type=TenantChoice)
        console.print(f"This prompt would go to {choice.worker}, policy {choice.policy}")
        console.print(Text(choice.why, "dim"))
        return True
    return False


def print_decision(
    decision: DecisionView, console: Console, verb: str, outcome: DecisionRow | None = None
) -> None:
    """Print the choice, what became of it, every candidate's terms and its formula."""
    title = Text.assemble(
        (f"Request {outcome.request_id}" if outcome else "This prompt", "bold"),
        f" {verb} to ",
        (decision.worker, "bold green"),
        f": {decision.why}.",
    )
    console.print(title)
    console.print(_facts(decision, outcome))
    console.print(candidate_table(decision))
    if decision.left_out is not None and decision.left_out.count:
        _print_left_out(decision.left_out, console)
    wins = "the largest wins" if decision.maximise else "the smallest wins"
    console.print(Text(f"{decision.formula}  ({wins})", "cyan"), soft_wrap=True)
    for one in decision.candidates:
        style = "bold" if one.worker == decision.worker else ""
        console.print(Text(one.formula, style), soft_wrap=True, highlight=False)


def _facts(decision: DecisionView, outcome: DecisionRow | None) -> Table:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")

    def add(name: str, value: str) -> None:
        facts.add_row(name, Text(value))

    add("decided by", f"{decision.router}, bucket {decision.bucket}, policy {decision.policy}")
    about = "about " if outcome is not None and outcome.estimated else ""
    blocks = counted(decision.total_blocks, "block")
    add("prompt", f"{about}{counted(decision.prompt_tokens, 'token')}, {blocks}")
    add("predicted cached", counted(decision.overlap_blocks, "block"))
    program = decision.program
    told = {
        "not foretold": decision.unforeseen,
        "images, sounds, videos": decision.media,
        "program": f"{program.why}; {_standing(program)}" if program is not None else "",
    }
    for name, words in told.items():
        if words:
            add(name, words)
    if outcome is None:
        return facts
    if outcome.cached_tokens is not None and outcome.reported_tokens is not None:
        said = f"{outcome.cached_tokens:,} of {counted(outcome.reported_tokens, 'token')}"
        add("engine reported cached", said)
    if outcome.round_robin_blocks is not None:
        add("round robin would find", f"about {counted(outcome.round_robin_blocks, 'block')}")
    if outcome.ttft_ms is not None:
        add("first token after", f"{outcome.ttft_ms:,.0f} ms")
    if outcome.duration_ms is not None:
        add("done after", f"{outcome.duration_ms:,.0f} ms")
    add("state", f"{outcome.state}, status {outcome.status or '-'}, tries {outcome.attempts}")
    for failure in outcome.failures:
        add("failed before", failure)
    return facts


def _standing(program: Outlook) -> str:
    known = program.standing
    who = f"agent {program.agent[:8]} ({program.client or 'unknown client'})"
    return f"{who}: {known.why}" if known is not None else f"{who} is new"


def _print_left_out(left_out: LeftOut, console: Console) -> None:
    """Print who was not weighed, and why."""
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold")
    table.add_column(overflow="fold", style="yellow")
    for one in left_out.named:
        table.add_row(Text(f"  {one.worker}"), Text(one.why))
    console.print(Text("left out:", "dim"))
    console.print(table)
    if more := left_out.count - len(left_out.named):
        console.print(Text(f"  and {more} more", "dim"))


def candidate_table(decision: DecisionView) -> Table:
    """Return every weighed worker, best first, the chosen one marked."""
    # Whole in 80 columns: names fold, figures and headers do not.
    table = Table(box=SIMPLE_HEAD, padding=0)
    table.add_column("worker", overflow="fold")
    for name in (
        "cost",
        "cached\nblocks",
        "to\nprefill",
        "queue",
        "wait\nms",
        "requests",
        "decode\nblocks",
        "cache\nin use",
        "ms/1k\ntokens",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for one in decision.candidates:
        chosen = one.worker == decision.worker
        table.add_row(*_cells(one, chosen=chosen), style="bold green" if chosen else "")
    return table


def _cells(one: CandidateView, *, chosen: bool) -> tuple[Text, ...]:
    usage = f"{one.cache_usage:.0%}" if one.capacity_blocks else "-"
    doubt = f" {one.confidence:.0%}" if one.confidence < _CERTAIN else ""
    return (
        Text(f"{'→' if chosen else ' '} {one.worker}"),
        Text(f"{one.score:,.3g}" if abs(one.score) < 10 else f"{one.score:,.1f}"),  # noqa: PLR2004  three digits
        Text(f"{one.overlap_blocks:,}{doubt}"),
        Text(f"{one.uncached_tokens:,}"),
        Text(f"{one.prefill_tokens:,}"),
        Text(f"{one.wait_ms:,.1f}"),
        Text(f"{one.active_requests:,}"),
        Text(f"{one.decode_blocks:,}"),
        Text(usage),
        Text(f"{one.ms_per_token * 1000:,.1f}"),
    )
