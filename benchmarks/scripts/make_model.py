#!/usr/bin/env python3
"""Writes a model with the shape of OPT-13B or LLaMA-3-8B and random weights, as safetensors in a Hugging Face directory.

    python benchmarks/scripts/make_model.py opt-13b /data/opt-13b       # 26 GB
    python benchmarks/scripts/make_model.py llama-3-8b /data/llama-3-8b # 16 GB

The configuration comes from benchmarks/simulator/configs. The model's output makes no sense, but takes as long as the real model's. Needs
torch and safetensors. Weights are generated on the GPU if there is one.
"""
import argparse, json, os, shutil

import torch
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
SHARD_BYTES = 4 << 30
# quire must be able to read the tokenizer, but does not use it: prompts are given as tokens.
TOKENIZER = "../tests/fixtures/golden/opt-pre/tokenizer.json"
TOKENS = {"opt-13b": {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1},
          "llama-3-8b": {"bos_token_id": 128000, "eos_token_id": 128001}}


def opt_tensors(c):
    hidden, inner = c["hidden_size"], c["ffn_dim"]
    yield "model.decoder.embed_tokens.weight", (c["vocab_size"], hidden)
    yield "model.decoder.embed_positions.weight", (c["max_position_embeddings"] + 2, hidden)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.decoder.layers.{i}."
        for name, outputs, inputs in [("self_attn.q_proj", hidden, hidden), ("self_attn.k_proj", hidden, hidden),
                                      ("self_attn.v_proj", hidden, hidden), ("self_attn.out_proj", hidden, hidden),
                                      ("fc1", inner, hidden), ("fc2", hidden, inner)]:
            yield f"{layer}{name}.weight", (outputs, inputs)
            yield f"{layer}{name}.bias", (outputs,)
        for name in ["self_attn_layer_norm", "final_layer_norm"]:
            yield f"{layer}{name}.weight", (hidden,)
            yield f"{layer}{name}.bias", (hidden,)
    yield "model.decoder.final_layer_norm.weight", (hidden,)
    yield "model.decoder.final_layer_norm.bias", (hidden,)


def llama_tensors(c):
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    kv = hidden // c["num_attention_heads"] * c["num_key_value_heads"]
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, outputs, inputs in [("self_attn.q_proj", hidden, hidden), ("self_attn.k_proj", kv, hidden),
                                      ("self_attn.v_proj", kv, hidden), ("self_attn.o_proj", hidden, hidden),
                                      ("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden),
                                      ("mlp.down_proj", hidden, inner)]:
            yield f"{layer}{name}.weight", (outputs, inputs)
        yield f"{layer}input_layernorm.weight", (hidden,)
        yield f"{layer}post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (c["vocab_size"], hidden)


def random_tensor(name, shape, dtype, device):
    if "norm" in name:
        return torch.full(shape, 1.0 if name.endswith(".weight") else 0.0, dtype=dtype)
    return (torch.randn(shape, dtype=dtype, device=device) * 0.02).cpu()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", choices=sorted(TOKENS))
    p.add_argument("directory")
    a = p.parse_args()
    with open(os.path.join(HERE, f"../simulator/configs/{a.model}.json")) as file:
        config = json.load(file)
    config.update(TOKENS[a.model], model_type="opt" if a.model.startswith("opt") else "llama")
    tensors = opt_tensors(config) if config["model_type"] == "opt" else llama_tensors(config)
    dtype = getattr(torch, config["torch_dtype"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    os.makedirs(a.directory, exist_ok=True)
    with open(os.path.join(a.directory, "config.json"), "w") as file:
        json.dump(config, file, indent=2)
    shutil.copyfile(os.path.join(HERE, TOKENIZER), os.path.join(a.directory, "tokenizer.json"))

    shard, size, total, places = {}, 0, 0, {}

    def save():
        nonlocal shard, size
        name = f"model-{len(set(places.values())) + 1:05}.safetensors"
        save_file(shard, os.path.join(a.directory, name), metadata={"format": "pt"})
        places.update(dict.fromkeys(shard, name))
        print(f"{name}: {size / 1e9:.1f} GB", flush=True)
        shard, size = {}, 0

    for name, shape in tensors:
        tensor = random_tensor(name, shape, dtype, device)
        if shard and size + tensor.nbytes > SHARD_BYTES:
            save()
        shard[name] = tensor
        size, total = size + tensor.nbytes, total + tensor.nbytes
    save()
    with open(os.path.join(a.directory, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": places}, file, indent=1)


if __name__ == "__main__":
    main()
