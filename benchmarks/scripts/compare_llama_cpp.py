#!/usr/bin/env python3
"""Compares decode and prefill of quire and llama.cpp on the same CPU with the same random weights. The programs take turns.

    pip install llama-cpp-python==0.3.36 gguf numpy        # built here, with GGML_NATIVE
    python benchmarks/scripts/compare_llama_cpp.py QUIRE [--types f32,f16,bf16] [--batches 1,8,32] [--threads 2] [--rounds 3]
                                                   [--prompt 64] [--new 64] [--options=--round-activations]
                                                   [--shape llama|gemma3-1b|olmo2-1b|qwen3.5-0.8b|qwen3-30b-a3b:12|gpt-oss-20b:8]
                                                   [--dir DIRECTORY] [--bandwidth GB/s]

The model comes from `small_llama.py`, from `hybrid_shapes.py` (bf16, q8_0, q4_0), or from `expert_shapes.py` (q8_0, q4_0, mxfp4).
The last two write one GGUF file for both programs. Both get the same weights in the same type. quire reads f32, f16 and bf16 as
safetensors, and the quantised types (q8_0, q4_0, q4_k) from a GGUF file, as llama.cpp does. `quire quantize` writes q8_0 and q4_0,
and llama.cpp writes q4_k. Prompts are random tokens. Outputs are greedy, and no token ends them. Prints a JSON line for each type and
batch: median tokens per second over the rounds, and the ratio of quire to llama.cpp. For experts it also has the bytes that a step is
expected to read, the bytes per second that follow from the times, and their share of the memory's bandwidth, if that is given. Files
from `hybrid_shapes.py` and `expert_shapes.py` stay in --dir. It is required for experts, whose files have several gigabytes.
"""
import argparse, json, os, statistics, subprocess, sys, tempfile, time

import numpy as np

from small_llama import FEED_FORWARD, HEADS, HIDDEN, KV_HEADS, LAYERS, POSITIONS, VOCAB, random_weights, stored, tensors, write

QUANTISED = ("q8_0", "q4_0", "q4_k")
# Parts of Hugging Face's tensor names, and their equivalents in a GGUF file.
NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers": "blk",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm"}


def make(path, kind):
    """Writes a model directory for quire, and the same weights as a GGUF file for llama.cpp."""
    random = np.random.default_rng(1)
    weights = {name: random_weights(random, shape) for name, shape in tensors()}
    write(path, kind, weights)
    import gguf
    writer = gguf.GGUFWriter(os.path.join(path, "model.gguf"), "llama")
    writer.add_context_length(POSITIONS), writer.add_embedding_length(HIDDEN), writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD), writer.add_head_count(HEADS), writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5), writer.add_rope_dimension_count(HIDDEN // HEADS), writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("llama"), writer.add_token_list([f"t{i}".encode() for i in range(VOCAB)])
    writer.add_token_scores([0.0] * VOCAB), writer.add_token_types([1] * VOCAB)
    writer.add_bos_token_id(1), writer.add_eos_token_id(2)
    types = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16, "bf16": gguf.GGMLQuantizationType.BF16}
    for name, values in weights.items():
        # Norms are f32 in every GGUF file.
        data, kind_of = (values, types["f32"]) if values.ndim == 1 else (stored(values, kind), types[kind])
        if "q_proj" in name or "k_proj" in name:
            # llama.cpp rotates pairs of neighbouring elements, and Hugging Face pairs across the two halves.
            data = data.reshape(-1, 2, 32, HIDDEN).swapaxes(1, 2).reshape(values.shape)
        for part, other in NAMES.items():
            name = name.replace(part, other)
        writer.add_tensor(name, data.view(np.uint8) if kind_of == types["bf16"] else data, raw_dtype=kind_of)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()


def quantise(file, to, kind):
    """Quantises all matrices with llama.cpp. Runs in a process of its own, since llama.cpp prints a lot."""
    ftype = {"q4_k": "Q4_K_S", "q8_0": "Q8_0", "q4_0": "Q4_0"}[kind]
    code = ("import llama_cpp as c, sys; c.llama_backend_init(); p = c.llama_model_quantize_default_params(); "
            f"p.ftype, p.pure = c.LLAMA_FTYPE_MOSTLY_{ftype}, True; "
            "sys.exit(c.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), p))")
    subprocess.run([sys.executable, "-c", code, file, to], check=True, capture_output=True)


def llama_cpp(file, batch, prompt, new, threads):
    """Returns the seconds of prefill and of the decode steps after it. Runs in a process of its own."""
    import llama_cpp as cpp
    cpp.llama_backend_init()
    params = cpp.llama_model_default_params()
    model = cpp.llama_model_load_from_file(file.encode(), params)
    params = cpp.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.n_threads, params.n_threads_batch = batch * (prompt + new), batch, threads, threads
    params.n_batch = params.n_ubatch = max(512, batch * prompt)
    context = cpp.llama_init_from_model(model, params)
    vocab = cpp.llama_vocab_n_tokens(cpp.llama_model_get_vocab(model))
    chunk = cpp.llama_batch_init(batch * prompt, 0, 1)

    def run(rows):
        """Computes rows of (token, position, sequence, needs logits), and returns the likeliest tokens."""
        chunk.n_tokens = len(rows)
        for at, (token, position, sequence, wanted) in enumerate(rows):
            chunk.token[at], chunk.pos[at], chunk.n_seq_id[at], chunk.logits[at] = token, position, 1, wanted
            chunk.seq_id[at][0] = sequence
        assert cpp.llama_decode(context, chunk) == 0
        at = [i for i, row in enumerate(rows) if row[3]]
        return [int(np.ctypeslib.as_array(cpp.llama_get_logits_ith(context, i), (vocab,)).argmax()) for i in at]

    random = np.random.default_rng(batch)
    prompts = random.integers(10, 30000, (batch, prompt))
    rows = [(int(prompts[s][p]), p, s, p == prompt - 1) for s in range(batch) for p in range(prompt)]
    run([(5, 0, 0, True)])
    cpp.llama_memory_clear(cpp.llama_get_memory(context), True)
    begin = time.perf_counter()
    last = run(rows)
    first = time.perf_counter()
    for step in range(new - 1):
        last = run([(last[s], prompt + step, s, True) for s in range(batch)])
    return first - begin, time.perf_counter() - first


def quire(binary, model, batch, prompt, new, threads, options):
    """Returns the same seconds for quire, from the second of two batches. All prompts of a batch are computed in one step."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([binary, "bench", "latency", "--model", model, "--device", "cpu", "--batch", str(batch), "--lengths",
                        f"{prompt},{new}", "--repeats", "1", "--threads", str(threads), "--max-batch-tokens", str(batch * prompt + batch),
                        "--prefix-caching", "off", "--json", out.name, *options], check=True, capture_output=True)
        point = json.load(open(out.name))["points"][0]
    return point["time_to_first_token"]["p50"], point["time_per_output_token"]["mean"] * (new - 1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("quire")
    p.add_argument("--types", default="f32,f16,bf16")
    p.add_argument("--batches", default="1,8,32")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--prompt", type=int, default=64)
    p.add_argument("--new", type=int, default=64)
    p.add_argument("--shape", default="llama", help="llama, gemma3-1b, olmo2-1b, qwen3.5-0.8b, or a shape with experts such as qwen3-30b-a3b:12")
    p.add_argument("--dir", help="where files in a published shape are written, and found the next time")
    p.add_argument("--bandwidth", type=float, help="the memory's measured bandwidth in GB/s")
    p.add_argument("--options", default="", help="additional options for quire, as in --options=--round-activations")
    p.add_argument("--llama-cpp", nargs=2, metavar=("FILE", "BATCH"), help="only measure llama.cpp (the script uses this itself)")
    a = p.parse_args()
    if a.llama_cpp:
        print(json.dumps(llama_cpp(a.llama_cpp[0], int(a.llama_cpp[1]), a.prompt, a.new, a.threads)))
        return
    if a.shape.startswith(("qwen3-30b-a3b", "gpt-oss")):
        if not a.dir:
            p.error("--dir is needed for a model with experts")
        compare_experts(a)
        return
    if a.shape != "llama":
        with tempfile.TemporaryDirectory() as path:
            compare_shape(a, a.dir or path)
        return
    for kind in a.types.split(","):
        with tempfile.TemporaryDirectory() as path:
            make(path, "f16" if kind in QUANTISED else kind)
            model, file = path, os.path.join(path, "model.gguf")
            if kind in QUANTISED:
                file = os.path.join(path, f"{kind}.gguf")
                if kind == "q4_k":
                    quantise(os.path.join(path, "model.gguf"), file, kind)
                else:
                    subprocess.run([a.quire, "quantize", "--model", path, "--to", kind, "--out", file], check=True, capture_output=True)
                model = file
            for batch in map(int, a.batches.split(",")):
                compare(a, kind, model, file, batch)


def compare_shape(a, path):
    import hybrid_shapes
    whole = os.path.join(path, f"{a.shape}-bf16.gguf")
    if not os.path.exists(whole):
        hybrid_shapes.make(whole + ".part", a.shape, 8192)
        os.rename(whole + ".part", whole)
    for kind in a.types.split(","):
        file = os.path.join(path, f"{a.shape}-{kind}.gguf")
        if not os.path.exists(file):
            quantise(whole, file + ".part", kind)
            os.rename(file + ".part", file)
        for batch in map(int, a.batches.split(",")):
            compare(a, kind, file, file, batch)


def compare_experts(a):
    import expert_shapes
    for kind in a.types.split(","):
        file = os.path.join(a.dir, f"{a.shape.replace(':', '-')}-{kind}.gguf")
        if not os.path.exists(file):
            expert_shapes.make(file + ".part", a.shape, kind, 8192)
            os.rename(file + ".part", file)
        for batch in map(int, a.batches.split(",")):
            read, experts = expert_shapes.read_per_step(a.shape, kind, batch, a.prompt + a.new // 2)
            seconds = compare(a, kind, file, file, batch)
            rate = {name: round(read / second / 1e9, 2) for name, second in seconds.items()}
            share = {name: round(value / a.bandwidth, 2) for name, value in rate.items()} if a.bandwidth else None
            print(json.dumps({"routing": "random, about uniform", "experts of a layer": round(experts, 1),
                              "bytes a token": round(read / batch), "GB/s": rate, "share of bandwidth": share}), flush=True)


def compare(a, kind, model, file, batch):
    """Prints the speeds, and returns the seconds of a decode step."""
    ours, theirs = [], []
    for _ in range(a.rounds):
        ours.append(quire(a.quire, model, batch, a.prompt, a.new, a.threads, a.options.split()))
        run = subprocess.run([sys.executable, __file__, a.quire, "--llama-cpp", file, str(batch), "--prompt", str(a.prompt), "--new",
                              str(a.new), "--threads", str(a.threads)], check=True, capture_output=True, text=True)
        theirs.append(json.loads(run.stdout.splitlines()[-1]))
    prefill = lambda seconds: batch * a.prompt / seconds
    decode = lambda seconds: batch * (a.new - 1) / seconds
    median = lambda values: statistics.median(values)
    ours = median(prefill(s[0]) for s in ours), median(decode(s[1]) for s in ours)
    theirs = median(prefill(s[0]) for s in theirs), median(decode(s[1]) for s in theirs)
    print(json.dumps({
        "shape": a.shape, "type": kind, "batch": batch, "prompt": a.prompt, "threads": a.threads,
        "prefill": {"quire": round(ours[0]), "llama.cpp": round(theirs[0]), "ratio": round(ours[0] / theirs[0], 2)},
        "decode": {"quire": round(ours[1], 1), "llama.cpp": round(theirs[1], 1), "ratio": round(ours[1] / theirs[1], 2)}}), flush=True)
    return {"quire": batch / ours[1], "llama.cpp": batch / theirs[1]}


main()
