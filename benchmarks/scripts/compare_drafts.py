#!/usr/bin/env python3
"""Decode with and without drafts from the text (`--speculate ngram`), on the same prompts, in turns.

    pip install numpy
    python benchmarks/scripts/compare_drafts.py QUIRE [--batches 1,8] [--threads 2] [--rounds 5] [--drafts 5]

The saving depends on how much of an output repeats earlier text, so the script runs two models. The first model copies. It has the
shape and the cost of a LLaMA of 125 million parameters in bf16, but its layers add zero, and its output matrix gives each token a
fixed next token. A prompt is 256 tokens of such a text with every nth token changed, followed by the beginning of the text again.
The output is the original text, as in an edit that corrects every changed token. In the case "new" the output has nothing in common
with the prompt. The second model is the bundled one, which tells stories with some similar passages.

Prints a JSON line for each case and batch: median tokens per second after the first token, the gain from drafts, the percentage of
drafted tokens that were right, and steps per output token. Drafts must not change the tokens.
"""
import argparse, json, re, statistics, subprocess, tempfile

import numpy as np

from small_llama import VOCAB, random_weights, tensors, write

PROMPT, NEW = 256, 192
STORIES = ["Once upon a time", "There was a little fox", "One day, a girl named Anna", "Tom had a red ball", "In a small village",
           "The old man", "A bird sat", "Every morning"]


def make(path):
    """Writes the copying model, and returns the next token of each token."""
    random = np.random.default_rng(1)
    # All tokens except the special ones form one cycle.
    circle = random.permutation(np.arange(3, VOCAB))
    following = np.arange(VOCAB)
    following[circle] = np.roll(circle, -1)
    weights = {name: random_weights(random, shape) for name, shape in tensors()}
    weights["lm_head.weight"][following] = weights["model.embed_tokens.weight"]
    for name in weights:
        # Zero weights remove what a layer would add to the token's vector, at the same cost.
        if "o_proj" in name or "down_proj" in name:
            weights[name][:] = 0.0
    write(path, "bf16", weights)
    return following


def prompts(following, batch, every):
    """Yields texts with every `every`-th token changed, each followed by its beginning. If `every` is None, by an unrelated token."""
    random = np.random.default_rng(batch)
    for _ in range(batch):
        text = [int(random.integers(3, VOCAB))]
        while len(text) < PROMPT:
            text.append(int(following[text[-1]]))
        begin = text[:4]
        if every is None:
            begin = [int(random.integers(3, VOCAB))]
        elif every:
            text[every - 1::every] = [int(token) for token in random.integers(3, VOCAB, len(text[every - 1::every]))]
        yield ",".join(map(str, text + begin))


def run(binary, options):
    """Returns outputs, tokens per second after the first token, steps, and the percentage of drafted tokens that were right."""
    command = [binary, "--temperature", "0", "--ignore-eos", "--json", "--stats", *options]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    outputs = [json.loads(line)["outputs"][0]["token_ids"] for line in run.stdout.splitlines()]
    number = lambda pattern: float(found[1]) if (found := re.search(pattern, run.stderr, re.M)) else None
    milliseconds = number(r"^time per later token +([0-9.]+) ms")
    return outputs, 1000 * len(outputs) / milliseconds, number(r"^steps +([0-9]+)"), number(r"^drafts .* ([0-9.]+) % accepted")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("quire")
    p.add_argument("--batches", default="1,8")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--drafts", type=int, default=5)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as path:
        following = make(path)
        for batch in map(int, a.batches.split(",")):
            cases = [(f"one token in {every} changed" if every else "the same text" if every == 0 else "new",
                      ["--model", path, "--max-tokens", str(NEW)] + [w for ids in prompts(following, batch, every) for w in ("--prompt-ids", ids)])
                     for every in (0, 32, 16, 8, 4, None)]
            cases.append(("bundled model, stories", ["--max-tokens", "400"] + [w for text in STORIES[:batch] for w in ("--prompt", text)]))
            for name, options in cases:
                plain, drafted = [], []
                for _ in range(a.rounds):
                    for how, into in [(["off"], plain), (["ngram", "--draft-tokens", str(a.drafts)], drafted)]:
                        into.append(run(a.quire, options + ["--device", "cpu", "--threads", str(a.threads), "--speculate", *how]))
                assert all(one[0] == plain[0][0] for one in plain + drafted), "drafts changed the tokens"
                before, after = (statistics.median(one[1] for one in each) for each in (plain, drafted))
                right, tokens = drafted[0][3], len(plain[0][0][0])
                print(json.dumps({"case": name, "batch": batch, "threads": a.threads, "plain": round(before, 1), "drafted": round(after, 1),
                                  "gain": round(after / before, 2), "right_percent": right,
                                  "steps_per_token": round(drafted[0][2] / tokens, 2)}), flush=True)


main()
