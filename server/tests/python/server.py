"""`quire serve` as a process, and what can be seen of it from outside."""

import asyncio
import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

# Seconds after which something that must happen is taken for lost.
PATIENCE = 120


@contextmanager
def server(quire, *options):
    """A server on a free port; yields its address. It must end well when it is told to."""
    # Its log is in a file: nobody reads a pipe, and a full one would hold the server up.
    with tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen([quire, "serve", "--port", "0", *options], stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            address = child.stdout.readline().removeprefix("listening on ").strip()
            assert address, read(log)
            yield address
            child.terminate()
            child.communicate(timeout=30)
            assert child.returncode == 0, read(log)
        finally:
            child.kill()


def read(log):
    log.seek(0)
    return log.read()


def get(address, path):
    with urllib.request.urlopen(address + path) as response:
        return response.read().decode()


def post(address, path, body):
    """The answer to JSON, by way of no client that is under test."""
    request = urllib.request.Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def metric(address, name):
    lines = get(address, "/metrics").splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))


def wait_until(happened):
    """Asks until the answer is yes."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, "it does not happen"


def wait_until_ready(address):
    def ready():
        try:
            get(address, "/ready")
            return True
        except urllib.error.HTTPError as error:
            assert error.code == 503, error
            return False

    wait_until(ready)


def wait_until_idle(address):
    """Nothing runs, nothing waits and no block is held, in the metrics and in the engine's own state."""
    busy = ["vllm:num_requests_running", "vllm:num_requests_waiting", "quire:kv_blocks_used", "quire:http_requests"]
    wait_until(lambda: all(metric(address, name) == 0 for name in busy))
    state = json.loads(get(address, "/debug/state"))
    assert state["running"] == state["waiting"] == [], state
    assert all(count == 0 for count, _ in state["refs"]), state["refs"]


@contextmanager
def aborts(address, requests=1):
    """So many requests are aborted in here, and nothing is left of them."""
    before = metric(address, "quire:requests_aborted_total")
    yield
    wait_until(lambda: metric(address, "quire:requests_aborted_total") >= before + requests)
    assert metric(address, "quire:requests_aborted_total") == before + requests
    wait_until_idle(address)


async def cancel(task):
    """Cancels a task, which must take it."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def cancel_midway(read):
    """Runs `read` until it sets the event that it is given, as it does once it has read something, and cancels it."""
    begun = asyncio.Event()
    task = asyncio.create_task(read(begun))
    await begun.wait()
    await cancel(task)


def refused(kind, ask):
    """The error with which `ask` fails."""
    try:
        ask()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def run_tests(tests, *arguments):
    """Calls every function in a module's globals whose name begins with `test_`."""
    for name, test in tests.items():
        if name.startswith("test_"):
            test(*arguments)
            print(f"{test.__code__.co_filename.rsplit('/')[-1]}: {name}", flush=True)


def continued(address, texts, **options):
    """How the bundled model goes on after messages with these texts: its template puts each on a line of its own."""
    choice = post(address, "/v1/completions", {"prompt": "\n".join(texts), **options})["choices"][0]
    assert choice["text"]
    return choice["text"]
