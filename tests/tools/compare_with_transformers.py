#!/usr/bin/env python3
"""Compares quire with Hugging Face transformers on random tiny models of every family, with unusual configurations.

    python compare_with_transformers.py QUIRE [ROUNDS] [SEED]

Makes a model, lets transformers generate greedily and with beams in f32, and compares tokens and beam scores. Needs torch,
transformers, safetensors and numpy. Prints each difference, and exits with the number of differences.
"""
import json, os, random, shutil, subprocess, sys, tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["HF_HUB_OFFLINE"] = "1"
import torch, transformers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)
HERE = os.path.dirname(os.path.abspath(__file__))
TOKENIZER = os.path.join(HERE, "../fixtures/golden/opt-pre/tokenizer.json")


def family(r):
    """Returns a random configuration: (class name, fields)."""
    d, kv = r.choice([8, 16, 24, 32, 40, 64]), r.choice([1, 2, 3])
    heads, layers, vocab = kv * r.choice([1, 2, 4]), r.choice([1, 2, 3]), 512
    h = heads * d
    act = r.choice(["silu", "gelu", "gelu_pytorch_tanh", "relu"])
    rope = r.choice([None, {"rope_type": "linear", "factor": 2.0},
                     {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 32}])
    rotary = {"vocab_size": vocab, "hidden_size": r.choice([h, h, 2 * h]), "intermediate_size": r.choice([40, 96, 130]),
              "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": d,
              "hidden_act": act, "rms_norm_eps": r.choice([1e-5, 1e-6]), "rope_theta": r.choice([1e3, 1e4, 5e5]),
              "tie_word_embeddings": r.random() < 0.5, "max_position_embeddings": 256, "rope_scaling": rope}
    window = {"sliding_window": r.choice([3, 8, 20])}
    kind = r.choice(["opt", "gpt2", "llama", "mistral", "qwen2", "qwen3"])
    if kind == "opt":
        pre = r.random() < 0.7
        return "OPTForCausalLM", {
            "vocab_size": vocab, "hidden_size": h, "num_hidden_layers": layers, "num_attention_heads": heads,
            "ffn_dim": r.choice([40, 96, 130]), "max_position_embeddings": 256, "do_layer_norm_before": pre,
            "word_embed_proj_dim": r.choice([h, h, 24]), "enable_bias": r.random() < 0.8,
            "layer_norm_elementwise_affine": r.random() < 0.8, "_remove_final_layer_norm": r.random() < 0.2,
            "activation_function": r.choice(["relu", "gelu", "gelu_new"])}
    if kind == "gpt2":
        return "GPT2LMHeadModel", {
            "vocab_size": vocab, "n_embd": h, "n_layer": layers, "n_head": heads, "n_inner": r.choice([None, 40, 130]),
            "n_positions": 256, "activation_function": r.choice(["gelu_new", "gelu", "relu"]),
            "layer_norm_epsilon": r.choice([1e-5, 1e-6]), "tie_word_embeddings": r.random() < 0.7}
    if kind == "llama":
        return "LlamaForCausalLM", {**rotary, "attention_bias": r.random() < 0.5, "mlp_bias": r.random() < 0.5}
    if kind == "mistral":
        return "MistralForCausalLM", {**rotary, "sliding_window": r.choice([None, 3, 8, 20])}
    extra = {"use_sliding_window": r.random() < 0.5, "max_window_layers": r.choice([0, 1, 2]), **window}
    if kind == "qwen2":
        rotary["head_dim"] = rotary["hidden_size"] // heads
        if rotary["hidden_size"] % (2 * heads):
            rotary["hidden_size"], rotary["head_dim"] = h, d
        return "Qwen2ForCausalLM", {**rotary, **extra}
    return "Qwen3ForCausalLM", {**rotary, **extra, "attention_bias": r.random() < 0.5}


def make(r, path):
    name, fields = family(r)
    eos = r.choice([[7], [7, 9], [7, 9, 11]])
    kind = {"OPTForCausalLM": "opt", "GPT2LMHeadModel": "gpt2"}.get(name, name.replace("ForCausalLM", "").lower())
    config = AutoConfig.for_model(kind, **fields, eos_token_id=eos[0], bos_token_id=2, pad_token_id=1)
    config.architectures = [name]
    torch.manual_seed(r.randrange(1 << 30))
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            scale = 1.0 if p.ndim == 1 else 1.6 * p.shape[-1] ** -0.5
            p.copy_(torch.randn(p.shape) * scale * (0.3 if p.ndim == 1 else 1) + (1.0 if "norm" in key and key.endswith("weight") else 0))
        logits = model(torch.randint(20, 500, (1, 50))).logits
        model.get_output_embeddings().weight.mul_(3.0 / logits.std().clamp(min=1e-3))
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=1)
    shards = {} if r.random() < 0.7 else {"max_shard_size": "200KB"}
    model.to(r.choice([torch.float32, torch.bfloat16, torch.float16])).save_pretrained(path, **shards)
    shutil.copy(TOKENIZER, path)
    with open(f"{path}/generation_config.json", "w") as f:
        json.dump({"eos_token_id": eos, "pad_token_id": 1}, f)
    return name, fields, AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval(), eos


def hugging_face(model, ids, eos, beams, steps):
    config = GenerationConfig(do_sample=False, max_new_tokens=steps, eos_token_id=eos, pad_token_id=1, num_beams=beams["width"],
                              num_return_sequences=beams["width"], return_dict_in_generate=True, output_logits=True,
                              output_scores=True, **({} if beams["width"] == 1 else {
                                  "length_penalty": beams["penalty"], "early_stopping": beams["early"]}))
    x = torch.tensor([ids])
    with torch.no_grad():
        out = model.generate(x, attention_mask=torch.ones_like(x), generation_config=config)
    found = []
    for i, seq in enumerate(out.sequences[:, len(ids):].tolist()):
        end = next((k + 1 for k, t in enumerate(seq) if t in eos), len(seq))
        found.append((seq[:end], None if beams["width"] == 1 else out.sequences_scores[i].item()))
    margins = [l[0].topk(2).values.diff().abs().item() for l in out.logits] if beams["width"] == 1 else []
    return found, margins


def quire(binary, path, ids, beams, steps, options):
    args = [binary, "--model", path, "--prompt-ids", ",".join(map(str, ids)), "--max-tokens", str(steps), "--json", *options]
    if beams["width"] > 1:
        early = {True: "true", False: "false"}.get(beams["early"], beams["early"])
        args += ["--beam-width", str(beams["width"]), "--n", str(beams["width"]), "--length-penalty", str(beams["penalty"]),
                 "--early-stopping", early]
    else:
        args += ["--temperature", "0"]
    run = subprocess.run(args, capture_output=True, text=True)
    if run.returncode:
        return run.stderr.strip(), None
    out = json.loads(run.stdout)
    return [(o["token_ids"], o.get("score")) for o in out["outputs"]], out


def main():
    binary, rounds, seed = sys.argv[1], int((sys.argv + ["20"])[2]), int((sys.argv + [0, "1"] if len(sys.argv) < 4 else sys.argv)[3])
    wrong = compared = 0
    for n in range(rounds):
        r = random.Random(seed * 1000 + n)
        with tempfile.TemporaryDirectory() as path:
            name, fields, model, eos = make(r, path)
            for _ in range(4):
                ids = [r.randrange(20, 500) for _ in range(r.choice([1, 5, 17, 40, 90]))]
                beams = r.choice([{"width": 1}, {"width": r.choice([2, 3, 4]), "penalty": r.choice([1.0, 0.0, 2.0, 0.5]),
                                                 "early": r.choice([True, False, "never"])}])
                options = r.choice([[], ["--max-batch-tokens", "7"], ["--block-size", "8"], ["--block-size", "1"]])
                want, margins = hugging_face(model, ids, eos, beams, 24)
                got, _ = quire(binary, path, ids, beams, 24, options)
                compared += 1
                same = isinstance(got, list) and [g[0] for g in got] == [w[0] for w in want] and all(
                    w[1] is None or abs(g[1] - w[1]) < 1e-3 for g, w in zip(got, want))
                if same:
                    continue
                close = margins and min(margins) < 1e-3
                wrong += not close
                print(f"{'close call' if close else 'DIFFERENT'} round {n}: {name} {fields} eos {eos} beams {beams} {options}\n"
                      f"  prompt {ids}\n  want {want}\n  got  {got}", flush=True)
    print(f"{compared} compared, {wrong} different")
    sys.exit(min(wrong, 100))


main()
