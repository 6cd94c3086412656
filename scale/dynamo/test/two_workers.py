"""Tests workers behind Dynamo's frontend. They give the same tokens as a single engine, the router finds cached prefixes, and a worker
may be lost or join.

    python two_workers.py <quire> <quire-dynamo> <model>
"""

import asyncio
import platform
import statistics
import sys
import time
from importlib.metadata import version

import openai

from cluster import MODEL, Cluster
from server import refused, server, wait_until, wait_until_ready

GREEDY = {"temperature": 0, "max_tokens": 30}
TEXTS = ["Once upon a time", "One day, a little fox", "The sun was warm and", "Tom had a red ball.", "Lily saw a big"]
# An odd number of prefixes makes two workers in turn get each prefix alternately.
PREFIXES, ROUNDS, LENGTH = 7, 6, 300


def client(address, kind=openai.OpenAI):
    return kind(base_url=f"{address}/v1", api_key="none", max_retries=0)


def prefix(i):
    """Returns a prefix of 300 token ids."""
    return [100 + (at * (i + 3) + at * at) % 1000 for at in range(LENGTH)]


def check_tokens(quire, binary, model):
    """Asserts that answers and refusals equal a single engine's."""
    with server(quire, "--device", "cpu") as alone, Cluster(binary, model, "round-robin") as cluster:
        wait_until_ready(alone)
        cluster.add(2)
        ours, theirs = client(alone), client(cluster.address)
        # Dynamo's frontend adds no special tokens to the text of a completion.
        single = {"model": "opt-story-3m", "extra_body": {"add_special_tokens": False}}
        for text in TEXTS * 2:
            want = ours.completions.create(**single, prompt=text, **GREEDY).choices[0]
            got = theirs.completions.create(model=MODEL, prompt=text, **GREEDY).choices[0]
            assert (got.text, got.finish_reason) == (want.text, want.finish_reason), (got, want)
        sampled = {"temperature": 0.8, "seed": 7, "max_tokens": 30, "stop": [" the"]}
        want = ours.completions.create(**single, prompt=TEXTS[0], **sampled).choices[0]
        got = theirs.completions.create(model=MODEL, prompt=TEXTS[0], **sampled).choices[0]
        assert (got.text, got.finish_reason) == (want.text, want.finish_reason), (got, want)
        stream = theirs.completions.create(model=MODEL, prompt=TEXTS[0], stream=True, **GREEDY)
        streamed = "".join(chunk.choices[0].text or "" for chunk in stream if chunk.choices)
        assert streamed == ours.completions.create(**single, prompt=TEXTS[0], **GREEDY).choices[0].text
        error = refused(
            openai.BadRequestError,
            lambda: theirs.completions.create(model=MODEL, prompt=TEXTS[0], n=2, **{**GREEDY, "temperature": 1}),
        )
        assert "n must be 1" in str(error), error
        served = [worker.metric("vllm:request_success_total") for worker in cluster.workers]
        assert min(served) > 0, served


def measure_prefixes(binary, model, router):
    """Returns the cached and the total prompt tokens, and the times to the first tokens in milliseconds."""
    with Cluster(binary, model, router) as cluster:
        cluster.add(2)
        ask = client(cluster.address)
        hits, total, first = 0, 0, []
        for round in range(ROUNDS):
            for i in range(PREFIXES):
                begun, seen = time.perf_counter(), None
                prompt = prefix(i) + [50 + round, 60 + i, 70 + round]
                options = {"stream": True, "stream_options": {"include_usage": True}, "extra_body": {"ignore_eos": True}}
                for chunk in ask.completions.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0, **options):
                    if seen is None and chunk.choices:
                        seen = time.perf_counter() - begun
                    usage = chunk.usage or None
                hits += usage.prompt_tokens_details.cached_tokens or 0
                total += usage.prompt_tokens
                first.append(1000 * seen)
        counted = sum(worker.metric("vllm:prefix_cache_hits_total") for worker in cluster.workers)
        assert counted == hits, (counted, hits)
        return hits, total, first


async def lose_a_worker(binary, model):
    """Kills one of two workers while both answer. Its requests get an error, and the others complete. Then a third worker joins."""
    with Cluster(binary, model, "round-robin") as cluster:
        lost, kept = cluster.add(2)
        ask = client(cluster.address, openai.AsyncOpenAI)
        begun = [asyncio.Event() for _ in range(8)]

        async def read(i):
            options = {"max_tokens": 400, "temperature": 0, "extra_body": {"ignore_eos": True}}
            tokens = 0
            async for chunk in await ask.completions.create(model=MODEL, prompt=TEXTS[i % 5], stream=True, **options):
                begun[i].set()
                tokens += bool(chunk.choices)
                finish = chunk.choices[0].finish_reason if chunk.choices else None
            return finish

        readers = [asyncio.create_task(read(i)) for i in range(len(begun))]
        await asyncio.gather(*(event.wait() for event in begun))
        on_lost, on_kept = (worker.metric("vllm:num_requests_running") for worker in (lost, kept))
        assert on_lost > 0 and on_kept > 0 and on_lost + on_kept == len(begun), (on_lost, on_kept)
        lost.kill()
        results = await asyncio.gather(*readers, return_exceptions=True)
        complete = [result for result in results if result == "length"]
        errors = [result for result in results if isinstance(result, openai.APIError)]
        assert (len(complete), len(errors)) == (on_kept, on_lost), results

        # The registration of the lost worker expires. Until then, requests that are sent to it fail.
        wait_until(lambda: cluster.generators() == 1)
        [third] = cluster.add(1)
        for i in range(10):
            answer = await ask.completions.create(model=MODEL, prompt=TEXTS[i % 5], **GREEDY)
            assert answer.choices[0].text
        assert third.metric("vllm:request_success_total") > 0 and kept.metric("vllm:request_success_total") > on_kept
        return len(complete), errors


def main(quire, binary, model):
    print(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, ai-dynamo {version('ai-dynamo')}")
    check_tokens(quire, binary, model)
    print("tokens and refusals equal a single engine's")
    hits = {}
    for router in ["round-robin", "kv"]:
        hits[router], total, first = measure_prefixes(binary, model, router)
        quantiles = statistics.quantiles(first, n=20)
        print(
            f"{router}: {hits[router]} of {total} prompt tokens were prefix hits; "
            f"time to first token {statistics.median(first):.1f} ms in the median, {quantiles[18]:.1f} ms at the 95th percentile"
        )
    # With round-robin both workers compute every prefix, and with events only one of them does.
    assert hits["kv"] > hits["round-robin"], hits
    complete, errors = asyncio.run(lose_a_worker(binary, model))
    print(f"a worker was lost: {complete} requests completed, {len(errors)} got an error ({errors[0]}); a third joined")


if __name__ == "__main__":
    main(*sys.argv[1:])
