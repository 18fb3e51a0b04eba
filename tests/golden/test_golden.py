"""The code holds against the golden record: decisions, terms, bookings, bytes, answers, figures.

A difference that is meant is stored with `python -m tests.golden --write` and named in the commit.
"""

import pytest

from tests.golden.play import Scene
from tests.golden.record import differences, read_record
from tests.golden.scenes import scenes

RECORD = read_record()
SCENES = scenes()


def test_the_record_has_these_scenes_and_no_others() -> None:
    assert list(RECORD) == [scene.name for scene in SCENES]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name.replace(" ", "-"))
def test_a_scene_is_played_as_it_is_stored(scene: Scene) -> None:
    assert differences(RECORD[scene.name], scene) == []
