#!/usr/bin/env python3
"""Measures the loss of accuracy and the saving from a truncated singular value decomposition of keys and values.

    pip install numpy safetensors
    python benchmarks/scripts/svd_of_keys.py

The bundled model scores the stories of tests/fixtures/opt-story-3m, with the keys and values of each head compressed in several ways:
by a decomposition of each block of 16 tokens, by a decomposition of the whole sequence, or by one basis per head that is computed from
the other stories. For comparison it also uses the engine's way, 8 bits with a scale per token. Prints a Markdown table: bytes relative
to 16 bits, relative errors of keys and values, root mean square and greatest change of logprobs, perplexity.
"""
import json, os

import numpy as np
from safetensors import safe_open

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
LAYERS, HEADS, SIZE, BLOCK = 6, 3, 64, 16


def weights():
    with safe_open(os.path.join(ROOT, "engine/model/model.safetensors"), "np") as file:
        return {name.removeprefix("model.decoder."): file.get_tensor(name).astype(np.float32) for name in file.keys()}


def stories():
    with open(os.path.join(ROOT, "tests/fixtures/opt-story-3m/golden.json")) as file:
        return [case["prompt_ids"] + case["greedy_ids"] for case in json.load(file)["cases"]]


def norm(w, name, x):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w[name + ".weight"] + w[name + ".bias"]


def linear(w, name, x):
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def scores(w, ids, store):
    """Returns the logprobs of all tokens but the first. `store(layer, head, is_key, rows)` compresses `rows`, `[tokens, 64]`."""
    tokens = len(ids)
    mask = np.triu(np.full((tokens, tokens), -np.inf, np.float32), 1)
    x = w["embed_tokens.weight"][ids] + w["embed_positions.weight"][2:tokens + 2]
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        h = norm(w, at + "self_attn_layer_norm", x)
        q, k, v = (linear(w, f"{at}self_attn.{name}_proj", h).reshape(tokens, HEADS, SIZE) for name in "qkv")
        heads = []
        for head in range(HEADS):
            keys, values = store(layer, head, True, k[:, head]), store(layer, head, False, v[:, head])
            s = q[:, head] @ keys.T / np.sqrt(SIZE) + mask
            p = np.exp(s - s.max(-1, keepdims=True))
            heads.append(p / p.sum(-1, keepdims=True) @ values)
        x = x + linear(w, at + "self_attn.out_proj", np.concatenate(heads, -1))
        h = norm(w, at + "final_layer_norm", x)
        x = x + linear(w, at + "fc2", np.maximum(linear(w, at + "fc1", h), 0))
    logits = norm(w, "final_layer_norm", x) @ w["embed_tokens.weight"].T
    logits -= logits.max(-1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return logprobs[np.arange(tokens - 1), ids[1:]]


def truncated(rows, rank):
    u, s, v = np.linalg.svd(rows, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ v[:rank]


def by_blocks(rank):
    """Truncates each block separately. A last block that is not full stays unchanged."""
    def store(_, __, ___, rows):
        full = len(rows) // BLOCK * BLOCK
        blocks = [truncated(rows[i:i + BLOCK], rank) for i in range(0, full, BLOCK)]
        return np.concatenate(blocks + [rows[full:]])
    return store


def whole(rank):
    return lambda _, __, ___, rows: truncated(rows, rank)


def fixed(bases, rank):
    return lambda layer, head, is_key, rows: rows @ bases[layer, head, is_key][:rank].T @ bases[layer, head, is_key][:rank]


def int8(_, __, ___, rows):
    scale = (np.abs(rows).max(-1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    return np.round(rows / np.maximum(scale, 1e-8)).clip(-127, 127) * scale


def main():
    w, texts = weights(), stories()
    kept = []
    exact = []
    for ids in texts:
        rows = {}
        exact.append(scores(w, ids, lambda *key: rows.setdefault(key[:3], key[3])))
        kept.append(rows)

    def bases_without(text):
        """Returns the right singular vectors of each head over all stories but one."""
        others = [rows for i, rows in enumerate(kept) if i != text]
        return {key: np.linalg.svd(np.concatenate([rows[key] for rows in others]), full_matrices=False)[2] for key in kept[0]}

    bases = [bases_without(i) for i in range(len(texts))]
    mean = np.mean([len(ids) for ids in texts])
    forms = [("8 bits, a scale per token", (SIZE + 2) / (2 * SIZE), lambda _: int8)]
    for rank in (12, 8, 6):
        forms.append((f"each block, rank {rank}", rank * (BLOCK + SIZE) / (BLOCK * SIZE), lambda _, r=rank: by_blocks(r)))
    for rank in (32, 24, 16):
        forms.append((f"whole sequence, rank {rank}", rank * (mean + SIZE) / (mean * SIZE), lambda _, r=rank: whole(r)))
    for rank in (48, 32, 24):
        forms.append((f"a basis per head, rank {rank}", rank / SIZE, lambda i, r=rank: fixed(bases[i], r)))

    print(f"{len(texts)} stories, {mean:.0f} tokens on average; perplexity {np.exp(-np.concatenate(exact).mean()):.4f}\n")
    print("| compression | bytes | error of keys | of values | logprobs: root mean square | greatest | perplexity |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, part, store_for in forms:
        errors, got = {True: [], False: []}, []
        for i, ids in enumerate(texts):
            store = store_for(i)
            for (layer, head, is_key), rows in kept[i].items():
                lost = np.linalg.norm(rows - store(layer, head, is_key, rows)) / np.linalg.norm(rows)
                errors[is_key].append(lost)
            got.append(scores(w, ids, store))
        change = np.concatenate(got) - np.concatenate(exact)
        print(f"| {name} | {part:.2f} | {np.mean(errors[True]):.3f} | {np.mean(errors[False]):.3f} "
              f"| {np.sqrt((change ** 2).mean()):.3f} | {np.abs(change).max():.2f} "
              f"| {np.exp(-np.concatenate(got).mean()):.4f} |")


if __name__ == "__main__":
    main()
