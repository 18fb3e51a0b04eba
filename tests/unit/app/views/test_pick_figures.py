from kvmesh.app.picker.counts import PickCounts
from kvmesh.app.views.pick_figures import PICKS
from kvmesh.transport.grpc.extproc_messages import FULL_DUPLEX, NO_BODY, Modes


def test_what_became_of_questions_is_shown_by_its_kind() -> None:
    counts = PickCounts(picks=5, refused=2, malformed=1, followed=3, gone=1, silent=1)
    counts.begin(Modes(FULL_DUPLEX, NO_BODY))
    counts.seconds.observe(0.0002)

    shown = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in PICKS.of(lambda: counts).metrics()
        for sample in metric.samples
    }

    assert shown["kvmesh_picks_total", "picked"] == 5
    assert shown["kvmesh_picks_total", "refused"] == 2
    assert shown["kvmesh_picks_total", "malformed"] == 1
    assert shown["kvmesh_picks_followed_total", "to the end"] == 3
    assert shown["kvmesh_pick_modes_total", "full-duplex", "none"] == 1
    assert shown["kvmesh_pick_seconds_count",] == 1
