"""The page on a phone: the important parts are on the first screen, and no part is cut off."""

from playwright.sync_api import expect

from browser import opened, request, shown

WIDTH, HEIGHT = 390, 844


def fits(page):
    """Checks that no element extends beyond the edge of the screen."""
    assert page.locator("html").evaluate("html => html.scrollWidth <= html.clientWidth")
    wide = page.evaluate("[...document.body.querySelectorAll('*')].filter((e) => e.checkVisibility() && "
                         "e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80))")
    assert wide == [], wide


def test_first_screen(browser, address):
    with opened(browser, address, WIDTH, HEIGHT, is_mobile=True, has_touch=True) as page:
        expect(page.locator("#status")).to_have_text("live")
        for part in ["#speed b", "#queue b", "#used b", "#latency b", "#prompt textarea", "#prompt [name=run]", "#prompt [name=stop]"]:
            box = page.locator(part).bounding_box()
            assert box["y"] >= 0 and box["y"] + box["height"] <= HEIGHT, (part, box)
        fits(page)
        page.tap("#chat-tab")
        for part in ["#chat textarea", "#chat [name=run]"]:
            box = page.locator(part).bounding_box()
            assert box["y"] + box["height"] <= HEIGHT, (part, box)
        fits(page)


def test_answers_are_shown_in_full(browser, address):
    with opened(browser, address, WIDTH, HEIGHT, is_mobile=True, has_touch=True) as page:
        page.fill("#prompt [name=max_tokens]", "300")
        page.check("#prompt [name=ignore_eos]")
        page.tap("#prompt [name=run]")
        expect(page.locator("#prompt .note")).to_have_text(["cut at 300 tokens"] * 2)
        for output in page.locator("#prompt pre").all():
            text, height, inner, outer = output.evaluate("pre => [pre.textContent.length, pre.offsetHeight, pre.scrollHeight, pre.clientHeight]")
            assert inner == outer and text > 500 and height > 300, (text, height, inner, outer)
        fits(page)


def test_block_tables(browser, address):
    with opened(browser, address, WIDTH, HEIGHT, is_mobile=True, has_touch=True) as page:
        tables = [list(range(40)), [*range(20), *range(40, 64)]]
        waiting = [request([7, 8], id=1_000_000, swapped=True)]
        shown(page, {"num_blocks": 64, "refs": [[2, 20], [1, 44]], "running": [request(*tables)], "waiting": waiting})
        fits(page)
        cells = page.locator("#requests code")
        expect(cells).to_have_count(86)
        # The tables are folded and come after the plots.
        summaries = page.locator("#requests summary")
        expect(summaries).to_have_text(["KV blocks of 2 sequences", "KV blocks of 1 sequence"])
        expect(cells.first).to_be_hidden()
        plots = page.locator("#plots").bounding_box()
        assert plots["y"] + plots["height"] <= page.locator("#requests").bounding_box()["y"], plots
        for summary in summaries.all():
            summary.tap()
        expect(cells.last).to_be_visible()
        fits(page)
        for box, size in [(cell.bounding_box(), cell.evaluate("c => parseFloat(getComputedStyle(c).fontSize)")) for cell in cells.all()[::9]]:
            assert size >= 12 and box["height"] >= 18 and box["x"] >= 0 and box["x"] + box["width"] <= WIDTH, (box, size)
        # A touch highlights too, until another element is touched.
        page.locator("[data-request='6'] .name").first.tap()
        expect(page.locator("[data-request='6']")).to_have_class("request lit")
        page.locator("#requests h2").tap()
        expect(page.locator("[data-request='6']")).to_have_class("request")


# What can be touched and is too small for a finger. A checkbox is as large as its label.
SMALL = """() => [...document.querySelectorAll("a, button, input:not([type=checkbox]), label.check, textarea, summary")]
    .filter((e) => e.checkVisibility()).map((e) => [e.outerHTML.slice(0, 80), e.getBoundingClientRect()])
    .filter(([, box]) => box.width < 44 || box.height < 44).map(([html, box]) => [html, box.width, box.height])"""


def test_everything_can_be_touched(browser, address):
    with opened(browser, address, WIDTH, HEIGHT, is_mobile=True, has_touch=True) as page:
        shown(page, {"num_blocks": 4, "refs": [[1, 2], [0, 2]], "running": [request([0], id=1), request([1], id=2)]})
        page.locator("[data-request='2'] button").wait_for()
        assert page.evaluate(SMALL) == []
        page.tap("#chat-tab")
        assert page.evaluate(SMALL) == []


ALL = [test_everything_can_be_touched, test_first_screen, test_answers_are_shown_in_full, test_block_tables]
