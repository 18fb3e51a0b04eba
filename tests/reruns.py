"""Which tests may fail and be run again, and how often in a whole run.

Only a test of real sockets or processes, which the machine may disturb, is run again: those marked
`integration`, `docker`, `engines` or `browser`. Of all others nothing but their input decides.
More than `MOST_RERUNS` in one run fail it though every test passed in the end.
"""

import os
from typing import Final

import pytest

if given := os.environ.pop("KVMESH_RERUNS", ""):
    # Workers of pytest-xdist find it here. A kvmesh that a test starts must not: it warns of every
    # variable of its own prefix that is no setting.
    os.environ["PYTEST_RERUNS"] = given
RERUNS: Final = int(os.environ.get("PYTEST_RERUNS", "2"))
"""How often one test is run again; 0 shows at once what fails."""

MOST_RERUNS: Final = 5
DELAY_S: Final = float(os.environ.get("KVMESH_RERUN_DELAY_S", "2"))
REAL: Final = ("integration", "docker", "engines", "browser")

_counted = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Count from nothing."""
    config.stash[_counted] = []
    config.pluginmanager.register(_Counter(config.stash[_counted]), "reruns-counter")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let what runs real sockets and processes fail `RERUNS` times."""
    for item in items:
        if RERUNS and any(item.get_closest_marker(name) for name in REAL):
            item.add_marker(pytest.mark.flaky(reruns=RERUNS, reruns_delay=DELAY_S))


class _Counter:
    """Notes each rerun; with pytest-xdist the controller is told of those of all workers."""

    def __init__(self, counted: list[str]) -> None:
        self._counted = counted

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if str(report.outcome) == "rerun":
            self._counted.append(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run, where nothing else did, when more tests were run again than may be."""
    too_many = len(session.config.stash[_counted]) > MOST_RERUNS
    if too_many and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print how many reruns there were, whatever came of them."""
    counted = len(config.stash[_counted])
    line = f"reruns: {counted}, at most {MOST_RERUNS} in a run"
    if counted > MOST_RERUNS:
        terminalreporter.write_line(f"{line}: too many, the run fails", red=True)
    else:
        terminalreporter.write_line(line)
