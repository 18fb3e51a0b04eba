"""The kustomize base and the patches beside it are what the chart renders."""

from tests.integration.kustomize.kustomize_base import (
    BASE,
    KEPT,
    PATCHES,
    rendered,
    tokenizer_patch,
)

AGAIN = "python -m tests.integration.kustomize.kustomize_base"


def test_the_kustomize_base_is_the_chart_rendered_with_its_values() -> None:
    files = rendered()

    assert {one.name for one in BASE.iterdir()} - KEPT == files.keys(), AGAIN
    for name, text in files.items():
        assert (BASE / name).read_text() == text, f"{name}: {AGAIN}"


def test_patches_of_the_overlays_give_routers_the_tokenizer_that_the_chart_would() -> None:
    for path, target in PATCHES.items():
        assert path.read_text() == tokenizer_patch(*target), f"{path}: {AGAIN}"
