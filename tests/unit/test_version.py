from importlib.metadata import version

from kvmesh.version import VERSION


def test_the_package_is_installed_as_what_it_says_it_is() -> None:
    assert version("kvmesh") == VERSION
