"""The KV memory map: its cells, its legend, and the highlighting of related parts."""

import re

from playwright.sync_api import expect

from browser import SUMMARY, cell, opened, palette, pixels, point, request, shown

MAP = "#memory canvas >> nth=0"
BLACK = (0, 0, 0, 255)


def contrast(a, b):
    """Returns the contrast of two colours, as WCAG defines it."""
    def luminance(colour):
        parts = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
    dark, light = sorted([luminance(a), luminance(b)])
    return (light + 0.05) / (dark + 0.05)


def test_four_blocks(browser, address):
    with opened(browser, address) as page:
        shown(page, {"num_blocks": 4, "refs": [[0, 1], [2, 1], [1, 1], [0, 1]], "cached": [[3, 1]], "running": [request([1, 2], [1])]})
        expect(page.locator(SUMMARY)).to_have_text("2 of 4 blocks of 16 tokens in use, 1 shared (by up to 2 sequences), 1 free and kept for reuse")
        size = 56
        assert point(page, 0, size) == ["block 0: used by 0 sequences"]
        assert point(page, 1, size) == ["block 1: used by 2 sequences", "request 6, sequence 0", "request 6, sequence 1"]
        assert point(page, 2, size) == ["block 2: used by 1 sequence", "request 6, sequence 0"]
        assert point(page, 3, size) == ["block 3: used by 0 sequences", "kept for reuse"]
        page.mouse.move(0, 0)
        expect(page.locator("#memory .tip")).to_be_hidden()
        # A free block, both colours of a shared block, a block of one owner, and a cached block.
        free, left, right, held, cached = [pixels(page.locator(MAP), *at)[0] for at in [(10, 40), (66, 40), (100, 40), (122, 40), (178, 50)]]
        assert left == held and len({free, left, right, cached}) == 4, (free, left, right, held, cached)
        expect(page.locator("#requests code")).to_have_text(["1 ×2", "2", "1 ×2"])
        # Only blocks with more than one reference show the count, below the block number.
        middles = [pixels(page.locator(MAP), block * size + 5, 20, size - 11, 25) for block in range(4)]
        assert [BLACK in middle for middle in middles] == [False, True, False, False]
        assert [len(set(middles[block])) for block in (0, 2, 3)] == [1, 1, 1]


def test_swapped_requests_have_no_blocks_on_the_map(browser, address):
    with opened(browser, address) as page:
        waiting = [request([1], id=7, swapped=True), request(id=8)]
        shown(page, {"num_blocks": 4, "refs": [[0, 1], [1, 1], [0, 2]], "running": [request([1])], "waiting": waiting})
        assert point(page, 1, 56) == ["block 1: used by 1 sequence", "request 6, sequence 0"]
        expect(page.locator("[data-request='7'] .blocks")).to_have_text("swapped out: 1")
        expect(page.locator("[data-request='7'] .how")).to_have_text(re.compile("^swapped out; "))
        expect(page.locator("[data-request='8'] .how")).to_have_text(re.compile("; no KV blocks$"))


def test_forty_thousand_blocks(browser, address):
    tables = [list(range(10, 30_000)), [*range(10, 20), *range(30_000, 39_000)]]
    refs = [[0, 10], [2, 10], [1, 38_980], [0, 1000]]
    for width in [1200, 400]:
        with opened(browser, address, width=width) as page:
            shown(page, {"num_blocks": 40_000, "refs": refs, "cached": [[39_500, 500]], "running": [request(*tables)]})
            expect(page.locator(SUMMARY)).to_have_text("38,990 of 40,000 blocks of 16 tokens in use, 10 shared (by up to 2 sequences), 500 free and kept for reuse")
            assert point(page, 15, 3)[0] == "block 15: used by 2 sequences"
            assert point(page, 39_999, 3) == ["block 39999: used by 0 sequences", "kept for reuse"]
            expect(page.locator("#requests .sequence").first).to_contain_text("and 29,926 more")
            assert page.locator("html").evaluate("html => html.scrollWidth <= html.clientWidth"), width


def test_legend_of_a_large_pool(browser, address):
    """With 8,192 small cells, the legend shows each kind as the map draws it."""
    for scheme in ["light", "dark"]:
        with opened(browser, address, color_scheme=scheme) as page:
            refs = [[2, 2], [1, 2], [0, 8188]]
            shown(page, {"num_blocks": 8192, "refs": refs, "cached": [[10, 5]], "running": [request([0, 1, 2], [0, 1, 3])]})
            legend = page.locator("#memory .legend li")
            expect(legend).to_have_text(["free", "free, kept for reuse", re.compile("in use: one colour per request.*, a shade of it per sequence"),
                                         "shared by several sequences: dotted"])
            kinds = {"free": 100, "cached": 10, "held": 2, "shared": 0}
            size = 5
            drawn = {kind: pixels(page.locator(MAP), *cell(page, block, size), size, size) for kind, block in kinds.items()}
            for kind, patch in drawn.items():
                sample = page.locator(f"#memory .legend .{kind} canvas")
                assert patch == pixels(sample, 0, 0, size, size), (scheme, kind)
                width = sample.evaluate("canvas => canvas.width")
                assert width > 3 * size, "a patch of cells"
            assert BLACK in drawn["shared"] and BLACK not in drawn["held"]
            assert len({tuple(patch) for patch in drawn.values()}) == 4


def test_idle_looks_idle(browser, address):
    for scheme in ["light", "dark"]:
        with opened(browser, address, color_scheme=scheme) as page:
            shown(page, {"num_blocks": 8192, "refs": [[1, 1], [0, 8191]], "cached": [[10, 4000]], "running": [request([0])]})
            held, = set(pixels(page.locator(MAP), 1, 1))
            shown(page, {"num_blocks": 8192, "refs": [[0, 8192]], "cached": [[10, 4000]]})
            expect(page.locator(SUMMARY)).to_have_text("All free: 0 of 8,192 blocks of 16 tokens in use, 0 shared, 4,000 free and kept for reuse")
            free, cached = [pixels(page.locator(MAP), *cell(page, block, 5))[0] for block in (0, 10)]
            drawn = {colour for colour in palette(page.locator(MAP)) if colour[3] > 0}
            assert drawn == {free, cached} and free != cached, drawn
            # Cached blocks stand out little, and used blocks clearly.
            contrasts = [contrast(free, cached), contrast(cached, held), contrast(free, held)]
            assert contrasts[0] < 1.5 and contrasts[0] * 1.5 < contrasts[1] < contrasts[2], (free, cached, held, contrasts)


def test_related_parts_are_highlighted_together(browser, address):
    with opened(browser, address) as page:
        running = [request([1, 2], id=6), request([1, 3], id=7), request([4], id=8)]
        shown(page, {"num_blocks": 6, "refs": [[0, 1], [2, 1], [1, 3], [0, 1]], "running": running})
        row = lambda id: page.locator(f"[data-request='{id}']")
        block = lambda number: pixels(page.locator(MAP), number * 56 + 8, 45)[0]
        background = lambda locator: locator.evaluate("element => getComputedStyle(element).backgroundColor")
        full = [block(number) for number in range(6)]
        plain = background(row(6))
        # Pointing at a request highlights its blocks.
        row(6).hover(position={"x": 200, "y": 10})
        expect(row(6)).to_have_class("request lit")
        lit = [block(number) for number in range(6)]
        assert [lit[i] == full[i] for i in range(6)] == [False, True, True, False, False, False], (full, lit)
        # Pointing at a block in a table highlights the block and all its owners.
        page.locator("[data-request='7'] code", has_text="1 ×2").hover()
        expect(row(6)).to_have_class("request lit")
        expect(row(7)).to_have_class("request lit")
        lit = [block(number) for number in range(6)]
        assert [lit[i] == full[i] for i in range(6)] == [False, True, False, False, False, False], (full, lit)
        # Pointing at a block of the map highlights its requests, in the map and in the list.
        point(page, 3, 56)
        expect(row(7)).to_have_class("request lit")
        lit = [block(number) for number in range(6)]
        assert [lit[i] == full[i] for i in range(6)] == [False, True, False, True, False, False], (full, lit)
        point(page, 4, 56)
        expect(row(8)).to_have_class("request lit")
        assert background(row(8)) != plain
        for other in (6, 7):
            expect(row(other)).to_have_class("request")
        # Keyboard focus highlights too, and the highlighting ends with the focus.
        page.mouse.move(0, 0)
        expect(row(8)).to_have_class("request")
        row(7).locator("button").focus()
        expect(row(7)).to_have_class("request lit")
        assert block(3) == full[3] != block(4)
        row(7).locator("button").blur()
        expect(row(7)).to_have_class("request")
        assert [block(number) for number in range(6)] == full


def test_requests_without_blocks_do_not_dim_the_map(browser, address):
    with opened(browser, address) as page:
        waiting = [request([1], id=7, swapped=True), request(id=8)]
        shown(page, {"num_blocks": 4, "refs": [[0, 1], [1, 1], [0, 2]], "running": [request([1])], "waiting": waiting})
        blocks = lambda: [pixels(page.locator(MAP), number * 56 + 8, 45)[0] for number in range(4)]
        full = blocks()
        for id in (7, 8):
            row = page.locator(f"[data-request='{id}']")
            row.hover(position={"x": 200, "y": 10})
            expect(row).to_have_class("request lit")
            assert blocks() == full, id
        page.locator("[data-request='6']").hover(position={"x": 200, "y": 10})
        expect(page.locator("[data-request='6']")).to_have_class("request lit")
        assert [now == before for now, before in zip(blocks(), full)] == [False, True, False, False]


def test_tips_hide_no_blocks(browser, address):
    with opened(browser, address) as page:
        shown(page, {"num_blocks": 8192, "refs": [[1, 1], [0, 8191]], "running": [request([0])]})
        canvas, tip = page.locator(MAP), page.locator("#memory .tip")
        for block in (0, 5000):
            point(page, block, 5)
            map, box = canvas.bounding_box(), tip.bounding_box()
            assert box["y"] + box["height"] <= map["y"] or box["y"] >= map["y"] + map["height"], (block, map, box)


ALL = [test_requests_without_blocks_do_not_dim_the_map, test_tips_hide_no_blocks, test_four_blocks, test_swapped_requests_have_no_blocks_on_the_map, test_forty_thousand_blocks, test_legend_of_a_large_pool,
       test_idle_looks_idle, test_related_parts_are_highlighted_together]
