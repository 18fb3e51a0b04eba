import io
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from rich.console import Console

from kvmesh.app.views.explain_command import ExplainOptions, check, print_answer, prompt_body
from kvmesh.app.views.tenant_view import TenantDetail, detail_for
from kvmesh.core.admission.access import Viewer
from kvmesh.core.insight.explain import HIDDEN, choice_for, view_decision
from kvmesh.core.members.left_out import LeftOut, WorkerLeftOut
from kvmesh.errors import ConfigError, TransportError
from tests.unit.app.views.test_top_view import decision
from tests.unit.core.insight.test_explain import decide


def body_of(path: Path, endpoint: Literal["chat", "completions"] = "chat", model: str = "") -> Any:
    options = ExplainOptions(prompt_file=path, endpoint=endpoint, model=model)
    return msgspec.json.decode(prompt_body(options))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (ExplainOptions(), "either a request id or --prompt-file"),
        (ExplainOptions("id", prompt_file=Path("x")), "either a request id or --prompt-file"),
        (ExplainOptions("id", url="localhost:8000"), "localhost:8000"),
        (ExplainOptions("id", url="http://"), "--url"),
    ],
)
def test_options_that_make_no_sense_are_named(options: ExplainOptions, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        check(options)


def test_good_options_pass() -> None:
    check(ExplainOptions("id"))
    check(ExplainOptions(prompt_file=Path("-"), url="https://mesh/v1"))


def test_text_becomes_a_chat_or_a_completion(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("Why?")

    assert body_of(path) == {"messages": [{"role": "user", "content": "Why?"}]}
    assert body_of(path, endpoint="completions", model="m") == {"model": "m", "prompt": "Why?"}


def test_a_request_body_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "body.json"
    path.write_bytes(b'{"input":   "x"}')

    assert prompt_body(ExplainOptions(prompt_file=path)) == b'{"input":   "x"}'


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"piped")))

    assert body_of(Path("-")) == {"messages": [{"role": "user", "content": "piped"}]}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.txt: No such file"):
        body_of(tmp_path / "nowhere.txt")


@pytest.mark.parametrize("dry_run", [True, False])
def test_another_servers_answer_is_not_taken_for_a_decision(*, dry_run: bool) -> None:
    with pytest.raises(TransportError, match="is --url a kvmesh router"):
        print_answer(b'{"object": "list"}', Console(file=io.StringIO()), dry_run=dry_run)


def test_a_doubted_overlap_is_shown_with_its_confidence() -> None:
    view = view_decision(decide(1), router="r", bucket="b")
    doubted = msgspec.structs.replace(view.candidates[0], overlap_blocks=12, confidence=0.632)
    view = msgspec.structs.replace(view, candidates=[doubted, *view.candidates[1:]])
    console = Console(file=io.StringIO(), width=80, color_system=None)

    print_answer(msgspec.json.encode(view), console, dry_run=True)

    assert isinstance(console.file, io.StringIO)
    assert "12 63%" in console.file.getvalue()


def test_workers_left_out_are_listed_with_the_reason_and_many_are_counted() -> None:
    why = "ejected, 12 of 12 failed (500), asked again in 3.2 s"
    left_out = LeftOut(3, (WorkerLeftOut("w7", why), WorkerLeftOut("w8", "draining")))
    view = view_decision(decide(1), router="r", bucket="b", left_out=left_out)
    console = Console(file=io.StringIO(), width=100, color_system=None)

    print_answer(msgspec.json.encode(view), console, dry_run=True)

    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert f"  w7  {why}" in text
    assert "  w8  draining" in text
    assert "  and 1 more" in text


def test_what_a_tenant_is_told_is_printed_with_the_reason_why_it_is_no_more() -> None:
    console = Console(file=io.StringIO(), width=400, color_system=None)
    choice = choice_for(view_decision(decide(0, 50), router="r0", bucket="chat"), Viewer("ann"))
    row = msgspec.structs.replace(decision(1), tenant="ann")

    print_answer(msgspec.json.encode(choice), console, dry_run=True)
    print_answer(
        detail_for(TenantDetail("r-1", "all", row), Viewer("ann")) or b"", console, dry_run=False
    )

    file = console.file
    assert isinstance(file, io.StringIO)
    text = file.getvalue()
    assert "would go to w1" in text
    assert "Request r-1 went to w0: finished, 200" in text
    assert text.count(HIDDEN) == 2
