"""The page at `/` in headless Chromium: what it shows is what the engine does.

    python page.py <quire> <chromium> <screenshot>
"""

import re
import sys

from playwright.sync_api import expect, sync_playwright

import colours
import page_map
import page_phone
from browser import SUMMARY, ask, asked, load, opened, pixels, request, shown, wait_until_ready
from server import server

# A pool of a size that it can be seen how it fills.
POOL = ["--kv-memory", "16MiB"]
LONG = {"prompt": ["One day", "Once upon a time"], "n": 2, "max_tokens": 450, "ignore_eos": True}


def test_live(browser, address, screenshot):
    with opened(browser, address) as page:
        expect(page.locator("#status")).to_have_text("live")
        expect(page.locator("#model")).to_have_text("opt-story-3m")
        expect(page.locator(SUMMARY)).to_have_text(re.compile("^0 of "))
        expect(page).to_have_title("idle - Quire")
        with load(address):
            expect(page).to_have_title(re.compile(r"^[1-9]\d* running - Quire$"))
            expect(page.locator(SUMMARY)).to_have_text(re.compile(r"^[1-9]\d* of .* [1-9]\d* shared \(by up to [2-9]"))
            expect(page.locator("#requests code.shared").first).to_have_text(re.compile(r"^\d+ ×[2-9]$"))
            expect(page.locator("#requests .summary")).to_have_text(re.compile(r"^[1-9]\d* running, \d+ waiting$"))
            page.fill("#prompt [name=max_tokens]", "400")
            page.check("#prompt [name=ignore_eos]")
            page.click("#prompt [name=run]")
            outputs = page.locator("#prompt pre")
            expect(outputs).to_have_text([re.compile(r"^Once upon a time.{100}", re.S)] * 2)
            expect(page.locator("#plots b").nth(7)).to_have_text(re.compile(r"^\d"))
            expect(page.locator("#speed b")).to_have_text(re.compile(r"^[1-9]"))
            expect(page.locator("#used b")).to_have_text(re.compile(r"^[1-9].* %$"))
            expect(page.locator("#latency b")).to_have_text(re.compile(r"^[1-9].* m?s$"))
            expect(page.locator("#finished tbody tr").first).to_contain_text("length")
            page.locator("h1").scroll_into_view_if_needed()
            page.screenshot(path=screenshot)
            expect(page.locator("#prompt [name=run]")).to_be_enabled()
            assert page.locator("#prompt .error").inner_text() == ""
        expect(page.locator(SUMMARY)).to_have_text(re.compile("^0 of .* 0 shared"))
        expect(page.locator("#requests .rows")).to_be_empty()
        expect(page).to_have_title("idle - Quire")


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
        expect(page.locator("#prompt .note")).to_have_text(["stopped"] * 2)
        page.fill("#prompt [name=max_tokens]", "100000")
        page.click("#prompt [name=run]")
        expect(page.locator("#prompt .error")).to_contain_text("100000")
        # The browser notes the status, too.
        assert len(page.complaints) == 1 and "400" in page.complaints[0], page.complaints
        page.complaints.clear()


def test_chat(browser, address):
    with opened(browser, address) as page:
        page.click("#chat-tab")
        expect(page.locator("#prompt")).to_be_hidden()
        page.fill("#chat [name=max_tokens]", "20")
        sent = []
        page.on("request", lambda request: sent.append(request.post_data_json) if "chat" in request.url and request.method == "POST" else None)
        page.fill("#chat textarea", "Once upon a time")
        page.press("#chat textarea", "Enter")
        expect(page.locator("#chat .assistant")).to_have_text(re.compile(".{20}", re.S))
        expect(page.locator("#chat [name=run]")).to_be_enabled()
        expect(page.locator("#chat textarea")).to_have_value("")
        answer = page.locator("#chat .assistant").text_content()
        page.fill("#chat textarea", "And <b>then</b>?")
        page.click("#chat [name=run]")
        expect(page.locator("#chat .assistant")).to_have_count(2)
        expect(page.locator("#chat [name=run]")).to_be_enabled()
        expect(page.locator("#chat .user")).to_have_text(["Once upon a time", "And <b>then</b>?"])
        # What was said before goes along.
        assert [(m["role"], m["content"]) for m in sent[1]["messages"]] == [
            ("user", "Once upon a time"), ("assistant", answer), ("user", "And <b>then</b>?")], sent
        assert sent[1]["stream"] is True
        # What is refused can be said again.
        page.fill("#chat [name=max_tokens]", "100000")
        page.fill("#chat textarea", "Too much")
        page.click("#chat [name=run]")
        expect(page.locator("#chat .error")).to_contain_text("100000")
        expect(page.locator("#chat textarea")).to_have_value("Too much")
        expect(page.locator("#chat .user")).to_have_count(2)
        page.click("#chat [name=clear]")
        expect(page.locator("#chat .messages")).to_be_empty()
        assert len(page.complaints) == 1 and "400" in page.complaints[0], page.complaints
        page.complaints.clear()
        # A model without a template cannot chat, and the page says why.
        model = {"version": "1", "model": "a-model", "uptime": 1, "chat": False, "limits": {}}
        shown(page, {"num_blocks": 4, "refs": [[0, 4]], "server": model})
        expect(page.locator("#chat .reason")).to_contain_text("no chat template")
        expect(page.locator("#chat textarea")).to_be_disabled()
        expect(page.locator("#chat [name=run]")).to_be_disabled()
        page.press("#chat-tab", "ArrowLeft")
        expect(page.locator("#prompt textarea")).to_be_visible()


def test_cancel(browser, address):
    with opened(browser, address) as page:
        expect(page.locator("#counts")).to_contain_text("Since the start")
        before = int(re.search(r"(\d+) cancelled", page.locator("#counts").inner_text())[1])
        with asked(address, LONG) as answers:
            expect(page.locator("#requests .request")).to_have_count(2)
            row = page.locator(f"[data-request='{page.locator('#requests .request').first.get_attribute('data-request')}']")
            row.locator("button").click()
            # It ends at once; under the pointer it stays until that has gone.
            expect(row).to_contain_text("has ended")
            expect(row.locator("button")).to_be_disabled()
            page.mouse.move(0, 0)
            expect(row).to_have_count(0)
        choices = sorted((c["index"], c["finish_reason"], len(c["text"]) > 0) for c in answers[0]["choices"])
        assert [c[0] for c in choices] == [0, 1, 2, 3], choices
        assert [c[1] for c in choices] == ["abort", "abort", "length", "length"], choices
        expect(page.locator("#finished tbody tr").nth(0)).to_contain_text("length")
        expect(page.locator("#finished tbody tr").nth(1)).to_contain_text("cancelled")
        expect(page.locator("#counts")).to_contain_text(f"{before + 1} cancelled")
        # What the page itself asked for says that it was cancelled.
        page.fill("#prompt [name=max_tokens]", "450")
        page.check("#prompt [name=ignore_eos]")
        page.click("#prompt [name=run]")
        page.locator("#requests button").first.click()
        expect(page.locator("#prompt .note")).to_have_text(["cancelled"] * 2)


def test_rows_stay_under_the_pointer(browser, address):
    with opened(browser, address) as page:
        pool = {"num_blocks": 4, "refs": [[1, 3], [0, 1]]}
        shown(page, {**pool, "running": [request([0], id=1), request([1], id=2), request([2], id=3)]})
        button = page.locator("[data-request='3'] button")
        button.hover()
        before = button.bounding_box()
        shown(page, {**pool, "running": [request([2], id=3)]})
        expect(page.locator("[data-request='1']")).to_contain_text("has ended")
        assert button.bounding_box() == before
        page.mouse.move(0, 0)
        expect(page.locator("#requests .request")).to_have_count(1)


def history(seconds, value=100.0):
    """Samples of so many seconds up to now, at 1000 seconds after the start."""
    fields = ["time", "generated_tokens", "computed_tokens", "requests", "running", "waiting", "kv_used", "first_token_p95", "per_token_p95"]
    samples = [[1000 - seconds + 1 + i, value, value, 1.0, 2, 3, 0.5, None, 0.02] for i in range(seconds)]
    return {"interval": 1, "kept": 600, "fields": fields, "samples": samples}


def test_history_is_there_at_once(browser, address):
    for seconds, label in [(600, "10 min ago"), (200, "5 min ago"), (3, "1 min ago")]:
        with opened(browser, "about:blank") as page:
            asked = []
            page.route("**/debug/history*", lambda route: (asked.append(route.request.url), route.fulfill(json=history(seconds))))
            page.goto(address)
            model = {"version": "1", "model": "a-model", "uptime": 1000.5, "chat": False, "limits": {}}
            asked.clear()
            shown(page, {"num_blocks": 4, "refs": [[0, 4]], "server": model})
            plot = page.locator("#plots figure").first
            expect(plot.locator(".then")).to_have_text(label)
            expect(plot.locator(".now")).to_have_text("now")
            expect(plot.locator(".top")).to_have_text("100")
            expect(plot.locator("b")).to_have_text("100")
            expect(page.locator("#plots figure").nth(3).locator("b")).to_have_text("50 %")
            expect(page.locator("#plots figure").nth(6).locator("b")).to_have_text("–")
            expect(page.locator("#plots figure").nth(7).locator("b")).to_have_text("20 ms")
            expect(page.locator("#speed b")).to_have_text("100")
            # The curve, at the top of its plot, covers what time is covered.
            canvas = plot.locator("canvas")
            width = canvas.evaluate("canvas => canvas.width")
            strip = pixels(canvas, 0, 0, width, 8)
            covered = [x for x in range(2, width - 2) if len(set(strip[x::width])) > 2]
            share = {600: 1.0, 200: 2 / 3, 3: 1 / 30}[seconds]
            assert abs(len(covered) / (width - 4) - share) < 0.05 and covered[-1] == width - 3, (seconds, width, covered)
            # Pointing at it tells values and times.
            canvas.hover(position={"x": width - 1, "y": 20})
            expect(plot.locator(".now")).to_have_text(re.compile("^[0-4] s ago$"))


def test_history_goes_on(browser, address):
    """Each sample is asked for once; a server that was started anew begins anew."""
    with opened(browser, "about:blank") as page:
        asked = []
        page.on("request", lambda request: asked.append(request.url.split("after=")[1]) if "after=" in request.url else None)
        page.goto(address)
        expect(page.locator("#plots .then").first).to_have_text(re.compile("min ago$"))
        with page.expect_request(lambda request: "after=" in request.url and "after=0" not in request.url):
            pass
        assert asked[0] == "0" and len(asked) == len(set(asked)), asked
        model = {"version": "1", "model": "a-model", "uptime": 0.5, "chat": False, "limits": {}}
        asked.clear()
        shown(page, {"num_blocks": 4, "refs": [[0, 4]], "server": model})
        expect(page.locator("#speed b")).to_have_text("0")


def test_facts_and_links(browser, address):
    with opened(browser, address) as page:
        expect(page.locator("#facts")).to_have_text(re.compile(r"^\d.* · up \d+ (s|min) · CPU · weights f16 · context 512$"))
        facts = dict(zip(page.locator("dt").all_inner_texts(), page.locator("dd").all_inner_texts()))
        assert facts["context length"] == "512 tokens" and facts["requests waiting at most"] == "1,024", facts
        assert facts["KV memory"] == "113 blocks of 16 tokens in f32, 16 MiB", facts
        for link in page.locator("header a").all():
            assert page.request.get(address + link.get_attribute("href")).ok
        icon = page.request.get(address + page.locator("link[rel=icon]").get_attribute("href"))
        assert icon.ok and icon.headers["content-type"] == "image/svg+xml" and icon.text().startswith("<svg")
        # An older page shows limits of a newer server, if only by their names.
        shown(page, {"num_blocks": 4, "refs": [[0, 4]]})
        expect(page.locator("dl")).to_contain_text("unheard_of3")
        expect(page.locator("#latency .note")).to_have_text("no request ended in the last minute")
        waiting = [request(id=1, age=2.5), request(id=2, age=0.5)]
        shown(page, {"num_blocks": 4, "refs": [[0, 4]], "waiting": waiting})
        expect(page.locator("#queue")).to_have_text(re.compile("^2 waiting.*the oldest came 2.5 s ago; 0 running", re.S))


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
        # And it claims nothing that it does not know any more.
        expect(page).to_have_title("Quire")
        with page.expect_request("**/debug/state"):
            page.locator("html").evaluate(show, "visible")


def test_a_server_that_is_gone(browser, quire):
    with opened(browser, "about:blank") as page:
        with server(quire, *POOL) as address:
            wait_until_ready(address)
            page.goto(address)
            expect(page.locator("#status")).to_have_text("live")
        expect(page.locator("#status")).to_have_text("the server does not answer")
        expect(page).to_have_title("no answer - Quire")
        expect(page.locator("body")).to_have_class("stale")
        page.click("#prompt [name=run]")
        expect(page.locator("#prompt .error")).to_have_text("the server does not answer")
        page.complaints.clear()


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
        with asked(address, LONG, key="right") as answers:
            page.locator("#requests button").first.click()
            expect(page.locator("#requests .request").first).to_contain_text("has ended")
        assert [c["finish_reason"] for c in answers[0]["choices"]].count("abort") == 2


def main():
    quire, chromium, screenshot = sys.argv[1:]
    # In a container Chromium can have no sandbox of its own; it sees nothing here but this server.
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser:
        expect.set_options(timeout=60_000)
        with server(quire, *POOL) as address:
            wait_until_ready(address)
            test_live(browser, address, screenshot)
            for test in [test_prompt_box, test_chat, test_cancel, test_rows_stay_under_the_pointer, test_history_is_there_at_once,
                         test_history_goes_on, test_facts_and_links, test_hidden_page_asks_nothing,
                         *page_map.ALL, *page_phone.ALL, *colours.ALL]:
                test(browser, address)
        test_a_server_that_is_gone(browser, quire)
        with server(quire, "--api-key", "right") as address:
            wait_until_ready(address)
            test_key(browser, address)
    print("the page: all is well")


main()
