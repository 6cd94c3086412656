"""Measures the cost of long prompts for the server: peak memory, memory afterwards, and time.

    python tests/tools/long_prompts.py target/release/quire

Runs on Linux only, since it reads /proc. Needs only Python.
"""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

TEXTS = {"words": "once upon a time " * 230_000, "short words": "x y z " * 650_000, "one word": "a" * 3_900_000}


def mebibytes(pid: int, field: str) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) // 1024


def post(address: str, path: str, text: str) -> None:
    body = json.dumps({"prompt": text}).encode()
    request = urllib.request.Request(address + path, body, {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request).read()
    except urllib.error.HTTPError as error:
        assert error.code == 400, error.read()


def measure(quire: str, path: str, text: str, at_once: int) -> str:
    server = subprocess.Popen([quire, "serve", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    address = server.stdout.readline().split()[-1]
    while True:
        try:
            urllib.request.urlopen(address + "/ready")
            break
        except urllib.error.HTTPError:
            pass
    begin = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(lambda _: post(address, path, text), range(at_once)))
    seconds = time.monotonic() - begin
    peak, left = mebibytes(server.pid, "VmHWM"), mebibytes(server.pid, "VmRSS")
    server.terminate()
    server.wait()
    return f"{peak} MiB | {left} MiB | {seconds:.2f} s"


def main() -> None:
    print("| endpoint | text | at once | peak | afterwards | time |\n| --- | --- | --- | --- | --- | --- |")
    for path in ["/v1/completions", "/tokenize"]:
        for name, text in TEXTS.items():
            for at_once in [1, 8]:
                print(f"| {path} | {name} | {at_once} | {measure(sys.argv[1], path, text, at_once)} |", flush=True)


main()
