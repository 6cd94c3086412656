"""The page at `/` in headless Chromium: it must show the engine's actual state.

    python page.py <quire> <chromium> <screenshot>
"""

import json
import re
import sys
from urllib.error import HTTPError

from playwright.sync_api import expect, sync_playwright

import colours
import page_map
import page_phone
from browser import SUMMARY, ask, asked, load, opened, pixels, request, shown, wait_until_ready
from server import server

# The pool is small enough that a few requests visibly fill it.
POOL = ["--kv-memory", "16MiB"]
# Requests take seconds on the emulator, which leaves time to cancel them. The CPU would finish before a click.
SLOW = [*POOL, "--device", "emulator"]
LONG = {"prompt": ["One day", "Once upon a time"], "n": 2, "max_tokens": 150, "ignore_eos": True}


def test_live(browser, address, screenshot):
    with opened(browser, address) as page:
        expect(page.locator("#status")).to_have_text("live")
        expect(page.locator("#model")).to_have_text("opt-story-3m")
        expect(page.locator(SUMMARY)).to_have_text(re.compile("^All free: 0 of "))
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
            expect(page.locator("#finished tbody tr").first).to_contain_text("cut off")
            page.locator("h1").scroll_into_view_if_needed()
            page.screenshot(path=screenshot)
            expect(page.locator("#prompt [name=run]")).to_be_enabled()
            assert page.locator("#prompt .error").inner_text() == ""
        expect(page.locator(SUMMARY)).to_have_text(re.compile("^All free: 0 of .* 0 shared"))
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
        # After a stop or a refusal, the form shows it and is usable again.
        page.fill("#prompt [name=max_tokens]", "450")
        page.check("#prompt [name=ignore_eos]")
        page.click("#prompt [name=run]")
        page.click("#prompt [name=stop]")
        expect(page.locator("#prompt [name=run]")).to_be_enabled()
        expect(page.locator("#prompt .error")).to_be_empty()
        expect(page.locator("#prompt .note")).to_have_text(["stopped"] * 2)
        # The field allows the whole context, which leaves no space for the prompt. The page shows an error and no outputs.
        expect(page.locator("#prompt [name=max_tokens]")).to_have_attribute("max", "512")
        page.fill("#prompt [name=max_tokens]", "512")
        page.click("#prompt [name=run]")
        expect(page.locator("#prompt .error")).to_contain_text("512")
        expect(page.locator("#prompt .output")).to_have_count(0)
        # The browser logs the status too.
        assert len(page.complaints) == 1 and "400" in page.complaints[0], page.complaints
        page.complaints.clear()


def test_the_prompt_box_follows_the_context(browser, address):
    with opened(browser, address) as page:
        tokens = page.locator("#prompt [name=max_tokens]")
        expect(tokens).to_have_value("200")
        engine = {"device": "a GPU", "notes": [], "dtype": "bf16", "kv_dtype": "bf16", "max_len": 192, "max_num_seqs": 256,
                  "max_batch_tokens": 2048, "max_request_share": 0.5, "swap_blocks": 0, "block_bytes": 1024}
        shown(page, {"num_blocks": 4, "refs": [[0, 4]], "engine": engine})
        expect(tokens).to_have_value("96")
        expect(tokens).to_have_attribute("max", "192")
        expect(page.locator("#chat [name=max_tokens]")).to_have_attribute("max", "192")
        # A value that the user entered stays.
        tokens.fill("150")
        shown(page, {"num_blocks": 5, "refs": [[0, 5]], "engine": {**engine, "max_len": 160}})
        expect(tokens).to_have_attribute("max", "160")
        expect(tokens).to_have_value("150")
        # Entered text does not look like a placeholder.
        page.click("#chat-tab")
        colours = page.evaluate("""() => ["#chat [name=message]", "#prompt textarea", "#prompt [name=n]"].map((s) => document.querySelector(s)).map((e) =>
            [getComputedStyle(e).color, getComputedStyle(e, "::placeholder").color])""")
        assert len({filled for filled, _ in colours}) == 1 and colours[0][0] != colours[0][1], colours


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
        # A request contains the earlier messages.
        assert [(m["role"], m["content"]) for m in sent[1]["messages"]] == [
            ("user", "Once upon a time"), ("assistant", answer), ("user", "And <b>then</b>?")], sent
        assert sent[1]["stream"] is True
        # A refused message can be sent again.
        page.fill("#chat [name=max_tokens]", "512")
        page.fill("#chat textarea", "Too much")
        page.click("#chat [name=run]")
        expect(page.locator("#chat .error")).to_contain_text("512")
        expect(page.locator("#chat textarea")).to_have_value("Too much")
        expect(page.locator("#chat .user")).to_have_count(2)
        page.click("#chat [name=clear]")
        expect(page.locator("#chat .messages")).to_be_empty()
        assert len(page.complaints) == 1 and "400" in page.complaints[0], page.complaints
        page.complaints.clear()
        # A model without a template cannot chat, and the page explains why.
        model = {"version": "1", "model": "a-model", "uptime": 1, "chat": False, "limits": {}}
        shown(page, {"num_blocks": 4, "refs": [[0, 4]], "server": model})
        expect(page.locator("#chat .reason")).to_contain_text("no chat template")
        expect(page.locator("#chat textarea")).to_be_disabled()
        expect(page.locator("#chat [name=run]")).to_be_disabled()
        page.press("#chat-tab", "ArrowLeft")
        expect(page.locator("#prompt textarea")).to_be_visible()


def test_cancel(browser, address):
    with opened(browser, address) as page:
        expect(page.locator("#counts")).to_contain_text("Since the server started")
        before = int(re.search(r"(\d+) cancelled", page.locator("#counts").inner_text())[1])
        with asked(address, LONG) as answers:
            expect(page.locator("#requests .request")).to_have_count(2)
            row = page.locator(f"[data-request='{page.locator('#requests .request').first.get_attribute('data-request')}']")
            row.locator("button").click()
            # The request ends at once. Its row stays until the pointer leaves it.
            expect(row).to_contain_text("has ended")
            expect(row.locator("button")).to_be_disabled()
            page.mouse.move(0, 0)
            expect(row).to_have_count(0)
        choices = sorted((c["index"], c["finish_reason"], len(c["text"]) > 0) for c in answers[0]["choices"])
        assert [c[0] for c in choices] == [0, 1, 2, 3], choices
        assert [c[1] for c in choices] == ["abort", "abort", "length", "length"], choices
        expect(page.locator("#finished tbody tr").nth(0)).to_contain_text("cut off")
        expect(page.locator("#finished tbody tr").nth(1)).to_contain_text("cancelled")
        expect(page.locator("#counts")).to_contain_text(f"{before + 1} cancelled")
        # The page's own request shows that it was cancelled.
        page.fill("#prompt [name=max_tokens]", "450")
        page.check("#prompt [name=ignore_eos]")
        page.click("#prompt [name=run]")
        page.locator("#requests button").first.click()
        expect(page.locator("#prompt .note")).to_have_text(["cancelled"] * 2)


def test_every_request_can_be_cancelled(browser, address):
    with opened(browser, address) as page:
        rows, tables, notes = page.locator("#requests .request"), page.locator("#requests .sequence"), page.locator("#requests .tables .note")
        cancel = page.locator("#requests button:enabled")
        # A request with many sequences shows the tables of a few.
        shown(page, {"num_blocks": 101, "refs": [[1, 100], [0, 1]], "running": [request(*([block] for block in range(100)))]})
        expect(tables).to_have_count(4)
        expect(notes).to_have_text(["and 96 more sequences"])
        # Each of many requests has a row and a button.
        pool = {"num_blocks": 102, "refs": [[1, 70], [0, 32]]}
        shown(page, {**pool, "running": [request([block], id=block) for block in range(70)], "waiting": [request(id=99)]})
        expect(rows).to_have_count(71)
        expect(cancel).to_have_count(71)
        expect(tables).to_have_count(48)
        expect(notes).to_have_text(["1 sequence"] * 22)
        # With even more requests the page stays fast, and running requests do not hide waiting ones.
        pool = {"num_blocks": 1000, "refs": [[1, 900], [0, 100]]}
        running = [request([block], id=block) for block in range(900)]
        shown(page, {**pool, "running": running, "waiting": [request([], id=1000 + i) for i in range(500)]})
        expect(rows).to_have_count(200)
        expect(page.locator("[data-request='1000'] button")).to_be_enabled()
        expect(page.locator("#requests .rows")).to_contain_text("and 800 more running, 400 more waiting")
        shown(page, {"num_blocks": 4, "refs": [[0, 4]]})
        expect(rows).to_have_count(0)


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


def test_groups_of_layers_share_pages(browser, address):
    with opened(browser, address) as page:
        group = {"layers": 10, "heads": 16, "head_dim": 128, "window": None, "blocks_per_page": 26}
        groups = [{**group, "layers": 52, "window": 1024, "blocks_per_page": 5}, group]
        engine = {"device": "CPU", "notes": [], "dtype": "bf16", "kv_dtype": "f32", "max_len": 512, "max_num_seqs": 256, "groups": groups,
                  "max_batch_tokens": 2048, "max_request_share": 0.5, "swap_blocks": 2, "block_bytes": 1024}
        shown(page, {"num_blocks": 4, "refs": [[1, 1], [0, 3]], "running": [request([0])], "engine": engine})
        expect(page.locator(SUMMARY)).to_contain_text("1 of 4 pages with blocks of 16 tokens in use")
        expect(page.locator("#used .note")).to_have_text("1.0 KiB of 4.0 KiB, in 1 page")
        expect(page.locator("dl")).to_contain_text("4 pages, with blocks of 16 tokens, in f32")
        expect(page.locator("dl")).to_contain_text("16 heads of 128, the last 1,024 tokens; 5 blocks in a page")


def history(seconds, value=100.0):
    """Returns samples of the last `seconds` seconds, at 1000 seconds after the start."""
    fields = ["time", "generated_tokens", "computed_tokens", "requests", "running", "waiting", "kv_used", "first_token_p95", "per_token_p95"]
    samples = [[1000 - seconds + 1 + i, value, value, 1.0, 2, 3, 0.5, None, 0.02] for i in range(seconds)]
    return {"interval": 1, "kept": 600, "fields": fields, "samples": samples}


def test_history_is_there_at_once(browser, address):
    for seconds, label in [(600, "10 min ago"), (200, "3.3 min ago"), (3, "2 s ago")]:
        with opened(browser, "about:blank") as page:
            asked = []
            page.route("**/debug/history*", lambda route: (asked.append(route.request.url), route.fulfill(json=history(seconds))))
            page.goto(address)
            model = {"version": "1", "model": "a-model", "uptime": 1000.5, "chat": False, "limits": {}}
            asked.clear()
            latency = {"requests": 1, "first_token_p95": None, "per_token_p95": 0.02, "whole_p95": None}
            shown(page, {"num_blocks": 4, "refs": [[1, 2], [0, 2]], "server": model, "latency": latency})
            plot = page.locator("#plots figure").first
            expect(plot.locator(".then")).to_have_text(label)
            expect(plot.locator(".now")).to_have_text("now")
            expect(plot.locator(".top")).to_have_text("100")
            expect(plot.locator("b")).to_have_text("100")
            expect(page.locator("#plots figure").nth(3).locator("b")).to_have_text("50 %")
            expect(page.locator("#plots figure").nth(6).locator("b")).to_have_text("–")
            expect(page.locator("#plots figure").nth(7).locator("b")).to_have_text("20 ms")
            # The tiles show the same figures.
            expect(page.locator("#speed b")).to_have_text("100")
            expect(page.locator("#used b")).to_have_text("50 %")
            # The curve is at the top of its plot and takes the full width.
            canvas = plot.locator("canvas")
            width = canvas.evaluate("canvas => canvas.width")
            strip = pixels(canvas, 0, 0, width, 8)
            covered = [x for x in range(2, width - 2) if len(set(strip[x::width])) > 2]
            assert len(covered) / (width - 4) > 0.95 and covered[-1] == width - 3, (seconds, width, covered)
            # Pointing at the curve shows values and times.
            canvas.hover(position={"x": width - 1, "y": 20})
            expect(plot.locator(".now")).to_have_text(re.compile("^[0-9] s ago$"))


def test_plots_do_not_smear(browser, address):
    """A value that alternates every second is drawn as its mean if the plot has fewer points than seconds."""
    with opened(browser, "about:blank") as page:
        jumping = history(600)
        for i, sample in enumerate(jumping["samples"]):
            sample[1] = 200.0 * (i % 2)
        page.route("**/debug/history*", lambda route: route.fulfill(json=jumping))
        page.goto(address)
        model = {"version": "1", "model": "a-model", "uptime": 1000.5, "chat": False, "limits": {}}
        shown(page, {"num_blocks": 4, "refs": [[0, 4]], "server": model})
        plot = page.locator("#plots figure").first
        expect(plot.locator("canvas")).to_have_attribute("aria-label", re.compile("at most 200 since 10 min ago"))
        canvas = plot.locator("canvas")
        width = canvas.evaluate("canvas => canvas.width")
        # The means are about 100, and the axis may end at 100 or 200. The curve must not go from top to bottom every second.
        inked = [sum(alpha > 0 for *_, alpha in pixels(canvas, x, 0, 1, 56)) for x in range(4, width - 4)]
        assert sum(inked) / len(inked) < 20, inked


def test_history_continues(browser, address):
    """Each sample is requested once. After a restart of the server the history begins again."""
    with opened(browser, "about:blank") as page:
        asked = []
        page.on("request", lambda request: asked.append(request.url.split("after=")[1]) if "after=" in request.url else None)
        page.goto(address)
        expect(page.locator("#plots .then").first).to_have_text(re.compile(" ago$"))
        with page.expect_request(lambda request: "after=" in request.url and "after=0" not in request.url):
            pass
        assert asked[0] == "0" and len(asked) == len(set(asked)), asked
        model = {"version": "1", "model": "a-model", "uptime": 0.5, "chat": False, "limits": {}}
        asked.clear()
        shown(page, {"num_blocks": 4, "refs": [[0, 4]], "server": model})
        expect(page.locator("#speed b")).to_have_text("0")


def test_facts_and_links(browser, address):
    with opened(browser, address) as page:
        expect(page.locator("#facts")).to_have_text(re.compile(r"^\d.* · up (\d+ min ?)?(\d+ s)? · CPU · weights f16 · context 512$"))
        facts = dict(zip(page.locator("dt").all_inner_texts(), page.locator("dd").all_inner_texts()))
        assert facts["context length"] == "512 tokens" and facts["most waiting requests"] == "4,096", facts
        assert facts["KV memory"] == "113 blocks of 16 tokens in f32, 16 MiB", facts
        for link in page.locator("header a").all():
            assert page.request.get(address + link.get_attribute("href")).ok
        icon = page.request.get(address + page.locator("link[rel=icon]").get_attribute("href"))
        assert icon.ok and icon.headers["content-type"] == "image/svg+xml" and icon.text().startswith("<svg")
        # An older page shows unknown limits of a newer server by their names.
        shown(page, {"num_blocks": 4, "refs": [[0, 4]]})
        expect(page.locator("dl")).to_contain_text("unheard_of3")
        expect(page.locator("#latency .note")).to_have_text("no request ended in the last minute")
        # Some of the waiting requests have been started.
        fresh = [{"index": 0, "tokens": 16, "computed": 0, "table": []}]
        waiting = [request([1], id=1, age=9.5, swapped=True), request(id=2, age=2.5, begun=False, sequences=fresh),
                   request(id=3, age=0.5, begun=False, sequences=fresh),
                   request([], id=4, age=7.5)]
        shown(page, {"num_blocks": 4, "refs": [[0, 4]], "waiting": waiting})
        words = "^4 requests waiting.*0 running; 2 not started, the oldest arrived 2.5 s ago; 1 swapped out; 1 preempted"
        expect(page.locator("#queue")).to_have_text(re.compile(words, re.S))
        expect(page.locator("#latency .note")).to_have_text("no request ended in the last minute; 4 are in progress")


def test_invalid_requests_are_listed_with_their_reason(browser, address):
    with opened(browser, address) as page:
        expect(page.locator("#refused .summary")).to_have_text("None yet.")
        reasons = []
        for body in [{"prompt": "Once", "n": 0}, {"prompt": "Once", "best": 3}, {"prompt": "Once", "best": 3}]:
            try:
                ask(address, body)
            except HTTPError as error:
                reasons.append(json.load(error)["error"]["message"])
        assert len(reasons) == 3, reasons
        expect(page.locator("#refused .why")).to_have_text(reasons[1::-1])
        where = page.locator("#refused .note")
        expect(where).to_have_text([re.compile(r" /v1/completions, status 400, 2 times$"), re.compile(r" /v1/completions, status 400$")])
        # What a client sent is text.
        refusal = {"at": 1764000000.5, "times": 1, "status": 400, "endpoint": "/v1/completions", "reason": "<img src=x> is no n"}
        shown(page, {"num_blocks": 4, "refs": [[0, 4]], "refused": [refusal]})
        expect(page.locator("#refused .why")).to_have_text("<img src=x> is no n")


def test_the_first_screen_is_full(browser, address):
    """On a wide screen no column is empty, whether or not requests run."""
    width, height = 1440, 900
    with opened(browser, address, width, height) as page:
        pool = {"num_blocks": 112, "refs": [[0, 112]]}
        running = [request([8 * block + i for i in range(8)], id=block) for block in range(6)]
        for state in [pool, {"num_blocks": 113, "refs": [[1, 48], [0, 65]], "running": running}]:
            shown(page, state)
            boxes = lambda selector: [part.bounding_box() for part in page.locator(selector).all()]
            for column in ["#side > section", "#engine > section"]:
                assert max(box["y"] + box["height"] for box in boxes(column)) > 0.95 * height, column
            plots = boxes("#plots figure")
            right = max(box["x"] + box["width"] for box in boxes("#engine"))
            rows = {box["y"]: 0 for box in plots}
            for box in plots:
                rows[box["y"]] = max(rows[box["y"]], box["x"] + box["width"])
            assert all(abs(end - right) < 2 for end in rows.values()), (rows, right)


def test_labels_are_words(browser, address):
    with opened(browser, address) as page:
        expect(page.locator("#latency p").first).to_have_text(re.compile("time to first token, p95, last minute$"))
        labels = page.locator("#plots figcaption span").all_inner_texts()
        assert labels[0] == "tokens generated per second" and "time to first token, p95, last minute" in labels, labels
        expect(page.locator("#finished th")).to_have_text(
            ["finished at", "request", "prompt tokens", "output tokens", "time to first token", "total time", "ended"])
        expect(page.locator("#server dt", has_text="most tokens in a step")).to_have_count(1)


def test_a_hidden_page_does_not_poll(browser, address):
    with opened(browser, address) as page:
        expect(page.locator("#status")).to_have_text("live")
        page.clock.install()
        show = "(html, state) => { Object.defineProperty(document, 'visibilityState', { value: state, configurable: true });" \
               "document.dispatchEvent(new Event('visibilitychange')) }"
        page.locator("html").evaluate(show, "hidden")
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.clock.run_for(60_000)
        # One poll may have been in progress.
        assert len(asked) <= 2, asked
        # The title shows no outdated count.
        expect(page).to_have_title("Quire")
        with page.expect_request("**/debug/state"):
            page.locator("html").evaluate(show, "visible")


def test_an_unreachable_server(browser, quire):
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
        form, status, refusal = page.locator("#key"), page.locator("#status"), page.locator("#key .error")
        dot = lambda: status.evaluate("status => getComputedStyle(status, '::before').backgroundColor")
        expect(form).to_be_visible()
        expect(status).to_have_text("waiting for the API key")
        expect(refusal).to_be_empty()
        before = dot()
        page.fill("#key input", "wrong")
        page.click("#key button")
        expect(refusal).to_have_text("That key was refused.")
        expect(form).to_be_visible()
        assert dot() == before
        page.fill("#key input", "right")
        page.click("#key button")
        expect(status).to_have_text("live")
        expect(form).to_be_hidden()
        assert dot() != before, "the status dot is green only for a live server"
        # The key is kept while the tab is open.
        page.reload()
        expect(status).to_have_text("live")
        expect(form).to_be_hidden()
        assert page.complaints and all("401" in complaint for complaint in page.complaints), page.complaints
        page.complaints.clear()
        with asked(address, LONG, key="right") as answers:
            page.locator("#requests button").first.click()
            expect(page.locator("#requests .request").first).to_contain_text("has ended")
        assert [c["finish_reason"] for c in answers[0]["choices"]].count("abort") == 2


def main():
    quire, chromium, screenshot = sys.argv[1:]
    # Chromium's sandbox does not work in a container. Here the browser only visits this server.
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser:
        expect.set_options(timeout=60_000)
        with server(quire, *POOL) as address:
            wait_until_ready(address)
            test_invalid_requests_are_listed_with_their_reason(browser, address)
            test_live(browser, address, screenshot)
            for test in [test_prompt_box, test_the_prompt_box_follows_the_context, test_chat, test_every_request_can_be_cancelled,
                         test_rows_stay_under_the_pointer, test_groups_of_layers_share_pages, test_history_is_there_at_once, test_plots_do_not_smear, test_history_continues, test_facts_and_links, test_the_first_screen_is_full, test_labels_are_words, test_a_hidden_page_does_not_poll,
                         *page_map.ALL, *page_phone.ALL, *colours.ALL]:
                test(browser, address)
        with server(quire, *SLOW) as address:
            wait_until_ready(address)
            test_cancel(browser, address)
        test_an_unreachable_server(browser, quire)
        with server(quire, *SLOW, "--api-key", "right") as address:
            wait_until_ready(address)
            test_key(browser, address)
    print("the page: all tests passed")


main()
