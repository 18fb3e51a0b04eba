"""`kvmesh conformance picker`: what it prints, writes and exits with."""

import asyncio
import os
import sys
from pathlib import Path

import msgspec
import pytest

from kvmesh_lab.conformance.picker import ALL_CASES
from kvmesh_lab.conformance.report import Report, case_rows
from tests.integration.conformance.reference import Fault, ReferencePicker, serving
from tests.integration.conformance.running import endpoints

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

PAGE = Path("docs/gateways/conformance.md").read_text(encoding="utf-8")


async def run(*arguments: str) -> tuple[int, str, str]:
    """Return the exit code and what was printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvmesh", "conformance", "picker", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"COLUMNS": "200"},
    )
    out, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), said.decode()


@pytest.mark.parametrize(("fault", "code"), [(None, 0), ("falls-back", 1)])
async def test_the_exit_code_says_whether_it_passed(
    fault: Fault | None, code: int, tmp_path: Path
) -> None:
    pool, file = endpoints(), tmp_path / "results.json"
    async with serving(ReferencePicker(pool, fault)) as target:
        flags = ["--target", target, "--endpoints", ",".join(pool), "--json", str(file)]
        ended, printed, _ = await run(*flags, "--only", "health,subset")

    report = msgspec.json.decode(file.read_bytes(), type=Report)
    failed = {one.name for one in report.results if one.verdict == "fail"}
    assert ended == code
    assert failed == ({"subset-empty", "subset-strangers"} if fault else set())
    assert report.counts["pass"] == len(report.results) - len(failed)
    assert "subset-one" in printed
    assert ("ImmediateResponse with status 503" in printed) == bool(fault)


async def test_where_no_picker_answers_the_remedy_is_said() -> None:
    ended, _, said = await run("--target", "127.0.0.1:9", "--wait-s", "0.2")

    assert ended == 2
    assert "127.0.0.1:9: no gRPC server answers" in said
    assert "gRPC port" in said


async def test_the_list_is_the_one_of_the_documentation() -> None:
    ended, printed, _ = await run("--list")

    assert ended == 0
    assert printed.splitlines() == case_rows(ALL_CASES)
    assert all(row in PAGE for row in case_rows(ALL_CASES))
