"""Writes the GGUF files of fixtures/gguf with the `gguf` package: golden models as llama.cpp's converter writes them, a model
of random weights in k-quants, and quantised groups with the package's dequantised elements.

    pip install gguf==0.19.0 numpy==2.4.6
    python tests/tools/gguf_files.py
"""

import json
import struct
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

FIXTURES = Path(__file__).parent.parent / "fixtures"
OUT = FIXTURES / "gguf"
ARCHITECTURES = {"llama2": "llama", "llama3": "llama", "qwen2": "qwen2", "gpt2": "gpt2"}
PRE = {"llama3": "llama-bpe", "qwen2": "qwen2", "gpt2": "gpt-2"}


def tensors(directory):
    """Returns all tensors by name: the element type, and the numbers in f32 (exact for each type)."""
    found = {}
    for path in sorted(directory.glob("model*.safetensors")):
        data = path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        for name, info in json.loads(data[8 : 8 + length]).items():
            if name == "__metadata__":
                continue
            begin, end = info["data_offsets"]
            raw = data[8 + length + begin : 8 + length + end]
            if info["dtype"] == "BF16":
                x = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
            else:
                x = np.frombuffer(raw, {"F32": np.float32, "F16": np.float16}[info["dtype"]]).astype(np.float32)
            found[name] = (info["dtype"], x.reshape(info["shape"]))
    return found


def permuted(x, heads):
    """Reorders rows for llama.cpp's rotation."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def add_tokenizer(writer, model, tokenizer, config, rows, merged=False):
    """Writes a tokenizer. If `merged`, a character-level one has the list of its merges, as Gemma 4 has."""
    vocabulary = dict(tokenizer["model"]["vocab"])
    added = {token["content"]: token for token in tokenizer["added_tokens"]}
    vocabulary.update({text: token["id"] for text, token in added.items()})
    texts = {id: text for text, id in vocabulary.items()}
    merges = [" ".join(m) if isinstance(m, list) else m for m in tokenizer["model"]["merges"]]
    sentencepiece = tokenizer["model"]["byte_fallback"]
    rank = {merge.replace(" ", ""): -float(i) for i, merge in reversed(list(enumerate(merges)))}
    tokens, kinds, scores = [], [], []
    for id in range(rows):
        text = texts.get(id, f"[PAD{id}]")
        kind = gguf.TokenType.NORMAL
        if id not in texts:
            kind = gguf.TokenType.UNUSED
        elif sentencepiece and text == tokenizer["model"]["unk_token"]:
            kind = gguf.TokenType.UNKNOWN
        elif text in added:
            kind = gguf.TokenType.CONTROL if added[text]["special"] else gguf.TokenType.USER_DEFINED
        elif sentencepiece and text.startswith("<0x") and len(text) == 6:
            kind = gguf.TokenType.BYTE
        tokens.append(text)
        kinds.append(kind)
        # Sentencepiece gives characters the lowest scores.
        scores.append(rank.get(text, -1e6 - id))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    eos = config["eos_token_id"]
    eos = eos if isinstance(eos, list) else [eos]
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(eos[0])
    if len(eos) > 1:
        writer.add_eot_token_id(eos[1])
    if sentencepiece:
        writer.add_tokenizer_model("gemma4" if merged else "llama")
        if merged:
            writer.add_token_merges(merges)
        else:
            writer.add_tokenizer_pre("default")
        writer.add_token_scores(scores)
        writer.add_unk_token_id(vocabulary[tokenizer["model"]["unk_token"]])
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(PRE.get(model, "gpt-2"))
        writer.add_token_merges(merges)


def add_config(writer, arch, config):
    hidden, heads = config.get("hidden_size", config.get("n_embd")), config.get("num_attention_heads", config.get("n_head"))
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    writer.add_context_length(config.get("max_position_embeddings", config.get("n_positions")))
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config.get("intermediate_size", 4 * hidden))
    writer.add_head_count(heads)
    if arch == "gpt2":
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        return layers, heads, heads
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    head_dim = config.get("head_dim", hidden // heads)
    writer.add_rope_dimension_count(head_dim)
    if "head_dim" in config:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    scaling = config.get("rope_scaling")
    if scaling:
        # As in llama.cpp's converter, from the paper's description of LLaMA 3.1.
        base, dim = config["rope_theta"], head_dim
        freqs = 1.0 / (base ** (np.arange(0, dim, 2, dtype=np.float32) / dim))
        low = scaling["original_max_position_embeddings"] / scaling["low_freq_factor"]
        high = scaling["original_max_position_embeddings"] / scaling["high_freq_factor"]
        factors = []
        for freq in freqs:
            length = 2 * np.pi / freq
            if length < high:
                factors.append(1.0)
            elif length > low:
                factors.append(scaling["factor"])
            else:
                smooth = (scaling["original_max_position_embeddings"] / length - scaling["low_freq_factor"]) / (
                    scaling["high_freq_factor"] - scaling["low_freq_factor"]
                )
                factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
        writer.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))
    return layers, heads, config["num_key_value_heads"]


def convert(model, arch, parts):
    directory = FIXTURES / "golden" / model
    config = json.loads((directory / "config.json").read_text())
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    found = tensors(directory)
    # If a model is divided into parts, the writer numbers them.
    limit = {"split_max_tensors": -(-(len(found) + 1) // parts)} if parts > 1 else {}
    writer = gguf.GGUFWriter(OUT / f"{model}.gguf", arch, **limit)
    writer.add_name(model)
    layers, heads, kv_heads = add_config(writer, arch, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], layers)
    add_tokenizer(writer, model, tokenizer, config, config["vocab_size"])
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    if isinstance(settings.get("chat_template"), str):
        writer.add_chat_template(settings["chat_template"])
    if "add_bos_token" in settings:
        writer.add_add_bos_token(settings["add_bos_token"])
    for name, (dtype, x) in found.items():
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias")) or names.get_name(
            "transformer." + name, try_suffixes=(".weight", ".bias")
        )
        if theirs is None:
            print(f"{model}: {name} is left out")
            continue
        if arch == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            x = np.ascontiguousarray(x.T)
        if arch == "llama" and ".q_proj." in name:
            x = permuted(x, heads)
        if arch == "llama" and ".k_proj." in name:
            x = permuted(x, kv_heads)
        if dtype == "F32" or x.ndim == 1:
            writer.add_tensor(theirs, x)
        elif dtype == "F16":
            writer.add_tensor(theirs, x.astype(np.float16))
        else:
            writer.add_tensor(theirs, gguf.quantize(x, Q.BF16), raw_dtype=Q.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rounded_k(x, kind):
    """Rounds random weights to groups of 256 in a simple way. The package cannot quantise to these types."""
    rows, cols = x.shape
    if kind == Q.Q6_K:
        parts = x.reshape(-1, 16, 16)
        scales = np.abs(parts).max(axis=-1) / 31
        d = (scales.max(axis=-1) / 127).astype(np.float16)
        small = np.clip(np.round(scales / np.float32(d)[:, None]), 1, 127)
        q = np.clip(np.round(parts / (np.float32(d)[:, None, None] * small[..., None])), -32, 31).astype(np.int8) + 32
        halves = q.astype(np.uint8).reshape(-1, 2, 4, 32)
        low, high = halves & 15, halves >> 4
        ql = np.concatenate([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], axis=-1)
        qh = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
        fields = [ql.reshape(-1, 128), qh.reshape(-1, 64), small.astype(np.int8).view(np.uint8), d.view(np.uint8).reshape(-1, 2)]
        return np.concatenate(fields, axis=-1).reshape(rows, -1)
    most = 15 if kind == Q.Q4_K else 31
    parts = x.reshape(-1, 8, 32)
    mins = np.maximum(-parts.min(axis=-1), 0)
    scales = (parts.max(axis=-1) + mins) / most
    d, dmin = ((v.max(axis=-1) / 63).astype(np.float16) for v in (scales, mins))
    sc = np.clip(np.round(scales / np.float32(d)[:, None]), 1, 63).astype(np.uint8)
    m = np.clip(np.round(mins / np.float32(dmin)[:, None]), 0, 63).astype(np.uint8)
    base = np.float32(dmin)[:, None, None] * m[..., None]
    q = np.clip(np.round((parts + base) / (np.float32(d)[:, None, None] * sc[..., None])), 0, most).astype(np.uint8)
    packed = np.concatenate(
        [sc[:, :4] | sc[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, sc[:, 4:] & 15 | (m[:, 4:] & 15) << 4], axis=-1
    )
    pairs = q.reshape(-1, 4, 2, 32)
    nibbles = (pairs[:, :, 0] & 15 | (pairs[:, :, 1] & 15) << 4).reshape(-1, 128)
    fields = [d.view(np.uint8).reshape(-1, 2), dmin.view(np.uint8).reshape(-1, 2), packed]
    if kind == Q.Q5_K:
        bits = (q >> 4) << np.arange(8, dtype=np.uint8)[:, None]
        fields.append(np.bitwise_or.reduce(bits, axis=1))
    return np.concatenate([*fields, nibbles], axis=-1).reshape(rows, -1)


def k_quants():
    """Writes a model of random weights in the types of a typical Q4_K_M file, and in Q5_K. It has a golden model's tokenizer."""
    random = np.random.default_rng(18)
    directory = FIXTURES / "golden" / "llama2"
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    config = {
        "max_position_embeddings": 256, "hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 512,
        "num_attention_heads": 8, "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "vocab_size": 512, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    writer = gguf.GGUFWriter(OUT / "k-quants.gguf", "llama")
    add_config(writer, "llama", config)
    add_tokenizer(writer, "k-quants", tokenizer, config, 512)

    def put(name, rows, cols, kind, size=0.06):
        x = random.normal(0, size, (rows, cols)).astype(np.float32)
        raw = rounded_k(x, kind)
        error = np.abs(gguf.dequantize(raw, kind) - x).max()
        assert error < size / 2, (name, error)
        writer.add_tensor(name, raw, raw_dtype=kind)

    def norm(name, size):
        writer.add_tensor(name, random.normal(1, 0.1, size).astype(np.float32))

    put("token_embd.weight", 512, 256, Q.Q4_K, 1.0)
    norm("output_norm.weight", 256)
    put("output.weight", 512, 256, Q.Q6_K)
    for layer in range(2):
        down = Q.Q6_K if layer == 0 else Q.Q5_K
        norm(f"blk.{layer}.attn_norm.weight", 256)
        norm(f"blk.{layer}.ffn_norm.weight", 256)
        for name, rows, cols, kind in [
            ("attn_q", 256, 256, Q.Q4_K), ("attn_k", 128, 256, Q.Q4_K), ("attn_v", 128, 256, down),
            ("attn_output", 256, 256, Q.Q4_K), ("ffn_gate", 512, 256, Q.Q4_K), ("ffn_up", 512, 256, Q.Q5_K),
            ("ffn_down", 256, 512, down),
        ]:  # fmt: skip
            put(f"blk.{layer}.{name}.weight", rows, cols, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def groups():
    """Writes random groups of each type with their elements, and elements with the groups that they are rounded to."""
    random = np.random.default_rng(17)
    writer = gguf.GGUFWriter(OUT / "groups.gguf", "none")
    for kind in (Q.Q8_0, Q.Q4_0, Q.Q4_K, Q.Q5_K, Q.Q6_K):
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        raw = random.integers(0, 256, (8, 512 // elements * size), dtype=np.uint8)
        halves = {Q.Q4_K: (0, 2), Q.Q5_K: (0, 2), Q.Q6_K: (size - 2,)}.get(kind, (0,))
        for group in range(512 // elements):
            for at in halves:
                scale = random.normal(0, 0.01, 8).astype(np.float16)
                raw[:, group * size + at : group * size + at + 2] = scale.reshape(8, 1).view(np.uint8)
        name = kind.name.lower()
        writer.add_tensor(name, raw, raw_dtype=kind)
        writer.add_tensor(f"{name}.elements", gguf.dequantize(raw, kind))
    x = random.normal(0, 0.02, (8, 512)).astype(np.float32)
    x[0, :32] = 0
    # Values halfway between two codes, and groups in which several elements have the greatest magnitude.
    x[1] = random.integers(-127, 128, 512) / 2
    x[2] = random.integers(-8, 9, 512) / 16
    writer.add_tensor("x", x)
    for kind in (Q.Q8_0, Q.Q4_0, Q.Q5_0, Q.MXFP4):
        writer.add_tensor(f"x.{kind.name.lower()}", gguf.quantize(x, kind), raw_dtype=kind)
    random = np.random.default_rng(19)
    for kind in (Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q2_K, Q.Q3_K, Q.IQ4_NL, Q.IQ4_XS, Q.MXFP4):
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        raw = random.integers(0, 256, (2, 512 // elements, size), dtype=np.uint8)
        halves = {Q.Q4_1: (0, 2), Q.Q5_1: (0, 2), Q.Q2_K: (80, 82), Q.Q3_K: (108,), Q.MXFP4: ()}.get(kind, (0,))
        for at in halves:
            raw[:, :, at : at + 2] = random.normal(0, 0.01, (2, 512 // elements, 1)).astype(np.float16).view(np.uint8)
        if kind == Q.MXFP4:
            raw[0, :5, 0] = 0, 1, 2, 254, 255
        raw = raw.reshape(2, -1)
        name = kind.name.lower()
        writer.add_tensor(name, raw, raw_dtype=kind)
        writer.add_tensor(f"{name}.elements", gguf.dequantize(raw, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for path in OUT.glob("*.gguf"):
        path.unlink()
    for model, arch in ARCHITECTURES.items():
        convert(model, arch, parts=2 if model == "llama3" else 1)
    groups()
    k_quants()
