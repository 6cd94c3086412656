"""A router in Python, with pyzmq and msgpack: it rebuilds the set of cached blocks from KV events alone.

    python kv_events.py <quire>
"""

import json
import random
import socket
import sys
import threading

import msgpack
import zmq

from server import PATIENCE, get, post, server, wait_until_idle, wait_until_ready

TOPIC = "kv@pod-1@opt-story-3m"
BLOCK = 16
REQUESTS = 120
THREADS = 4
# The cache is too small for all requests, so blocks are evicted.
OPTIONS = ["--kv-memory", "6MiB", "--swap-space", "6MiB"]


class Router:
    """A router's knowledge of the cache, from the batches that it received."""

    def __init__(self):
        # Keyed by medium: "GPU" is the cache, "CPU" is the swap space.
        self.media = {"GPU": {}, "CPU": {}}
        self.next = 0
        self.missed = []
        self.removed = 0

    @property
    def known(self):
        return self.media["GPU"]

    def take(self, number, payload):
        if number < self.next:
            return
        self.missed += range(self.next, number)
        self.next = number + 1
        _, events, rank = msgpack.unpackb(payload)
        assert rank == 0
        for event in events:
            # As maps and as arrays, the fields have the same order.
            kind, *fields = event.values() if isinstance(event, dict) else event
            if kind == "BlockStored":
                hashes, parent, tokens, size, _, medium = fields[:6]
                known = self.media[medium]
                assert size == BLOCK and len(tokens) == size * len(hashes)
                for at, name in enumerate(hashes):
                    assert name not in known, "it is stored twice"
                    known[name] = (parent, tokens[at * size : (at + 1) * size])
                    parent = name
            elif kind == "BlockRemoved":
                hashes, medium = fields[:2]
                self.removed += len(hashes)
                for name in hashes:
                    assert self.media[medium].pop(name, None) or self.missed, "a removed block was not stored"
            else:
                assert kind == "AllBlocksCleared", kind
                for known in self.media.values():
                    known.clear()


def fnv1a(tokens, value=0xCBF29CE484222325):
    """Returns the hash of a prefix, from all its tokens or from the hash of the tokens before."""
    for byte in b"".join(token.to_bytes(4, "little") for token in tokens):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def free_endpoints(count):
    """Returns `count` endpoints with free ports."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"tcp://127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    finally:
        for each in sockets:
            each.close()


def replay(context, endpoint, start):
    """Returns the batches from a number on that the server still has."""
    with context.socket(zmq.DEALER) as client:
        client.rcvtimeo, client.linger = PATIENCE * 1000, 0
        client.connect(endpoint)
        client.send_multipart([b"", start.to_bytes(8, "big")])
        batches = []
        while True:
            empty, number, payload = client.recv_multipart()
            assert empty == b""
            if int.from_bytes(number, "big", signed=True) == -1:
                assert payload == b""
                return batches
            batches.append((int.from_bytes(number, "big"), payload))


def ask(address, draw):
    """Sends a prompt that shares its beginning with many others."""
    begin = [100 + at * draw.randint(1, 2) % 97 for at in range(draw.choice([20, 33, 64]))]
    own = [draw.randint(200, 300) for _ in range(draw.randint(1, 40))]
    post(address, "/v1/completions", {"prompt": begin + own, "max_tokens": draw.randint(1, 30), "n": draw.randint(1, 3)})


def load(address, seed):
    """Sends requests from several clients at a time and waits until all are answered."""
    failures = []

    def client(draw):
        try:
            for _ in range(REQUESTS // THREADS):
                ask(address, draw)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=client, args=[random.Random(seed + i)]) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    wait_until_idle(address)


def cached_blocks(address):
    """Returns the cached blocks of the cache and of the swap space in the engine's state, when no request runs."""
    state = json.loads(get(address, "/debug/state"))
    return sum(count for _, count in state["cached"]), state["swap_cached"]


def received(subscriber):
    """Receives a published batch."""
    topic, number, payload = subscriber.recv_multipart()
    assert topic.decode() == TOPIC
    return int.from_bytes(number, "big"), payload


def follow(quire, form):
    events, missed = free_endpoints(2)
    options = ["--kv-events", events, "--kv-events-replay", missed, "--kv-events-topic", TOPIC, "--kv-events-format", form]
    with zmq.Context() as context, server(quire, *OPTIONS, *options) as address, context.socket(zmq.SUB) as subscriber:
        subscriber.rcvtimeo, subscriber.rcvhwm, subscriber.linger = PATIENCE * 1000, 0, 0
        subscriber.connect(events)
        subscriber.subscribe("kv@")
        wait_until_ready(address)
        draw = random.Random(0)
        # Events published before the subscription arrives are lost.
        while not subscriber.poll(50):
            ask(address, draw)
        load(address, 1)

        replayed = replay(context, missed, 0)
        assert [number for number, _ in replayed] == list(range(len(replayed)))
        late = Router()
        for number, payload in replayed:
            late.take(number, payload)
        cached = tuple(len(late.media[medium]) for medium in ["GPU", "CPU"])
        assert late.removed and cached == cached_blocks(address), "a late subscriber rebuilds the cache's contents"
        assert cached[1], "evicted blocks go to the swap space"
        assert all(
            fnv1a(tokens) == name if parent is None else fnv1a(tokens, parent) == name
            for known in late.media.values()
            for name, (parent, tokens) in known.items()
        )

        # A router that loses every seventh batch notices that and requests the lost batches.
        router = Router()
        while router.next < late.next:
            number, payload = received(subscriber)
            assert (number, payload) == replayed[number], "replayed batches equal published ones"
            if number % 7 == 3 and number + 1 < late.next:
                continue
            if number > router.next:
                for old, lost in replay(context, missed, router.next):
                    if old < number:
                        router.take(old, lost)
            router.take(number, payload)
        assert not router.missed and router.media == late.media
        print(f"kv_events.py: {form}: {len(replayed)} batches, {len(late.known)} blocks cached, {late.removed} removed")


def forgets(quire):
    """A router that connects after batches were dropped knows that it lacks them."""
    events, missed = free_endpoints(2)
    options = ["--kv-events", events, "--kv-events-replay", missed, "--kv-events-buffer", "5"]
    with zmq.Context() as context, server(quire, *OPTIONS, *options) as address:
        wait_until_ready(address)
        load(address, 9)
        router = Router()
        for number, payload in replay(context, missed, 0):
            router.take(number, payload)
        assert router.missed and router.missed == list(range(router.next - 5))
        print(f"kv_events.py: {len(router.missed)} batches are known to be missing")


def main(quire):
    for form in ["map", "array"]:
        follow(quire, form)
    forgets(quire)


if __name__ == "__main__":
    main(*sys.argv[1:])
