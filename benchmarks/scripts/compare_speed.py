#!/usr/bin/env python3
"""Compares the generation speed of quire and Hugging Face transformers on the same CPU with the same random weights.

    python benchmarks/scripts/compare_speed.py QUIRE [--dtype float32|bfloat16|float16] [--batches 1,8,32] [--threads 2] [--repeats 3]
                                          [--options=--round-activations]

The model has the shape of OPT-125m. Prompts have 64 random tokens, and outputs 64 greedy tokens with end-of-sequence ignored. Prints
a JSON line for each batch: the best of the repeats in generated tokens per second (including the prompts), and quire's peak memory.
Needs torch and transformers.
"""
import argparse, json, os, random, re, subprocess, tempfile, time

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["HF_HUB_OFFLINE"] = "1"
import torch, transformers
from transformers import AutoModelForCausalLM, GenerationConfig, OPTConfig

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
PROMPT, NEW = 64, 64
HERE = os.path.dirname(os.path.abspath(__file__))


def make(path, dtype):
    config = OPTConfig(vocab_size=50272, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, ffn_dim=3072,
                       word_embed_proj_dim=768, max_position_embeddings=2048, bos_token_id=2, eos_token_id=2, pad_token_id=1)
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(dtype).save_pretrained(path)
    with open(os.path.join(HERE, "../../tests/fixtures/golden/opt-pre/tokenizer.json")) as source:
        with open(os.path.join(path, "tokenizer.json"), "w") as copy:
            copy.write(source.read())


def hugging_face(path, dtype, prompts, repeats):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    config = lambda n: GenerationConfig(do_sample=False, max_new_tokens=n, min_new_tokens=n, eos_token_id=None, pad_token_id=1)
    ids = torch.tensor(prompts)
    with torch.no_grad():
        model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config(2))
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config(NEW))
            times.append(time.perf_counter() - start)
    return min(times)


def quire(binary, path, prompts, threads, repeats, options):
    command = [binary, "--model", path, "--temperature", "0", "--ignore-eos", "--max-tokens", str(NEW), "--json", "--stats",
               "--threads", str(threads), *options.split()]
    for ids in prompts:
        command += ["--prompt-ids", ",".join(map(str, ids))]
    times, memory = [], 0
    for _ in range(repeats):
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        times.append(float(re.search(r"^time +([0-9.]+) s", run.stderr, re.M)[1]))
        memory = max(memory, int(re.search(r"^peak memory +([0-9]+) MiB", run.stderr, re.M)[1]))
        assert all(len(json.loads(line)["outputs"][0]["token_ids"]) == NEW for line in run.stdout.splitlines())
    return min(times), memory


def main():
    p = argparse.ArgumentParser()
    p.add_argument("quire")
    p.add_argument("--dtype", default="float32")
    p.add_argument("--batches", default="1,8,32")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--options", default="", help="additional options for quire, as in --options=--round-activations")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    dtype = getattr(torch, a.dtype)
    with tempfile.TemporaryDirectory() as path:
        make(path, dtype)
        weights = sum(os.path.getsize(os.path.join(path, f)) for f in os.listdir(path) if f.endswith(".safetensors")) / 2**20
        for batch in map(int, a.batches.split(",")):
            r = random.Random(batch)
            prompts = [[r.randrange(10, 30000) for _ in range(PROMPT)] for _ in range(batch)]
            seconds, memory = quire(a.quire, path, prompts, a.threads, a.repeats, a.options)
            baseline = hugging_face(path, dtype, prompts, a.repeats)
            print(json.dumps({
                "dtype": a.dtype, "batch": batch, "threads": a.threads, "quire_tokens_per_s": round(batch * NEW / seconds, 1),
                "transformers_tokens_per_s": round(batch * NEW / baseline, 1), "ratio": round(baseline / seconds, 2),
                "quire_peak_mib": memory, "weights_mib": round(weights), "torch": torch.__version__,
                "transformers": transformers.__version__}), flush=True)


main()
