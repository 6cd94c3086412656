"""A LLaMA of 125 million parameters for the comparisons on a CPU. It has 12 layers of 768, 12 query and 4 key-value heads of 64,
feed-forward layers of 2,048, and a vocabulary of 32,000."""
import json, os, shutil

import numpy as np

HIDDEN, LAYERS, FEED_FORWARD, VOCAB, HEADS, KV_HEADS, POSITIONS = 768, 12, 2048, 32000, 12, 4, 8192
KV = HIDDEN // HEADS * KV_HEADS
HERE = os.path.dirname(os.path.abspath(__file__))


def tensors():
    """Yields Hugging Face's names of all tensors, with their shapes."""
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)
    for i in range(LAYERS):
        for name, shape in [
                ("self_attn.q_proj", (HIDDEN, HIDDEN)), ("self_attn.k_proj", (KV, HIDDEN)), ("self_attn.v_proj", (KV, HIDDEN)),
                ("self_attn.o_proj", (HIDDEN, HIDDEN)), ("mlp.gate_proj", (FEED_FORWARD, HIDDEN)),
                ("mlp.up_proj", (FEED_FORWARD, HIDDEN)), ("mlp.down_proj", (HIDDEN, FEED_FORWARD)),
                ("input_layernorm", (HIDDEN,)), ("post_attention_layernorm", (HIDDEN,))]:
            yield f"model.layers.{i}.{name}.weight", shape


def random_weights(random, shape):
    """Returns ones for a norm, and small random numbers for a matrix."""
    return np.ones(shape, np.float32) if len(shape) == 1 else random.uniform(-0.05, 0.05, shape).astype(np.float32)


def stored(values, kind):
    """Converts elements to a file's type. numpy has no bf16, so these are stored as 16-bit integers."""
    if kind == "bf16":
        return ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
    return values.astype({"f32": np.float32, "f16": np.float16}[kind])


def write(path, kind, weights):
    """Writes a model directory. `weights` maps names to f32 arrays."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FEED_FORWARD,
              "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB,
              "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
              "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "attention_bias": False}
    with open(os.path.join(path, "config.json"), "w") as file:
        json.dump(config, file)
    shutil.copy(os.path.join(HERE, "../../tests/fixtures/golden/llama2/tokenizer.json"), path)
    header, offset = {}, 0
    for name, values in weights.items():
        bytes_ = values.size * (4 if kind == "f32" else 2)
        header[name] = {"dtype": kind.upper(), "shape": values.shape, "data_offsets": [offset, offset + bytes_]}
        offset += bytes_
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(path, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in weights.values():
            file.write(stored(values, kind).tobytes())
