"""Runs `quire serve` as a process and observes it from outside."""

import asyncio
import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

# Seconds to wait for an expected event.
PATIENCE = 120


@contextmanager
def server(quire, *options):
    """Runs a server on a free port and yields its address. It must exit cleanly when it is told to stop."""
    # The log is a file, because a full pipe that is not read would block the server.
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
    """Returns the answer to a JSON body, without using a client under test."""
    request = urllib.request.Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def metric(address, name):
    lines = get(address, "/metrics").splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))


def wait_until(happened):
    """Polls until `happened` returns true."""
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
    """Waits until no request runs or waits and no block is used, in the metrics and in the engine's state."""
    busy = ["vllm:num_requests_running", "vllm:num_requests_waiting", "quire:kv_blocks_used", "quire:http_requests"]
    wait_until(lambda: all(metric(address, name) == 0 for name in busy))
    state = json.loads(get(address, "/debug/state"))
    assert state["running"] == state["waiting"] == [], state
    assert all(count == 0 for count, _ in state["refs"]), state["refs"]


@contextmanager
def aborts(address, requests=1):
    """Checks that the block aborts exactly `requests` requests and that they leave no blocks in use."""
    before = metric(address, "quire:requests_aborted_total")
    yield
    wait_until(lambda: metric(address, "quire:requests_aborted_total") >= before + requests)
    assert metric(address, "quire:requests_aborted_total") == before + requests
    wait_until_idle(address)


async def cancel(task):
    """Cancels a task, which must end as cancelled."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def cancel_midway(read):
    """Runs `read` until it sets its event, which it does after the first chunk, and then cancels it."""
    begun = asyncio.Event()
    task = asyncio.create_task(read(begun))
    await begun.wait()
    await cancel(task)


def refused(kind, ask):
    """Returns the error of type `kind` that `ask` raises."""
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
    """Returns the bundled model's continuation of a conversation with these texts.

    The last text is a user's, and before it assistant and user take turns. The model's template puts each text on a line of its
    own, except that an assistant's text follows the user's directly.
    """
    prompt = texts[-1]
    for from_end, text in enumerate(reversed(texts[:-1])):
        # The text after this one is a user's if the distance to the end is even.
        prompt = text + ("\n" if from_end % 2 == 0 else "") + prompt
    choice = post(address, "/v1/completions", {"prompt": prompt, **options})["choices"][0]
    assert choice["text"]
    return choice["text"]
