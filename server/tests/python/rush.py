"""Many concurrent requests of every kind, many of them abandoned. The awaited ones must get the same answers as alone.

    python rush.py <quire>
"""

import random
import sys
import threading
from collections import Counter

import openai

from server import metric, server, wait_until_idle, wait_until_ready

MODEL = "opt-story-3m"
THREADS = 8
REQUESTS = 240
# The memory is too small for all at once, so some requests are preempted.
OPTIONS = ["--kv-memory", "8MiB", "--max-num-seqs", "120", "--max-batch-tokens", "1000"]

CHAT = [{"role": "system", "content": "Tell a story."}, {"role": "user", "content": "One day, a fox"}]
KINDS = [
    {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 40},
    {"prompt": "Once upon a time", "seed": 1, "max_tokens": 90, "logprobs": 2},
    {"prompt": ["My name is", "The old king"], "n": 3, "seed": 2, "max_tokens": 25},
    {"prompt": "Once upon a time", "n": 2, "best_of": 5, "seed": 3, "max_tokens": 20},
    {"prompt": "There was", "n": 2, "best_of": 4, "max_tokens": 20, "extra_body": {"use_beam_search": True}},
    {"prompt": "a " * 180, "seed": 4, "max_tokens": 60, "extra_body": {"ignore_eos": True, "top_k": 20}},
    {"prompt": [5, 300, 12], "seed": 5, "max_tokens": 20, "stop": ["e"], "extra_body": {"repetition_penalty": 1.2}},
    {"prompt": "A queen", "echo": True, "logprobs": 1, "seed": 7, "max_tokens": 15},
    {"messages": CHAT, "temperature": 0, "max_tokens": 30, "logprobs": True, "top_logprobs": 1},
    {"messages": CHAT, "n": 4, "seed": 6, "max_tokens": 50},
]
# The best of `best_of` outputs are known only at the end, so they cannot be streamed.
STREAMED = [kind for kind in KINDS if "best_of" not in kind]


def create(c, kind, **options):
    api = c.chat.completions if "messages" in kind else c.completions
    return api.create(model=MODEL, **kind, **options)


def awaited(c, kind):
    return [choice.to_dict() for choice in create(c, kind).choices]


def chunks(stream):
    """Returns the chunks of each choice, in order. The order between choices varies."""
    chunks = {}
    for choice in (choice for chunk in stream for choice in chunk.choices):
        chunks.setdefault(choice.index, []).append(choice.to_dict())
    return chunks


def streamed(c, kind):
    return chunks(create(c, kind, stream=True))


def leave_stream(c, kind, draw):
    with create(c, kind, stream=True) as stream:
        for _ in zip(range(draw.randrange(20)), stream):
            pass


def lose_patience(c, kind, draw):
    try:
        create(c.with_options(timeout=draw.uniform(0.001, 0.2)), kind, stream=draw.random() < 0.5)
    except openai.APITimeoutError:
        pass


def client(address, numbers, wants, done, failures):
    """Sends the requests with these numbers. The kind of each depends only on its number."""
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as c:
        for number in numbers:
            draw = random.Random(number)
            what = draw.choice([awaited, streamed, leave_stream, lose_patience])
            kind = draw.choice(KINDS if what is awaited else STREAMED)
            try:
                if what in (awaited, streamed):
                    assert what(c, kind) == wants[what, KINDS.index(kind)], "the answer differs from the answer alone"
                else:
                    what(c, kind, draw)
                done[what.__name__] += 1
            except Exception as error:
                failures.append((number, what.__name__, kind, repr(error)))


def main(quire):
    with server(quire, *OPTIONS) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="none") as c:
        wait_until_ready(address)
        wants = {(awaited, i): awaited(c, kind) for i, kind in enumerate(KINDS)}
        wants |= {(streamed, i): streamed(c, kind) for i, kind in enumerate(KINDS) if kind in STREAMED}
        wait_until_idle(address)
        done, failures = [Counter() for _ in range(THREADS)], []
        threads = [
            threading.Thread(target=client, args=[address, range(i, REQUESTS, THREADS), wants, done[i], failures])
            for i in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        wait_until_idle(address)
        assert metric(address, "quire:requests_aborted_total") > 0 and metric(address, "vllm:num_preemptions_total") > 0
        assert metric(address, "quire:engine_failures_total") == metric(address, "quire:requests_refused_total") == 0
        assert (awaited(c, KINDS[0]), streamed(c, KINDS[0])) == (wants[awaited, 0], wants[streamed, 0])
        aborted = metric(address, "quire:requests_aborted_total")
        print(f"rush.py: {dict(sum(done, Counter()))}, {aborted:.0f} of them aborted in the engine")


if __name__ == "__main__":
    main(*sys.argv[1:])
