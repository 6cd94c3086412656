#!/usr/bin/env python3
"""Compares the time to first token of the turns of a conversation, between quire and llama-server, on one GGUF file. They take turns.

    python benchmarks/scripts/compare_turns.py QUIRE LLAMA_SERVER MODEL.gguf [--turns 2] [--prompt 2048] [--answer 64] [--more 64]
                                               [--threads 2] [--rounds 3]

Prompts are random tokens. Each turn's prompt is the turn before, its answer and `--more` new tokens. Answers are greedy, and no token
ends them. Both servers keep what they computed for the next turn, with their own settings. Prints a JSON line for each turn: the median
seconds until the first token, and the tokens that a server said it computed. The random tokens differ from round to round.
"""
import argparse, json, os, random, socket, statistics, subprocess, time, urllib.request


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def tokens(seed, count):
    source = random.Random(seed)
    return [source.randrange(10, 30000) for _ in range(count)]


def post(url, body):
    """Yields the events of a streamed answer."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        for line in response:
            if line.startswith(b"data: ") and b"[DONE]" not in line:
                yield json.loads(line[6:])


class Quire:
    name = "quire"

    def command(self, a, port):
        return [a.quire, "serve", "--model", a.model, "--device", "cpu", "--threads", str(a.threads), "--port", str(port)]

    def turn(self, base, ids, a):
        body = {"model": "", "prompt": ids, "max_tokens": a.answer, "temperature": 0, "ignore_eos": True, "stream": True,
                "return_token_ids": True, "stream_options": {"include_usage": True}}
        body["model"] = json.load(urllib.request.urlopen(base + "/v1/models"))["data"][0]["id"]
        start, first, answer, computed = time.perf_counter(), None, [], None
        for event in post(base + "/v1/completions", body):
            tokens = [t for choice in event["choices"] for t in choice.get("token_ids") or []]
            if tokens and first is None:
                first = time.perf_counter() - start
            answer += tokens
            if usage := event.get("usage"):
                computed = usage["prompt_tokens"] - (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return first, answer, computed


class LlamaServer:
    name = "llama-server"

    def command(self, a, port):
        length = a.prompt + a.turns * (a.answer + a.more) + 64
        return [a.llama_server, "-m", a.model, "-t", str(a.threads), "-tb", str(a.threads), "-c", str(length), "-np", "1", "--port",
                str(port), "--no-webui"]

    def turn(self, base, ids, a):
        body = {"prompt": ids, "n_predict": a.answer, "temperature": 0, "ignore_eos": True, "stream": True, "return_tokens": True,
                "cache_prompt": True}
        start, first, answer, computed = time.perf_counter(), None, [], None
        for event in post(base + "/completion", body):
            if event.get("tokens") and first is None:
                first = time.perf_counter() - start
            answer += [] if event.get("stop") else event.get("tokens", [])
            if timings := event.get("timings"):
                computed = timings["prompt_n"]
        return first, answer, computed


def start(server, a):
    port = free_port()
    log = open(f"{server.name}.log", "w")
    process = subprocess.Popen(server.command(a, port), stdout=log, stderr=log)
    base = f"http://127.0.0.1:{port}"
    while True:
        try:
            if urllib.request.urlopen(base + "/health").status == 200:
                return process, base
        except OSError:
            if process.poll() is not None:
                raise SystemExit(f"{server.name} ended at its start, see {server.name}.log")
            time.sleep(0.2)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("quire"), p.add_argument("llama_server"), p.add_argument("model")
    p.add_argument("--turns", type=int, default=2), p.add_argument("--prompt", type=int, default=2048)
    p.add_argument("--answer", type=int, default=64), p.add_argument("--more", type=int, default=64)
    p.add_argument("--threads", type=int, default=2), p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    servers = [Quire(), LlamaServer()]
    running = [start(server, a) for server in servers]
    try:
        results = {(server.name, turn): [] for server in servers for turn in range(a.turns)}
        for seed in range(a.rounds):
            prompts = [tokens(seed, a.prompt) for _ in servers]
            for turn in range(a.turns):
                for i, (server, (_, base)) in enumerate(zip(servers, running)):
                    first, answer, computed = server.turn(base, prompts[i], a)
                    results[server.name, turn].append((first, computed))
                    prompts[i] = prompts[i] + answer + tokens(f"{seed} {turn}", a.more)
        for turn in range(a.turns):
            line = {"turn": turn + 1}
            for server in servers:
                rounds = results[server.name, turn]
                line[server.name] = {"seconds": round(statistics.median(r[0] for r in rounds), 3), "computed": rounds[-1][1]}
            line["ratio"] = round(line["llama-server"]["seconds"] / line["quire"]["seconds"], 2)
            print(json.dumps(line), flush=True)
    finally:
        for process, _ in running:
            process.kill()


main()
