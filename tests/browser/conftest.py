from tests.browser.needs import WHY_NOT

if not WHY_NOT:
    from tests.browser.pages import alone, browser, engines, page  # noqa: F401  fixtures
