from kvmesh.app.process.build import Build
from kvmesh.app.views.process_figures import BUILD
from kvmesh.formats import FormatRange, Formats


def test_what_a_process_runs_stands_in_the_labels_of_one_sample() -> None:
    formats = Formats(bookings=FormatRange(1, 2), snapshot=FormatRange(2, 3))
    build = Build("1.4.0", "3.11.7", formats)

    [metric] = BUILD.of(lambda: build).metrics()
    [sample] = metric.samples

    assert (sample.name, sample.value) == ("kvmesh_build_info", 1)
    assert sample.labels == {
        "version": "1.4.0",
        "python": "3.11.7",
        "journal": "1",
        "bookings": "1 to 2",
        "snapshot": "2 to 3",
        "manifest": "1",
        "programs": "1",
    }
