import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvmesh.app.ops.mesh_plan import plan_mesh
from kvmesh.app.ops.site_meshes import of_site, site_name, site_settings
from kvmesh.app.ops.site_server import site_conf
from kvmesh.app.ops.up import describe_mesh, print_sites
from kvmesh.errors import ConfigError
from kvmesh.settings.roles import UpSettings

ONE = UpSettings(engines=1, buckets="chat", replicas=1, sites=2, data_dir=Path("d"))


def test_each_site_has_ports_and_a_folder_of_its_own() -> None:
    first, second = site_settings(ONE)

    assert (first.http_port, first.data_dir) == (8000, Path("d/site-1"))
    assert (second.http_port, second.data_dir) == (9000, Path("d/site-2"))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"sites": 9}, "--sites 9: there may be 8"),
        ({"gateway": True}, "--sites 2 --gateway"),
        ({"routers": 2}, "--sites 2 --routers"),
        ({"nats_url": "nats://n:1"}, "--sites 2 --nats-url"),
        ({"dashboard_port": 8080}, "--sites 2 --dashboard-port"),
    ],
)
def test_what_does_not_go_with_sites_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        site_settings(dataclasses.replace(ONE, **more))


def test_a_site_is_told_its_name_and_the_doors_of_the_others() -> None:
    mesh = of_site(plan_mesh(ONE, "nats://n:1"), "site-1", {"site-2": "http://h:9000"})

    names = [spec.name for spec in mesh.all()]
    told = [spec.args[spec.args.index("--namespace") :] for spec in mesh.all()[1:]]
    assert names == [
        "site-1-engine-0", "site-1-worker-0", "site-1-router-chat-0", "site-1-meta-router",
    ]  # fmt: skip
    assert told[:2] == [["--namespace", "site-1"]] * 2
    assert told[2] == [
        "--namespace",
        "site-1",
        "--site",
        "site-1",
        "--peer-site=site-2=http://h:9000",
    ]
    described = describe_mesh(ONE, mesh, "nats://n:1")
    assert (described.namespace, site_name(1)) == ("site-1", "site-2")


def test_the_other_sites_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    mesh = of_site(plan_mesh(ONE, "nats://n:1"), "site-2", {})

    print_sites(Console(), [])
    assert not capsys.readouterr().out
    print_sites(Console(), [mesh])

    assert "site-2-meta-router: http://127.0.0.1:8000/v1" in capsys.readouterr().out


def test_nothing_but_digests_has_a_way_to_the_leafs() -> None:
    hub = json.loads("{" + site_conf("a", ["b", "c"], listen=7422, hubs={}, leaf="x") + "}")
    leaf = json.loads(
        "{" + site_conf("b", ["a"], listen=0, hubs={"a": "nats-leaf://h"}, leaf="x") + "}"
    )

    assert hub["leafnodes"] == {"listen": "127.0.0.1:7422", "no_advertise": True, "remotes": []}
    assert leaf["leafnodes"] == {"remotes": [{"url": "nats-leaf://h", "account": "site:a"}]}
    assert set(hub["accounts"]) == {"MESH", "site:b", "site:c"}
    assert hub["accounts"]["site:b"] == {
        "users": [
            {
                "user": "b",
                "password": "x",
                "permissions": {
                    "publish": {"allow": ["kvmesh_sites.b.*"]},
                    "subscribe": {"allow": ["kvmesh_sites.a.*"]},
                },
            }
        ],
        "exports": [{"stream": "kvmesh_sites.b.*"}],
        "imports": [{"stream": {"account": "MESH", "subject": "kvmesh_sites.a.*"}}],
    }
    assert leaf["accounts"]["MESH"]["imports"] == [
        {"stream": {"account": "site:a", "subject": "kvmesh_sites.a.*"}}
    ]
    assert leaf["no_auth_user"] == "mesh"
