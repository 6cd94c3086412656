"""Runs Dynamo's frontend and Quire's workers as processes on this machine, without etcd or NATS. Discovery uses files, requests use
TCP, and events use ZeroMQ."""

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from server import get, wait_until

MODEL = "story"


def free_port():
    """Returns a free port below 32768, since Dynamo reads its system port as a signed 16-bit number."""
    while True:
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", random.randrange(20_000, 32_768)))
                return listener.getsockname()[1]
            except OSError:
                continue


class Process:
    """A process that logs to a file."""

    def __init__(self, name, command, environment):
        self.log = tempfile.NamedTemporaryFile("w+", prefix=f"{name}-", suffix=".log")
        self.child = subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log)

    def check(self):
        assert self.child.poll() is None, self.text()

    def text(self):
        return Path(self.log.name).read_text()

    def kill(self):
        """Kills the process, which cannot deregister first."""
        self.child.kill()
        self.child.wait()


class Worker(Process):
    """A worker of the cluster."""

    def __init__(self, name, command, environment):
        port = free_port()
        super().__init__(name, command, {**environment, "DYN_SYSTEM_PORT": str(port)})
        self.address = f"http://127.0.0.1:{port}"

    def metric(self, name):
        lines = get(self.address, "/metrics").splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))


class Cluster:
    """A frontend with one router mode, and the workers started so far."""

    def __init__(self, binary, model, router):
        self.binary, self.model, self.router = binary, model, router

    def __enter__(self):
        self.stack = ExitStack()
        store = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.environment = {
            **os.environ,
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": store,
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_LOG": "warn",
        }
        self.workers = []
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
        self.frontend = Process("frontend", [*command, "--router-mode", self.router], self.environment)
        self.stack.callback(self.frontend.kill)
        return self

    def __exit__(self, kind, *rest):
        if kind is not None:
            for process in [self.frontend, *self.workers]:
                print("".join(f"    {line}\n" for line in process.text().splitlines()[-30:]), file=sys.stderr)
        self.stack.close()

    def add(self, count):
        """Starts workers, waits until the frontend serves requests with all of them, and returns them."""
        for _ in range(count):
            command = [self.binary, "--model", self.model, "--served-model-name", MODEL, "--device", "cpu", "--threads", "1"]
            worker = Worker("worker", [*command, "--kv-memory", str(24 << 20)], self.environment)
            self.stack.callback(worker.kill)
            self.workers.append(worker)
        alive = sum(worker.child.poll() is None for worker in self.workers)
        wait_until(lambda: self.generators() == alive and self.serves())
        return self.workers[-count:]

    def generators(self):
        """Returns the number of workers that the frontend knows."""
        for process in [self.frontend, *(w for w in self.workers if w.child.returncode is None)]:
            process.check()
        try:
            instances = json.loads(get(self.address, "/health")).get("instances", [])
        except (urllib.error.URLError, ConnectionError):
            return 0
        return sum(instance["endpoint"] == "generate" for instance in instances)

    def serves(self):
        models = json.loads(get(self.address, "/v1/models"))["data"]
        return any(model["id"] == MODEL for model in models)
