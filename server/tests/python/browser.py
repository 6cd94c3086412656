"""Helpers for the page's tests: open the page, put servers under load, and show made-up states."""

import json
import re
import threading
import urllib.request
from contextlib import contextmanager
from urllib.error import HTTPError

from playwright.sync_api import expect

SUMMARY = "#memory .summary"


def ask(address, body, path="/v1/completions", key=None):
    """Returns the answer to a request."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(f"{address}{path}", json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))


@contextmanager
def asked(*arguments, **options):
    """Sends a request in a thread. Yields a list that receives its answer."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(ask(*arguments, **options)))
    thread.start()
    try:
        yield answers
    finally:
        thread.join()


@contextmanager
def load(address, clients=5):
    """Sends requests with several outputs, one after the other from each client, until the block ends."""
    enough = threading.Event()

    def run(client):
        body = {"prompt": f"One day, {client + 2} friends went to the river. " * 3, "n": client + 1, "max_tokens": 150 + 60 * client,
                "seed": client, "ignore_eos": True}
        while not enough.is_set():
            ask(address, body)

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
def opened(browser, address, width=1200, height=1000, **options):
    """Opens the page, which must not log errors. Tests that expect errors clear `complaints`."""
    page = browser.new_page(viewport={"width": width, "height": height}, **options)
    page.set_default_timeout(60_000)
    page.complaints = []
    page.state = None
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


def request(*tables, id=6, **more):
    """Returns a request with these block tables."""
    sequences = [{"index": i, "tokens": 20, "computed": 19, "table": table} for i, table in enumerate(tables)]
    return {"id": id, "prompt_tokens": 16, "max_tokens": 40, "age": 0.5, "begun": True, "swapped": False,
            "sequences": sequences, **more}


def shown(page, state):
    """Makes the page show this state."""
    state = {
        "server": {"version": "9.8.7", "model": "a-model", "uptime": 1, "chat": True, "limits": {"max_queue": 12, "unheard_of": 3}},
        "engine": {"device": "a GPU", "notes": [], "dtype": "bf16", "kv_dtype": "bf16", "max_len": 512, "max_num_seqs": 256,
                   "max_batch_tokens": 2048, "max_request_share": 0.5, "swap_blocks": 0, "block_bytes": 1024},
        "counts": {"finished": 0, "failed": 0, "refused": 0, "invalid": 0, "aborted": 0},
        "latency": {"requests": 0, "first_token_p95": None, "per_token_p95": None, "whole_p95": None},
        "finished": [], "refused": [], "time": 1, "block_size": 16, "cached": [], "swap_used": 0, "swap_cached": 0, "waiting": [], "running": [],
        "totals": {"steps": 0, "computed_tokens": 0, "generated_tokens": 0, "preemptions": 0, "copied_blocks": 0,
                   "offloaded_blocks": 0, "restored_blocks": 0},
        **state,
    }
    # Keeps one route while the page is open. Between two routes the page would see the server's own state, which does
    # not have these requests.
    if page.state is None:
        page.route("**/debug/state", lambda route: route.fulfill(json=page.state))
    page.state = state
    with page.expect_response("**/debug/state"):
        pass
    expect(page.locator(SUMMARY)).to_have_text(re.compile(f"of {state['num_blocks']:,} (blocks|pages)"))


def pixels(locator, x, y, width=1, height=1):
    """Returns the colours (red, green, blue, alpha) in a rectangle of a canvas, in canvas pixels."""
    data = locator.evaluate("(canvas, at) => [...canvas.getContext('2d').getImageData(...at).data]", [x, y, width, height])
    return [tuple(data[i:i + 4]) for i in range(0, len(data), 4)]


def palette(locator):
    """Returns all colours of a canvas."""
    data = locator.evaluate("""canvas => {
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        return [...new Set(new Uint32Array(data.buffer))].flatMap((colour) => [...new Uint8Array(new Uint32Array([colour]).buffer)]);
    }""")
    return {tuple(data[i:i + 4]) for i in range(0, len(data), 4)}


def cell(page, block, size):
    """Returns the position of a block's cell in the map, for cells of this size."""
    columns = page.locator("#memory canvas").first.evaluate("canvas => canvas.clientWidth") // size
    return block % columns * size, block // columns * size


def point(page, block, size):
    """Points at a block of the map. Returns the lines of its tip."""
    x, y = cell(page, block, size)
    page.locator("#memory canvas").first.hover(position={"x": x + size / 2, "y": y + size / 2})
    return page.locator("#memory .tip").inner_text().split("\n")
