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
    _, out, _ = run_cli("worker", "--help")

    line = next(line for line in out.splitlines() if "--bucket" in line)
    assert "KVMESH_BUCKET" in line
    assert "[default: default]" in line


SEED_FLAGS = """--router-mode --kv-cache-block-size --router-temperature --kv-events --no-kv-events
--kv-overlap-score-weight --http-port --block-size --use-kv-events --no-use-kv-events
--router-ttl-secs --bucket"""


def test_router_takes_the_seed_flags_as_spelled() -> None:
    _, out, _ = run_cli("router", "--help")

    assert [flag for flag in SEED_FLAGS.split() if f"{flag} " not in out] == []


def test_a_switch_with_another_word_than_true_or_false_names_both() -> None:
    code, _, err = run_cli("router", "--kv-events", "maybe", "--http-port", "0")

    assert code != 0
    assert 'Invalid value for --kv-events: unable to convert "maybe" into bool' in err


def test_bad_flag_value_names_the_flag() -> None:
    code, _, err = run_cli("worker", "--engine-url", "http://x", "--load-interval-s", "soon")

    assert code != 0
    assert "--load-interval-s" in err
    assert "soon" in err


def test_bad_variable_names_the_variable() -> None:
    code, _, err = run_cli(
        "worker", "--engine-url", "http://x", environment={"KVMESH_LOG_LEVEL": "loud"}
    )

    assert code != 0
    assert "KVMESH_LOG_LEVEL" in err
    assert "loud" in err


def test_bad_key_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "worker.toml"
    path.write_text('engine-url = "http://x"\nbuckt = "code"\n')

    code, _, err = run_cli("worker", "--config", str(path))

    assert code != 0
    assert "buckt" in err
    assert "worker.toml" in err


def test_a_flag_wins_over_a_setting_called_like_a_command(tmp_path: Path) -> None:
    path = tmp_path / "router.toml"
    path.write_text('worker = "no url"\n')

    code, _, err = run_cli("router", "--config", str(path), "--worker", "of the flag")

    assert code == 2
    assert "kvmesh: --worker 'of the flag'" in err


@pytest.mark.parametrize(
    ("key", "reported"),
    [
        ("kv-weight", "there is no such setting any more; write the weight"),
        ("kv_weight", "there is no such setting any more; write the weight"),
        ("parity-sample", "this command has no such setting"),
        ("predict_ttl_s", "this command has no such setting"),
    ],
)
def test_a_removed_setting_in_a_file_is_named_with_what_to_do(
    tmp_path: Path, key: str, reported: str
) -> None:
    path = tmp_path / "router.toml"
    path.write_text(f"{key} = 2\n")

    code, _, err = run_cli("router", "--config", str(path))

    assert code == 2
    assert f"kvmesh: {path}: {key}: {reported}" in err


def test_a_file_that_is_not_toml_is_named_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "worker.toml"
    path.write_text("bucket = = 3\n")

    code, _, err = run_cli("worker", "--config", str(path))

    assert code == 2
    assert "worker.toml: not a TOML file" in err
    assert "line 1" in err


def test_a_table_in_a_file_is_refused_even_if_called_like_the_command(tmp_path: Path) -> None:
    path = tmp_path / "worker.toml"
    path.write_text('[worker]\nengine-url = "http://x"\n')

    code, _, err = run_cli("worker", "--config", str(path))

    assert code == 2
    assert f"{path}: [worker]: settings stand in no table" in err


def test_missing_file_is_named() -> None:
    code, _, err = run_cli("worker", "--config", "/nowhere/worker.toml")

    assert code != 0
    assert "/nowhere/worker.toml" in err


def test_a_misspelt_variable_is_rejected_as_a_key_of_a_file_is() -> None:
    code, _, err = run_cli("worker", environment={"KVMESH_ENGINE_URLS": "http://x"})

    assert code == 2
    assert "kvmesh: 'KVMESH_ENGINE_URLS': no such setting; is KVMESH_ENGINE_URL meant?" in err


def test_a_variable_like_no_setting_is_named() -> None:
    code, out, err = run_cli("config", "worker", environment={"KVMESH_TEAM": "red"})

    assert code == 0
    assert out.startswith("# kvmesh worker")
    assert "kvmesh: warning: 'KVMESH_TEAM': no command has such a setting" in err
