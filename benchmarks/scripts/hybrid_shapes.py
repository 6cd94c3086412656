"""Models with random weights in the shapes of current small models, as GGUF files in bf16. Both Quire and llama.cpp read the same file."""
import gguf
import numpy as np

from small_llama import random_weights, stored

# Sizes as published in each model's config.json.
SHAPES = {
    "gemma3-1b": dict(arch="gemma3", hidden=1152, layers=26, heads=4, kv_heads=1, head=256, feed_forward=6912, vocab=262144, window=512,
                      theta=1e6, tied=True),
    "olmo2-1b": dict(arch="olmo2", hidden=2048, layers=16, heads=16, kv_heads=16, head=128, feed_forward=8192, vocab=100352, window=None,
                     theta=5e5, tied=False),
    # Three of four layers are gated delta nets.
    "qwen3.5-0.8b": dict(arch="qwen35", hidden=1024, layers=24, heads=8, kv_heads=2, head=256, feed_forward=3584, vocab=248320, window=None,
                         theta=1e7, tied=True, rotated=64, interval=4, kernel=4, state_heads=16, state=128),
}


def tensors(s):
    """Yields the GGUF names of a shape's tensors, with their shapes."""
    hidden, queries, keys = s["hidden"], s["heads"] * s["head"], s["kv_heads"] * s["head"]
    gemma = s["arch"] == "gemma3"
    yield "token_embd", (s["vocab"], hidden)
    yield "output_norm", (hidden,)
    if not s["tied"]:
        yield "output", (s["vocab"], hidden)
    for i in range(s["layers"]):
        if s["arch"] == "qwen35":
            yield from ((f"blk.{i}.{name}", shape) for name, shape in qwen35(s, i))
            continue
        before = [("attn_norm", (hidden,)), ("ffn_norm", (hidden,))] if gemma else []
        norms = [("attn_q_norm", (s["head"] if gemma else queries,)), ("attn_k_norm", (s["head"] if gemma else keys,))]
        for name, shape in before + norms + [
                ("attn_q", (queries, hidden)), ("attn_k", (keys, hidden)), ("attn_v", (keys, hidden)), ("attn_output", (hidden, queries)),
                ("post_attention_norm", (hidden,)), ("ffn_gate", (s["feed_forward"], hidden)), ("ffn_up", (s["feed_forward"], hidden)),
                ("ffn_down", (hidden, s["feed_forward"])), ("post_ffw_norm", (hidden,))]:
            yield f"blk.{i}.{name}", shape


def qwen35(s, i):
    """Yields the tensors of layer `i`. Queries have gates, and all heads of states have keys of their own."""
    hidden, queries, keys, inner = s["hidden"], s["heads"] * s["head"], s["kv_heads"] * s["head"], s["state_heads"] * s["state"]
    yield from [("attn_norm", (hidden,)), ("post_attention_norm", (hidden,)), ("ffn_gate", (s["feed_forward"], hidden)),
                ("ffn_up", (s["feed_forward"], hidden)), ("ffn_down", (hidden, s["feed_forward"]))]
    if (i + 1) % s["interval"] == 0:
        yield from [("attn_q", (2 * queries, hidden)), ("attn_k", (keys, hidden)), ("attn_v", (keys, hidden)),
                    ("attn_output", (hidden, queries)), ("attn_q_norm", (s["head"],)), ("attn_k_norm", (s["head"],))]
    else:
        yield from [("attn_qkv", (3 * inner, hidden)), ("attn_gate", (inner, hidden)), ("ssm_out", (hidden, inner)),
                    ("ssm_alpha", (s["state_heads"], hidden)), ("ssm_beta", (s["state_heads"], hidden)), ("ssm_norm", (s["state"],)),
                    ("ssm_conv1d", (3 * inner, s["kernel"])), ("ssm_a", (s["state_heads"],)), ("ssm_dt.bias", (s["state_heads"],))]


def make(path, name, positions):
    """Writes the GGUF file `path`."""
    s, random = SHAPES[name], np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, s["arch"])
    writer.add_context_length(positions), writer.add_embedding_length(s["hidden"]), writer.add_block_count(s["layers"])
    writer.add_feed_forward_length(s["feed_forward"]), writer.add_head_count(s["heads"]), writer.add_head_count_kv(s["kv_heads"])
    writer.add_key_length(s["head"]), writer.add_value_length(s["head"]), writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(s["theta"]), writer.add_rope_dimension_count(s.get("rotated", s["head"])), writer.add_vocab_size(s["vocab"])
    if s["window"]:
        writer.add_sliding_window(s["window"])
    if s["arch"] == "qwen35":
        writer.add_ssm_conv_kernel(s["kernel"]), writer.add_ssm_state_size(s["state"]), writer.add_ssm_group_count(s["state_heads"])
        writer.add_ssm_time_step_rank(s["state_heads"]), writer.add_ssm_inner_size(s["state_heads"] * s["state"])
        writer.add_uint32("qwen35.full_attention_interval", s["interval"]), writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_tokenizer_model("llama"), writer.add_token_list([f"t{i}".encode() for i in range(s["vocab"])])
    writer.add_token_scores([0.0] * s["vocab"]), writer.add_token_types([1] * s["vocab"])
    writer.add_bos_token_id(1), writer.add_eos_token_id(2)
    for tensor, shape in tensors(s):
        values = random_weights(random, shape)
        if tensor.endswith("ssm_a"):
            # The negative rate of decay.
            writer.add_tensor(tensor, -0.1 * values, raw_dtype=gguf.GGMLQuantizationType.F32)
        elif values.ndim == 1 or tensor.endswith("conv1d"):
            writer.add_tensor(tensor if tensor.endswith("bias") else tensor + ".weight", values, raw_dtype=gguf.GGMLQuantizationType.F32)
        else:
            writer.add_tensor(tensor + ".weight", stored(values, "bf16").view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
