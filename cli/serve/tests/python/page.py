"""The page at `/` in headless Chromium: what it shows is what the engine does.

    python page.py <quire> <chromium> <screenshot>
"""

import json
import re
import sys
import threading
import urllib.request
from contextlib import contextmanager
from urllib.error import HTTPError

from playwright.sync_api import expect, sync_playwright

from server import server

# A pool of a size that it can be seen how it fills.
POOL = ["--kv-memory", "16MiB"]
SUMMARY = "#memory .summary"


@contextmanager
def load(address, clients=5):
    """Requests that fork, one after the other from each client, until the end of the block."""
    enough = threading.Event()

    def run(client):
        body = {"prompt": f"One day, {client + 2} friends went to the river. " * 3, "n": client + 1, "max_tokens": 150 + 60 * client,
                "seed": client, "ignore_eos": True}
        request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        while not enough.is_set():
            urllib.request.urlopen(request).read()

    threads = [threading.Thread(target=run, args=[client]) for client in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        enough.set()
        for thread in threads:
            thread.join()


@contextmanager
def opened(browser, address, **options):
    """The page, which must not complain. Whoever expects complaints clears them."""
    page = browser.new_page(viewport={"width": 1200, "height": 1000}, **options)
    page.set_default_timeout(60_000)
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.goto(address)
    yield page
    assert not page.complaints, page.complaints
    page.close()


def wait_until_ready(address):
    while True:
        try:
            return urllib.request.urlopen(f"{address}/ready")
        except HTTPError as error:
            assert error.code == 503, error


def test_live(browser, address, screenshot):
    with opened(browser, address) as page:
        expect(page.locator("#status")).to_have_text("live")
        expect(page.locator("#model")).to_have_text("opt-story-3m")
        expect(page.locator(SUMMARY)).to_have_text(re.compile("^0 of "))
        with load(address):
            expect(page.locator(SUMMARY)).to_have_text(re.compile(r"^[1-9]\d* of .* [1-9]\d* shared, .* reference count [2-9]"))
            expect(page.locator("#requests code.shared").first).to_have_text(re.compile(r"^\d+ ×[2-9]$"))
            expect(page.locator("#requests .summary")).to_have_text(re.compile(r"^[1-9]\d* running, \d+ waiting$"))
            page.fill("#prompt [name=max_tokens]", "400")
            page.check("#prompt [name=ignore_eos]")
            page.click("#prompt [name=run]")
            outputs = page.locator("#prompt pre")
            expect(outputs).to_have_text([re.compile(r"^Once upon a time.{100}", re.S)] * 2)
            expect(page.locator("#plots b").nth(7)).to_have_text(re.compile(r"^\d"))
            page.locator("h1").scroll_into_view_if_needed()
            page.screenshot(path=screenshot)
            expect(page.locator("#prompt [name=run]")).to_be_enabled()
            assert page.locator("#prompt .error").inner_text() == ""
        expect(page.locator(SUMMARY)).to_have_text(re.compile("^0 of .* 0 shared"))
        expect(page.locator("#requests .rows")).to_be_empty()


def test_prompt_box(browser, address):
    with opened(browser, address) as page:
        foreign = "<img src=x onerror=alert(1)> once"
        page.fill("#prompt textarea", foreign)
        page.fill("#prompt [name=max_tokens]", "1")
        page.click("#prompt [name=run]")
        expect(page.locator("#prompt pre").first).to_contain_text(foreign)
        expect(page.locator("#prompt img")).to_have_count(0)
        # Stopped, or refused: the box says so, and can be used again.
        page.fill("#prompt [name=max_tokens]", "450")
        page.check("#prompt [name=ignore_eos]")
        page.click("#prompt [name=run]")
        page.click("#prompt [name=stop]")
        expect(page.locator("#prompt [name=run]")).to_be_enabled()
        expect(page.locator("#prompt .error")).to_be_empty()
        page.fill("#prompt [name=max_tokens]", "100000")
        page.click("#prompt [name=run]")
        expect(page.locator("#prompt .error")).to_contain_text("100000")
        # The browser notes the status, too.
        assert len(page.complaints) == 1 and "400" in page.complaints[0], page.complaints
        page.complaints.clear()


def shown(page, state):
    """Has the page show this state."""
    state = {
        "time": 1, "block_size": 16, "cached": [], "waiting": [], "running": [],
        "rates": {"steps": 0, "computed_tokens": 0, "generated_tokens": 0, "requests": 0},
        "totals": {"steps": 0, "computed_tokens": 0, "generated_tokens": 0, "preemptions": 0, "copied_blocks": 0},
        **state,
    }
    page.route("**/debug/state", lambda route: route.fulfill(json=state))
    expect(page.locator(SUMMARY)).to_contain_text(f"of {state['num_blocks']} blocks")


def hover(page, block, size):
    """What is said of a block whose cell is so large."""
    canvas = page.locator("#memory canvas")
    columns = int(canvas.bounding_box()["width"] // size)
    canvas.hover(position={"x": (block % columns + 0.5) * size, "y": (block // columns + 0.5) * size})
    return page.locator("#memory .tip").inner_text().split("\n")


def pixel(page, x, y):
    return tuple(page.locator("#memory canvas").evaluate(
        "(canvas, [x, y]) => [...canvas.getContext('2d').getImageData(x, y, 1, 1).data]", [x, y]))


def request(*tables):
    sequences = [{"index": i, "tokens": 20, "computed": 20, "table": table} for i, table in enumerate(tables)]
    return {"id": 6, "prompt_tokens": 16, "age": 0.5, "sequences": sequences}


def test_four_blocks(browser, address):
    with opened(browser, address) as page:
        shown(page, {"num_blocks": 4, "refs": [[0, 1], [2, 1], [1, 1], [0, 1]], "cached": [[3, 1]], "running": [request([1, 2], [1])]})
        expect(page.locator(SUMMARY)).to_contain_text("2 of 4 blocks of 16 tokens used, 1 shared, 1 cached; highest reference count 2")
        size = 56
        assert hover(page, 0, size) == ["block 0", "0 references"]
        assert hover(page, 1, size) == ["block 1", "2 references", "request 6, sequence 0", "request 6, sequence 1"]
        assert hover(page, 2, size) == ["block 2", "1 reference", "request 6, sequence 0"]
        assert hover(page, 3, size) == ["block 3", "0 references", "cached for a prefix"]
        # Free; shared, with two colours; held by the first; cached.
        free, left, right, held, cached = [pixel(page, *at) for at in [(10, 40), (66, 40), (100, 40), (122, 40), (178, 50)]]
        assert left == held and len({free, left, right, cached}) == 4, (free, left, right, held, cached)
        page.mouse.move(0, 0)
        expect(page.locator("#memory .tip")).to_be_hidden()
        expect(page.locator("#requests code")).to_have_text(["1 ×2", "2", "1 ×2"])


def test_forty_thousand_blocks(browser, address):
    tables = [list(range(10, 30_000)), [*range(10, 20), *range(30_000, 39_000)]]
    refs = [[0, 10], [2, 10], [1, 38_980], [0, 1000]]
    for width in [1200, 400]:
        with opened(browser, address) as page:
            page.set_viewport_size({"width": width, "height": 1000})
            shown(page, {"num_blocks": 40_000, "refs": refs, "cached": [[39_500, 500]], "running": [request(*tables)]})
            expect(page.locator(SUMMARY)).to_contain_text("38990 of 40000 blocks of 16 tokens used, 10 shared, 500 cached")
            assert hover(page, 15, 3)[:2] == ["block 15", "2 references"]
            assert hover(page, 39_999, 3) == ["block 39999", "0 references", "cached for a prefix"]
            expect(page.locator("#requests .sequence").first).to_contain_text("and 29926 more")
            assert page.locator("html").evaluate("html => html.scrollWidth <= html.clientWidth"), width


def test_hidden_page_asks_nothing(browser, address):
    with opened(browser, address) as page:
        expect(page.locator("#status")).to_have_text("live")
        page.clock.install()
        show = "(html, state) => { Object.defineProperty(document, 'visibilityState', { value: state, configurable: true });" \
               "document.dispatchEvent(new Event('visibilitychange')) }"
        page.locator("html").evaluate(show, "hidden")
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.clock.run_for(60_000)
        # One look may have been under way.
        assert len(asked) <= 2, asked
        with page.expect_request("**/debug/state"):
            page.locator("html").evaluate(show, "visible")


def test_key(browser, address):
    with opened(browser, address) as page:
        form = page.locator("#key")
        for key in ["wrong", "right"]:
            expect(form).to_be_visible()
            page.fill("#key input", key)
            page.click("#key button")
        expect(page.locator("#status")).to_have_text("live")
        expect(form).to_be_hidden()
        assert page.complaints and all("401" in complaint for complaint in page.complaints), page.complaints
        page.complaints.clear()


def main():
    quire, chromium, screenshot = sys.argv[1:]
    # In a container Chromium can have no sandbox of its own; it sees nothing here but this server.
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser:
        expect.set_options(timeout=60_000)
        with server(quire, *POOL) as address:
            wait_until_ready(address)
            test_live(browser, address, screenshot)
            test_prompt_box(browser, address)
            test_four_blocks(browser, address)
            test_forty_thousand_blocks(browser, address)
            test_hidden_page_asks_nothing(browser, address)
        with server(quire, "--api-key", "right") as address:
            wait_until_ready(address)
            test_key(browser, address)
    print("the page: all is well")


main()
