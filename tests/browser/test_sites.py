"""Two sites on the dashboard in a real Chromium: the map, who is how far, and who went there."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest

from tests.browser.needs import WHY_NOT
from tests.integration.support.two_sites import ENGINE, two_sites, until_usable

if WHY_NOT:
    pytest.skip(WHY_NOT, allow_module_level=True)

from playwright.async_api import Page, expect

from tests.browser.pages import CONTRASTS, MARKS

pytestmark = MARKS


async def test_the_other_site_is_on_a_map_with_the_requests_that_went_there(
    page: Page, tmp_path: Path
) -> None:
    async with two_sites(tmp_path, *ENGINE) as sites:
        await until_usable(sites.a, "b")
        async with httpx.AsyncClient(base_url=sites.a.url, timeout=60) as client:
            bodies = [
                {"model": "mock", "max_tokens": 1, "prompt": f"{n} " + f"word{n} " * 1000}
                for n in range(40)
            ]
            answers = await asyncio.gather(
                *(client.post("/v1/completions", json=body) for body in bodies)
            )
        away = sum(one.headers.get("x-kvmesh-site") == "b" for one in answers)
        assert away
        await page.goto(f"{sites.a.url}/")

        await expect(page.locator("#sites tbody tr")).to_have_count(1)
        row = page.locator("#sites tbody tr td")
        await expect(row.nth(0)).to_have_text("takes requests")
        await expect(row.nth(4)).to_have_text(str(away))
        await expect(page.locator("#site-part svg")).to_have_attribute(
            "aria-label", re.compile(r"^a and 1 other site: b [\d.]+ ms away$")
        )
        await expect(page.locator("#trips tbody tr")).to_have_count(min(8, away))
        await expect(page.locator("#trips tbody tr").first).to_contain_text("full: home")
        assert await page.evaluate(CONTRASTS) == []

        sites.b.kill()
        await expect(row.nth(0)).to_have_class(re.compile("bad"))
        await expect(page.locator("#site-part svg .lost")).to_have_count(1)
