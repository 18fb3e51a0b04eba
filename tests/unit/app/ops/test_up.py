import socket
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvmesh.app.ops.mesh_place import hold_data_dir, refuse_taken_ports, stream_room
from kvmesh.app.ops.mesh_plan import mesh_ports, plan_mesh
from kvmesh.app.ops.mesh_start import small_streams, with_secret
from kvmesh.app.ops.up import describe_mesh
from kvmesh.app.picker.envoy_options import GatewayOptions
from kvmesh.app.process.supervisor import ChildSpec
from kvmesh.errors import ConfigError
from kvmesh.settings.roles import UpSettings
from kvmesh.settings.secret_file import read_hash_secret


def test_engines_are_dealt_to_buckets_and_each_bucket_gets_its_replicas() -> None:
    plan = plan_mesh(UpSettings(engines=4, buckets="chat,code", replicas=2), "nats://n:1")

    assert [spec.name for spec in plan.routers] == [
        "router-chat-0",
        "router-chat-1",
        "router-code-0",
        "router-code-1",
    ]
    buckets = [spec.args[spec.args.index("--bucket") + 1] for spec in plan.sidecars]
    assert buckets == ["chat", "code", "chat", "code"]
    ports = [spec.ready_url for spec in plan.all() if spec.ready_url]
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (UpSettings(buckets=""), "--"),
        (UpSettings(buckets="chat,chat"), "--"),
        (UpSettings(buckets="a,b,c", engines=2), "--"),
        (UpSettings(buckets="a b"), "--"),
        (UpSettings(buckets="a.b"), "--"),
        (UpSettings(engines=101), "--"),
        (UpSettings(model=" "), "--served-model-name"),
        (UpSettings(gateway=True, buckets="a,b"), "--gateway --buckets a,b: .*one.*--buckets a"),
        (UpSettings(gateway=True, dashboard_port=8099), "--gateway --dashboard-port 8099"),
        (UpSettings(gateway=True, routers=2), "--gateway --routers 2"),
        (UpSettings(routers=2, buckets="a,b"), "--routers --buckets a,b"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(settings: UpSettings, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_mesh(settings, "nats://n:1")


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (UpSettings(), ["mock"]),
        (UpSettings(model="Qwen/Qwen3-0.6B"), ["Qwen/Qwen3-0.6B"]),
        (UpSettings(model="unused", served_model_name=("-a", "b")), ["-a", "b"]),
    ],
)
def test_every_engine_serves_the_models_names(settings: UpSettings, names: list[str]) -> None:
    plan = plan_mesh(settings, "nats://n:1")

    prefix = "--served-model-name="
    given = [
        [one.removeprefix(prefix) for one in spec.args if one.startswith(prefix)]
        for spec in plan.engines
    ]
    assert given == [names] * 4


def test_the_secret_of_hashes_goes_to_routers_and_sidecars_and_nobody_else() -> None:
    plan = plan_mesh(UpSettings(hash_secret_file=Path("secret")), "nats://n:1")

    given = [spec.name for spec in plan.all() if "--hash-secret-file" in spec.args]

    assert given == [spec.name for spec in (*plan.sidecars, *plan.routers)]


def test_a_secret_is_made_once_kept_and_found_again(tmp_path: Path) -> None:
    settings = UpSettings(data_dir=tmp_path)

    first = with_secret(settings)
    assert first.hash_secret_file is not None
    kept = read_hash_secret(first.hash_secret_file)
    again = with_secret(settings)

    assert first.hash_secret_file == again.hash_secret_file == tmp_path / "hash.secret"
    assert read_hash_secret(tmp_path / "hash.secret") == kept
    assert stat.S_IMODE((tmp_path / "hash.secret").stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="--data-dir"):
        with_secret(UpSettings(data_dir=tmp_path / "nowhere"))
    given = UpSettings(hash_secret_file=tmp_path / "mine", data_dir=tmp_path)
    assert with_secret(given) is given
    described = describe_mesh(first, plan_mesh(first, "nats://n:1"), "nats://n:1")
    assert described.hash_secret_file == str(tmp_path / "hash.secret")


def test_every_port_of_the_plan_is_claimed() -> None:
    settings = UpSettings(engines=3, buckets="chat,code", replicas=2)
    plan, ports = plan_mesh(settings, "nats://n:1"), mesh_ports(settings)

    named = {
        int(spec.ready_url.split(":")[2].split("/")[0]) for spec in plan.all() if spec.ready_url
    }
    assert named < set(ports)
    assert len(ports) == len(set(ports)) == 1 + 4 + 3 * 3


def test_a_dashboard_port_is_the_front_doors_alone_and_claimed() -> None:
    settings = UpSettings(dashboard_port=8099, http_port=8000)

    given = [one.name for one in plan_mesh(settings, "nats://n:1").all() if "8099" in one.args]

    assert given == ["meta-router"]
    assert mesh_ports(settings)[-1] == 8099
    with pytest.raises(ConfigError, match="--dashboard-port 8001"):
        mesh_ports(UpSettings(dashboard_port=8001, http_port=8000))


def test_a_gateway_stands_before_the_pickers_of_one_bucket() -> None:
    settings = UpSettings(engines=3, gateway=True, http_port=9000)

    plan = plan_mesh(settings, "nats://n:1")

    assert [(spec.name, spec.args[0]) for spec in plan.routers] == [
        ("picker-chat-0", "picker"),
        ("picker-chat-1", "picker"),
    ]
    assert isinstance(plan.front, GatewayOptions)
    assert str(plan.front.listen) == "127.0.0.1:9000"
    reported = [spec.args[spec.args.index("--grpc-port") + 1] for spec in plan.routers]
    assert reported == [str(one.port) for one in plan.front.pickers] == ["9400", "9401"]
    engines = [spec.ready_url.removesuffix("/health") for spec in plan.engines]
    assert engines == [f"http://{one}" for one in plan.front.endpoints]
    assert plan.all() == [*plan.engines, *plan.sidecars, *plan.routers]


def test_a_gateways_ports_are_claimed() -> None:
    settings = UpSettings(engines=3, gateway=True, replicas=2, http_port=9000)
    ports = mesh_ports(settings)

    front = plan_mesh(settings, "nats://n:1").front
    assert isinstance(front, GatewayOptions)
    assert {one.port for one in (front.listen, front.admin, *front.pickers)} < set(ports)
    assert len(ports) == len(set(ports)) == 1 + 2 + 3 * 3 + 2 + 1


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        port = one.getsockname()[1]

        with pytest.raises(ConfigError, match=f"--http-port 1: port {port}, .*another kvmesh up"):
            refuse_taken_ports([port], "--http-port 1")


def test_a_port_beyond_the_last_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--http-port 65500: .* port 65600; use a lower one"):
        refuse_taken_ports([65600], "--http-port 65500")


def test_a_data_directory_belongs_to_one_mesh_at_a_time(tmp_path: Path) -> None:
    with (
        hold_data_dir(tmp_path / "new"),
        pytest.raises(ConfigError, match="in use by another kvmesh up"),
        hold_data_dir(tmp_path / "new"),
    ):
        pass

    with hold_data_dir(tmp_path / "new"):
        pass


def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with (
        pytest.raises(ConfigError, match=r"--data-dir .*file.*name another"),
        hold_data_dir(tmp_path / "file" / "x"),
    ):
        pass


def test_streams_share_half_of_a_small_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = UpSettings(buckets="chat,code", data_dir=tmp_path)
    monkeypatch.delenv("KVMESH_STREAM_MAX_BYTES", raising=False)

    def has_free(free: int) -> None:
        disk = SimpleNamespace(free=free)
        monkeypatch.setattr("shutil.disk_usage", lambda _: disk)

    has_free(4000)
    assert stream_room(tmp_path, 2) == 1000
    assert small_streams(settings) == ["--stream-max-bytes", "1000"]
    routers = plan_mesh(settings, "nats://n:1", small_streams(settings)).routers
    assert all("--stream-max-bytes 1000" in " ".join(spec.args) for spec in routers)

    has_free(2**40)
    assert small_streams(settings) == []
    has_free(0)
    monkeypatch.setenv("KVMESH_STREAM_MAX_BYTES", "7")
    assert small_streams(settings) == []


def test_routers_serve_one_bucket_behind_the_front_doors_port() -> None:
    settings = UpSettings(engines=2, routers=3, http_port=9000, hash_secret_file=Path("secret"))

    plan = plan_mesh(settings, "nats://n:1")

    assert plan.routers == []
    assert isinstance(plan.front, ChildSpec)
    assert plan.front.args[:5] == ["router", "--processes", "3", "--bucket", "chat"]
    assert mesh_ports(settings)[:5] == [9000, 9001, 9002, 9003, 9004]
    described = describe_mesh(settings, plan, "nats://n:1")
    assert described.view_url.endswith(":9004")
    assert {one.router_url for one in described.engines} == {"http://127.0.0.1:9001"}
