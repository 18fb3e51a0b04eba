from kvmesh.app.ops.config import describe, render_markdown
from kvmesh.settings.picker import PickerSettings
from kvmesh.settings.roles import RouterSettings


def test_a_picker_takes_every_setting_of_a_router() -> None:
    names = {setting.name for setting in describe(PickerSettings)}

    assert names > {setting.name for setting in describe(RouterSettings)}


def test_the_page_tells_settings_that_both_have_once() -> None:
    page = render_markdown()
    own = page.partition("## kvmesh picker")[2].partition("\n## ")[0]

    assert "All settings of `kvmesh router`, and:" in own
    assert "`--grpc-port`" in own
    assert "`--bucket`" not in own
