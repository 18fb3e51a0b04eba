"""Where the headers of an interpreter come from."""

import sys
from pathlib import Path

import pytest

from deploy.release import headers
from deploy.release.errors import ReleaseError
from deploy.release.headers import ask, find_headers, from_debian

OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"


def interpreter(
    folder: Path,
    name: str,
    version: str,
    *,
    odd: str = "0",
    level: str = "final",
    pyconfig: str = "",
) -> Path:
    """Return a program that answers as an interpreter whose headers are in `folder`."""
    (folder / "Python.h").touch()
    (folder / "pyconfig.h").write_text(pyconfig)
    minor, _, micro = version.rpartition(".")
    program = folder / name
    program.write_text(
        f"#!/bin/sh\nprintf '%s\\n' '{minor} {micro} {level}' {odd} '{folder}' '{folder}'\n"
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PATH and pyenv without interpreters."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return tmp_path


def test_an_interpreter_is_asked_for_its_headers() -> None:
    reported = ask(Path(sys.executable))

    assert reported is not None
    assert reported[:2] == (OWN, str(sys.version_info[2]))
    assert (reported[2][0] / "Python.h").is_file()


def test_the_newest_interpreter_of_a_version_is_taken(nothing_installed: Path) -> None:
    programs = []
    for version in ("3.12.9", "3.12.11", "3.13.2"):
        folder = nothing_installed / version
        folder.mkdir()
        programs.append(str(interpreter(folder, "python", version)))

    found = find_headers("3.12", "aarch64", programs, nothing_installed)

    assert (found.version, found.source) == ("3.12.11", programs[1])


@pytest.mark.parametrize(
    "unfit",
    [
        {"odd": "1"},
        {"level": "candidate"},
        {"pyconfig": "#include <x86_64-linux-gnu/python3.13/pyconfig.h>"},
    ],
    ids=["debug", "candidate", "of one machine"],
)
def test_headers_that_do_not_serve_everywhere_are_not_taken(
    tmp_path: Path, unfit: dict[str, str]
) -> None:
    assert ask(interpreter(tmp_path, "fit", "3.13.2")) is not None
    assert ask(interpreter(tmp_path, "unfit", "3.13.2", **unfit)) is None


def test_programs_that_are_missing_or_fail_are_passed_over(tmp_path: Path) -> None:
    assert ask(tmp_path / "python3.13") is None
    assert ask(Path("/bin/false")) is None


def test_what_is_missing_is_named_with_the_remedy(nothing_installed: Path) -> None:
    with pytest.raises(ReleaseError, match=r"CPython 3\.12.*Debian has no.*--python PATH"):
        find_headers("3.12", "x86_64", [], nothing_installed)
    with pytest.raises(ReleaseError, match=r"CPython 3\.14.*apt-get, dpkg-deb.*--pythons"):
        find_headers("3.14", "x86_64", [], nothing_installed)


def test_headers_of_debian_are_of_the_version_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("apt-get", "dpkg-deb"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(headers, "KEYRING", Path(__file__))
    folder = tmp_path / "debian-3.14-amd64/unpacked/usr/include/python3.14"
    folder.mkdir(parents=True)
    level = folder / "patchlevel.h"
    level.write_text('#define PY_VERSION          "3.14.8"\n')

    found = from_debian("3.14", "x86_64", tmp_path)

    assert found.version == "3.14.8"
    assert found.folders == (folder, folder.parent)
    level.write_text('#define PY_VERSION "3.15.0a1"\n')
    with pytest.raises(ReleaseError, match=r"no version 3\.14"):
        from_debian("3.14", "x86_64", tmp_path)
