"""Models with experts and random weights as GGUF files, in the shapes of benchmarks/simulator/configs. Quire and llama.cpp read the same
file. A shape may be cut to its first layers: `qwen3-30b-a3b:12`. Weights are random groups of the file's type, written tensor by tensor,
so no more than one tensor is in memory. Random routers choose all experts about equally often."""
import json, os

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

CONFIGS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../simulator/configs")
ARCHITECTURES = {"Qwen3MoeForCausalLM": "qwen3moe", "GptOssForCausalLM": "gpt-oss"}
KINDS = {"q4_0": Q.Q4_0, "q8_0": Q.Q8_0, "mxfp4": Q.MXFP4, "f32": Q.F32}
GROUP = 32


def config(shape):
    """Returns the configuration of `name` or `name:layers`."""
    name, _, layers = shape.partition(":")
    with open(os.path.join(CONFIGS, f"{name}.json")) as file:
        c = json.load(file)
    c["num_hidden_layers"] = int(layers or c["num_hidden_layers"])
    c["architecture"] = ARCHITECTURES[c["architectures"][0]]
    c["experts"] = c.get("num_experts") or c["num_local_experts"]
    c["inner"] = c.get("moe_intermediate_size") or c["intermediate_size"]
    return c


def tensors(c, kind):
    """Yields GGUF names with shapes and types. Only experts are in mxfp4, as in llama.cpp's files."""
    dense = "q8_0" if kind == "mxfp4" else kind
    hidden, inner, experts, is_oss = c["hidden_size"], c["inner"], c["experts"], c["architecture"] == "gpt-oss"
    queries, keys = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    yield "token_embd.weight", (c["vocab_size"], hidden), "q8_0"
    yield "output_norm.weight", (hidden,), "f32"
    yield "output.weight", (c["vocab_size"], hidden), "q8_0"
    for i in range(c["num_hidden_layers"]):
        layer = f"blk.{i}."
        for name, outputs, inputs in [("attn_q", queries, hidden), ("attn_k", keys, hidden), ("attn_v", keys, hidden),
                                      ("attn_output", hidden, queries), ("ffn_gate_inp", experts, hidden)]:
            yield f"{layer}{name}.weight", (outputs, inputs), "f32" if name == "ffn_gate_inp" else dense
            if is_oss:
                yield f"{layer}{name}.bias", (outputs,), "f32"
        for name, outputs, inputs in [("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)]:
            yield f"{layer}ffn_{name}_exps.weight", (experts, outputs, inputs), kind
            if is_oss:
                yield f"{layer}ffn_{name}_exps.bias", (experts, outputs), "f32"
        yield f"{layer}attn_norm.weight", (hidden,), "f32"
        yield f"{layer}{'post_attention_norm' if is_oss else 'ffn_norm'}.weight", (hidden,), "f32"
        for name, size in [("attn_sinks", c["num_attention_heads"])] if is_oss else [("attn_q_norm", c["head_dim"]), ("attn_k_norm", c["head_dim"])]:
            yield f"{layer}{name}.weight", (size,), "f32"


def size_of(kind):
    """Returns the bytes of an element."""
    elements, size = gguf.GGML_QUANT_SIZES[KINDS[kind]]
    return size / elements


def random_tensor(random, name, shape, kind):
    """Returns the bytes of a tensor whose elements are below 0.1."""
    if kind == "f32":
        if "norm" in name:
            return np.ones(shape, np.float32)
        spread = 0.05 if len(shape) > 1 or name.endswith("bias") else 1.0
        return random.uniform(-spread, spread, shape).astype(np.float32)
    groups = (*shape[:-1], shape[-1] // GROUP)
    scales = {"q4_0": 0.05 / 8, "q8_0": 0.05 / 127}
    if kind == "mxfp4":
        scale = random.integers(120, 122, (*groups, 1), dtype=np.uint8)
    else:
        scale = (random.uniform(0.5, 1, (*groups, 1)) * scales[kind]).astype(np.float16).view(np.uint8)
    codes = random.integers(0, 256, (*groups, 32 if kind == "q8_0" else 16), dtype=np.uint8)
    return np.concatenate([scale, codes], -1).reshape(*shape[:-1], -1)


def add_settings(writer, c, positions):
    writer.add_context_length(positions), writer.add_embedding_length(c["hidden_size"]), writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"]), writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"]), writer.add_key_length(c["head_dim"]), writer.add_value_length(c["head_dim"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"]), writer.add_rope_freq_base(float(c["rope_theta"]))
    writer.add_rope_dimension_count(c["head_dim"]), writer.add_vocab_size(c["vocab_size"])
    writer.add_expert_count(c["experts"]), writer.add_expert_used_count(c["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(c["inner"])
    if c["architecture"] == "gpt-oss":
        rope = c["rope_scaling"]
        writer.add_sliding_window(c["sliding_window"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN), writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"]), writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    writer.add_tokenizer_model("llama"), writer.add_token_list([f"t{i}".encode() for i in range(c["vocab_size"])])
    writer.add_token_scores([0.0] * c["vocab_size"]), writer.add_token_types([1] * c["vocab_size"])
    writer.add_bos_token_id(1), writer.add_eos_token_id(2)


def make(path, shape, kind, positions):
    """Writes the GGUF file `path`."""
    c, random = config(shape), np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, c["architecture"])
    add_settings(writer, c, positions)
    for name, extents, kind_of in tensors(c, kind):
        row = extents[-1] if kind_of == "f32" else round(extents[-1] * size_of(kind_of))
        dtype = np.dtype(np.float32 if kind_of == "f32" else np.uint8)
        stored = (*extents[:-1], row)
        writer.add_tensor_info(name, stored, dtype, int(np.prod(stored)) * dtype.itemsize, KINDS[kind_of])
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_ti_data_to_file()
    for name, extents, kind_of in tensors(c, kind):
        writer.write_tensor_data(random_tensor(random, name, extents, kind_of))
    writer.close()


def read_per_step(shape, kind, batch, context):
    """Returns the bytes that a decode step must read, and the number of experts of a layer among them. Under uniform routing, `batch`
    tokens that each use k of E experts are expected to use E (1 - (1 - k / E)^batch). Keys and values are in f32."""
    c = config(shape)
    used = c["experts"] * (1 - (1 - c["num_experts_per_tok"] / c["experts"]) ** batch)
    total = 0
    for name, extents, kind_of in tensors(c, kind):
        share = used / c["experts"] if "_exps" in name else batch / c["vocab_size"] if name.startswith("token_embd") else 1
        total += share * np.prod(extents) * size_of(kind_of)
    is_windowed = [c["architecture"] == "gpt-oss" and i % 2 == 0 for i in range(c["num_hidden_layers"])]
    seen = sum(min(context, c["sliding_window"]) if windowed else context for windowed in is_windowed)
    return total + 2 * 4 * seen * batch * c["num_key_value_heads"] * c["head_dim"], used
