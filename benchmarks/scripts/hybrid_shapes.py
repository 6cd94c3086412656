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
        before = [("attn_norm", (hidden,)), ("ffn_norm", (hidden,))] if gemma else []
        norms = [("attn_q_norm", (s["head"] if gemma else queries,)), ("attn_k_norm", (s["head"] if gemma else keys,))]
        for name, shape in before + norms + [
                ("attn_q", (queries, hidden)), ("attn_k", (keys, hidden)), ("attn_v", (keys, hidden)), ("attn_output", (hidden, queries)),
                ("post_attention_norm", (hidden,)), ("ffn_gate", (s["feed_forward"], hidden)), ("ffn_up", (s["feed_forward"], hidden)),
                ("ffn_down", (hidden, s["feed_forward"])), ("post_ffw_norm", (hidden,))]:
            yield f"blk.{i}.{name}", shape


def make(path, name, positions):
    """Writes the GGUF file `path`."""
    s, random = SHAPES[name], np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, s["arch"])
    writer.add_context_length(positions), writer.add_embedding_length(s["hidden"]), writer.add_block_count(s["layers"])
    writer.add_feed_forward_length(s["feed_forward"]), writer.add_head_count(s["heads"]), writer.add_head_count_kv(s["kv_heads"])
    writer.add_key_length(s["head"]), writer.add_value_length(s["head"]), writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(s["theta"]), writer.add_rope_dimension_count(s["head"]), writer.add_vocab_size(s["vocab"])
    if s["window"]:
        writer.add_sliding_window(s["window"])
    writer.add_tokenizer_model("llama"), writer.add_token_list([f"t{i}".encode() for i in range(s["vocab"])])
    writer.add_token_scores([0.0] * s["vocab"]), writer.add_token_types([1] * s["vocab"])
    writer.add_bos_token_id(1), writer.add_eos_token_id(2)
    for tensor, shape in tensors(s):
        values = random_weights(random, shape)
        if values.ndim == 1:
            writer.add_tensor(tensor + ".weight", values, raw_dtype=gguf.GGMLQuantizationType.F32)
        else:
            writer.add_tensor(tensor + ".weight", stored(values, "bf16").view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
