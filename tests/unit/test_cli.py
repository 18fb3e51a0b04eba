import subprocess
import sys
from pathlib import Path

import pytest

from kvmesh import cli
from kvmesh.app.process.build import own_build


def run_cli(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run the command line in its own process; the code under test decides how it ends."""
    done = subprocess.run(
        [sys.executable, "-m", "kvmesh", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200", **(environment or {})},
    )
    return done.returncode, done.stdout, done.stderr


def test_help_lists_every_command() -> None:
    code, out, _ = run_cli("--help")

    assert code == 0
    for name in cli.COMMANDS:
        assert f" {name} " in out


def test_the_version_names_the_core_and_the_formats() -> None:
    code, out, _ = run_cli("--version")

    assert (code, out) == (0, f"{own_build()}\n")


def test_command_help_shows_default_and_environment_name_of_a_flag() -> None:
    _, out, _ = run_cli("worker", "--help-all")

    line = next(line for line in out.splitlines() if "--bucket" in line)
    assert "KVMESH_BUCKET" in line
    assert "[default: default]" in line


FIVE_TITLES = ("Engines", "Front door", "Routing", "Limits and failures", "Mesh and logs")


@pytest.mark.parametrize("role", sorted(cli.MANY_SETTINGS))
def test_help_of_many_settings_is_a_page_of_titled_groups(role: str) -> None:
    _, out, _ = run_cli(role, "--help", environment={"COLUMNS": "80"})

    lines = out.splitlines()
    titles = [line.split("─ ")[1].split(" ─")[0] for line in lines if line.startswith("╭")]
    assert len(lines) <= 60
    assert 4 <= len(titles) <= 5
    assert "KVMESH_HTTP_PORT" not in out
    assert f"kvmesh config {role}" in " ".join(out.split())


def test_help_of_a_router_has_the_twenty_settings_used_most() -> None:
    _, out, _ = run_cli("router", "--help")
    _, whole, _ = run_cli("router", "--help-all")

    shown = [line for line in out.splitlines() if line.startswith("│ --")]
    assert len(shown) == 20
    assert [title for title in FIVE_TITLES if f"─ {title} ─" not in out + whole] == []
    assert "--worker STR...  " in out
    assert "--shadow-policy" not in out
    assert "KVMESH_SHADOW_POLICY" in whole


def test_help_of_other_commands_is_whole() -> None:
    _, out, _ = run_cli("doctor", "--help")

    assert "KVMESH_ENGINE_URL" in out


def test_a_setting_by_its_old_name_is_taken_with_a_warning() -> None:
    _, _, err = run_cli("mocker", "--port", "70000")

    assert "kvmesh: warning: --port: deprecated" in err
    assert "it is --http-port now" in err
    assert "70000" in err


SEED_FLAGS = """--router-mode --kv-cache-block-size --router-temperature --kv-events --no-kv-events
--kv-overlap-score-weight --http-port --block-size --use-kv-events --no-use-kv-events
--router-ttl-secs --bucket"""


def test_router_takes_the_seed_flags_as_spelled() -> None:
    _, out, _ = run_cli("router", "--help-all")

    assert [flag for flag in SEED_FLAGS.split() if f"{flag} " not in out] == []


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (
            ("router", "--kv-events", "maybe", "--http-port", "0"),
            {},
            ('Invalid value for --kv-events: unable to convert "maybe" into bool',),
        ),
        (
            ("worker", "--engine-url", "http://x", "--load-interval-s", "soon"),
            {},
            ("--load-interval-s", "soon"),
        ),
        (
            ("worker", "--engine-url", "http://x"),
            {"KVMESH_LOG_LEVEL": "loud"},
            ("KVMESH_LOG_LEVEL", "loud"),
        ),
        (("worker", "--config", "/nowhere/worker.toml"), {}, ("/nowhere/worker.toml",)),
        (
            ("worker",),
            {"KVMESH_ENGINE_URLS": "http://x"},
            ("kvmesh: 'KVMESH_ENGINE_URLS': no such setting; is KVMESH_ENGINE_URL meant?",),
        ),
    ],
)
def test_a_bad_flag_or_variable_is_named(
    arguments: tuple[str, ...], variables: dict[str, str], words: tuple[str, ...]
) -> None:
    code, _, err = run_cli(*arguments, environment=variables)

    assert code != 0
    assert [one for one in words if one not in err] == []


NO_MORE = "there is no such setting any more; write the weight"
NOT_HERE = "this command has no such setting"


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        ('buckt = "code"\n', (), ("buckt", "file.toml")),
        ('worker = "no url"\n', ("--worker", "of the flag"), ("kvmesh: --worker 'of the flag'",)),
        ("kv-weight = 2\n", (), (f"file.toml: kv-weight: {NO_MORE}",)),
        ("kv_weight = 2\n", (), (f"file.toml: kv_weight: {NO_MORE}",)),
        ("parity-sample = 2\n", (), (f"file.toml: parity-sample: {NOT_HERE}",)),
        ("predict_ttl_s = 2\n", (), (f"file.toml: predict_ttl_s: {NOT_HERE}",)),
        ("bucket = = 3\n", (), ("file.toml: not a TOML file", "line 1")),
        ('[router]\nbucket = "x"\n', (), ("file.toml: [router]: settings stand in no table",)),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_the_file(
    tmp_path: Path, text: str, more: tuple[str, ...], words: tuple[str, ...]
) -> None:
    path = tmp_path / "file.toml"
    path.write_text(text)

    code, _, err = run_cli("router", "--config", str(path), *more)

    assert code != 0
    assert [one for one in words if one not in err] == []


def test_a_variable_like_no_setting_is_named() -> None:
    code, out, err = run_cli("config", "worker", environment={"KVMESH_TEAM": "red"})

    assert code == 0
    assert out.startswith("# kvmesh worker")
    assert "kvmesh: warning: 'KVMESH_TEAM': no command has such a setting" in err
