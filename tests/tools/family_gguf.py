"""Writes the GGUF files of fixtures/gguf/families with the `gguf` package: the models of fixtures/families with the metadata,
names and transformed weights that llama.cpp's converter gives them.

    pip install gguf==0.19.0 numpy==2.4.6
    python tests/tools/family_gguf.py

Two of the settings are not written by llama.cpp's converter, because the published models of these families do not need
them: `attention.scale` of Gemma 2 and 3, and `attention.sliding_window_pattern` of Gemma 3.
"""

import json
import math
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf_files import FIXTURES, add_tokenizer, permuted, tensors

OUT = FIXTURES / "gguf" / "families"
ARCHITECTURES = {
    "gemma2": "gemma2", "gemma3": "gemma3", "gemma4": "gemma4", "gemma4-e": "gemma4", "olmo2": "olmo2", "olmo3": "olmo2",
    "cohere2": "cohere2", "smollm3": "smollm3", "phi3": "phi3", "glm4": "glm4", "granite": "granite",
    "mixtral": "llama", "qwen2-moe": "qwen2moe", "qwen3-moe": "qwen3moe", "gpt-oss": "gpt-oss", "gemma4-moe": "gemma4",
    "granitemoe": "granitemoe", "qwen3.5": "qwen35", "qwen3.5-moe": "qwen35moe", "qwen3-next": "qwen3next",
    "deepseek2": "deepseek2", "deepseek3": "deepseek2", "granite4": "granitehybrid", "granite4-dense": "granitehybrid", "lfm2": "lfm2",
}  # fmt: skip
# These families' models have character-level tokenizers.
SENTENCEPIECE = ("gemma2", "gemma3", "gemma4")
# The norms of these families multiply by one plus their weight, which files contain as one number.
OFFSET_NORMS = ("gemma2", "gemma3", "qwen35", "qwen35moe", "qwen3next")
# llama.cpp rotates adjacent elements in these families, and the models elements half a head apart.
PERMUTED = ("smollm3", "granite", "granitemoe", "granitehybrid", "llama")
# The package's names of architectures whose names are spelled differently in files.
PACKAGE_NAMES = {"gpt-oss": "GPT_OSS", "granitemoe": "GRANITE_MOE", "granitehybrid": "GRANITE_HYBRID"}
WINDOWED, FULL = "sliding_attention", "full_attention"


def configuration(directory):
    """Returns the configuration as transformers 5 spells it."""
    for name in ("config.json", "other.json"):
        config = json.loads((directory / name).read_text())
        if "torch_dtype" not in config:
            return config
    raise ValueError(directory)


def add_shape(writer, config, head_dim):
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    if "intermediate_size" in config:
        writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["norm_eps"])
    if "layer_norm_eps" in config:
        writer.add_layer_norm_eps(config["layer_norm_eps"])
    if config.get("head_dim"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)


def add_rope(writer, config):
    rope = config["rope_parameters"]
    full = rope.get(FULL, rope)
    writer.add_rope_freq_base(full["rope_theta"])
    if WINDOWED in rope:
        writer.add_rope_freq_base_swa(rope[WINDOWED]["rope_theta"])
    kind = full["rope_type"]
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(full["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(full["factor"])
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(full["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(full["beta_slow"])


def add_gemma(writer, arch, config):
    writer.add_sliding_window(config["sliding_window"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if arch != "gemma4":
        writer.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)
    windowed = [kind == WINDOWED for kind in config["layer_types"]]
    if arch != "gemma2":
        writer.add_sliding_window_pattern(windowed)
        add_rope(writer, config)
    if arch == "gemma4":
        add_gemma4(writer, config, windowed)


def add_gemma4(writer, config, windowed):
    layers, shared = len(windowed), config["num_kv_shared_layers"]
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    full = next(iter(config["per_layer_config"].values()))
    head_dim = full["head_dim"]
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_dimension_count_swa(config["head_dim"])
    if config["use_double_wide_mlp"]:
        inner = config["intermediate_size"]
        writer.add_feed_forward_length([inner if layer < layers - shared else 2 * inner for layer in range(layers)])
    if "num_key_value_heads" in full:
        own = config["num_key_value_heads"]
        writer.add_head_count_kv([own if is_windowed else full["num_key_value_heads"] for is_windowed in windowed])
    # Elements that are not rotated have a frequency of nearly zero.
    rotated = int(head_dim * config["rope_parameters"][FULL]["partial_rotary_factor"]) // 2
    factors = [1.0] * rotated + [1e30] * (head_dim // 2 - rotated)
    writer.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))


def add_deepseek(writer, config):
    """Writes the settings of DeepSeek: V2's as the first versions of llama.cpp that knew it, V3's as today."""
    rank, rotated, unrotated = (config[name] for name in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim"))
    writer.add_kv_lora_rank(rank)
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_rope_dimension_count(rotated)
    if config["model_type"] == "deepseek_v2":
        writer.add_key_length(unrotated + rotated)
        writer.add_value_length(config["v_head_dim"])
    else:
        writer.add_head_count_kv(1)
        writer.add_key_length(rank + rotated)
        writer.add_value_length(rank)
        writer.add_key_length_mla(unrotated + rotated)
        writer.add_value_length_mla(config["v_head_dim"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    rope = config["rope_parameters"]
    if rope["rope_type"] == "yarn":
        magnitude = lambda name: 0.1 * rope[name] * math.log(rope["factor"]) + 1
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
        # llama.cpp's converter does not write this factor, which is 1 in published models.
        writer.add_rope_scaling_yarn_attn_factor(magnitude("mscale") / magnitude("mscale_all_dim"))


def add_experts(writer, arch, config):
    count = config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts")
    if not count:
        return
    writer.add_expert_count(count)
    writer.add_expert_used_count(config.get("num_experts_per_tok") or config["top_k_experts"])
    size = config["intermediate_size"] if arch == "gpt-oss" else config.get("moe_intermediate_size")
    if size:
        writer.add_expert_feed_forward_length(size)
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def add_phi3(writer, config, head_dim):
    rope = config["rope_parameters"]
    original = rope["original_max_position_embeddings"]
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_rope_dimension_count(int(rope["partial_rotary_factor"] * head_dim))
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_sliding_window(config["sliding_window"] or 0)
    scale = config["max_position_embeddings"] / original
    writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
    for length in ("long", "short"):
        writer.add_tensor(f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], dtype=np.float32))


def add_states(writer, arch, config, head_dim):
    """Writes the sizes of layers that keep a state."""
    if arch == "lfm2":
        writer.add_head_count_kv([config["num_key_value_heads"] if kind in (FULL, "attention") else 0 for kind in config["layer_types"]])
        writer.add_shortconv_l_cache(config["conv_L_cache"])
        inner = 2 * config["intermediate_size"] // 3
        multiple = config["block_multiple_of"]
        writer.add_feed_forward_length(-(-inner // multiple) * multiple)
    if arch == "granitehybrid":
        writer.add_head_count_kv([config["num_key_value_heads"] if kind in (FULL, "attention") else 0 for kind in config["layer_types"]])
        writer.add_ssm_conv_kernel(config["mamba_d_conv"])
        writer.add_ssm_state_size(config["mamba_d_state"])
        writer.add_ssm_group_count(config["mamba_n_groups"])
        writer.add_ssm_inner_size(config["mamba_expand"] * config["hidden_size"])
        writer.add_ssm_time_step_rank(config["mamba_n_heads"])
        writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")
        if config["num_local_experts"]:
            writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
        else:
            writer.add_feed_forward_length(config["shared_intermediate_size"])
    if arch.startswith(("qwen35", "qwen3next")):
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
        writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
        writer.add_uint32(f"{arch}.full_attention_interval", config["layer_types"].index(FULL) + 1)
        writer.add_rope_dimension_count(int(head_dim * config["rope_parameters"]["partial_rotary_factor"]))
        if arch != "qwen3next":
            writer.add_rope_dimension_sections([11, 11, 10, 0])


def add_settings(writer, arch, config, head_dim):
    """Writes the settings of one architecture."""
    if arch.startswith("gemma"):
        add_gemma(writer, arch, config)
        return
    if arch == "phi3":
        add_phi3(writer, config, head_dim)
        return
    if config.get("rope_parameters"):
        add_rope(writer, config)
    add_states(writer, arch, config, head_dim)
    if arch == "olmo2" and "sliding_window" in config:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == WINDOWED for kind in config["layer_types"]])
    if arch == "cohere2":
        writer.add_logit_scale(config["logit_scale"])
        writer.add_sliding_window(config["sliding_window"])
        writer.add_rope_dimension_count(head_dim)
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if arch == "deepseek2":
        add_deepseek(writer, config)
    if arch == "glm4":
        writer.add_rope_dimension_count(int(head_dim * config["rope_parameters"]["partial_rotary_factor"]))
    if arch in PERMUTED:
        writer.add_vocab_size(config["vocab_size"])
        writer.add_rope_dimension_count(head_dim)
    if arch == "gpt-oss":
        writer.add_sliding_window(config["sliding_window"])
    if arch.startswith("granite"):
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])


def one_tensor_per_projection(arch, config, found):
    """Returns the tensors in which each projection of all experts of a layer is one tensor, as files have them."""
    merged = {}
    for name, (dtype, x) in found.items():
        parts = name.split(".experts.")
        if len(parts) == 2 and parts[1][0].isdigit():
            number, part = parts[1].split(".", 1)
            part = {"w1.weight": "gate_proj.weight", "w2.weight": "down_proj.weight", "w3.weight": "up_proj.weight"}.get(part, part)
            layer = parts[0].replace("block_sparse_moe", "mlp")
            merged.setdefault(f"{layer}.experts.{part}", (dtype, {}))[1][int(number)] = x
            continue
        stem, is_bias = name.removesuffix("_bias"), name.endswith("_bias")
        if stem.endswith(("experts.gate_up_proj", "experts.down_proj", "input_linear.weight", "output_linear.weight")):
            if arch == "gpt-oss" and not is_bias:
                x = x.swapaxes(1, 2)
            stem = stem.replace("block_sparse_moe", "mlp")
            stem = stem.replace("input_linear.weight", "experts.gate_up_proj").replace("output_linear.weight", "experts.down_proj")
            kind = "bias" if is_bias else "weight"
            if stem.endswith("gate_up_proj") and arch != "gemma4":
                halves = (x[:, ::2], x[:, 1::2]) if arch == "gpt-oss" else np.split(x, 2, axis=1)
                for half, part in zip(halves, ("gate", "up")):
                    merged[stem.replace("gate_up", part) + "." + kind] = (dtype, half)
            else:
                merged[f"{stem}.{kind}"] = (dtype, x)
            continue
        merged[name] = (dtype, x)
    stacked = lambda x: np.stack([x[i] for i in range(len(x))]) if isinstance(x, dict) else x
    return {name: (dtype, stacked(x)) for name, (dtype, x) in merged.items()}


def tiled(x, config, size, first=0, axis=0):
    """Returns a tensor with the value heads of Qwen3.5 in the order of files: the first of each key head, then the second."""
    x = np.moveaxis(x, axis, 0)
    keys = config["linear_num_key_heads"]
    heads = x[first:].reshape(keys, -1, size, *x.shape[1:]).swapaxes(0, 1).reshape(-1, *x.shape[1:])
    return np.moveaxis(np.concatenate([x[:first], heads]), 0, axis)


def state_tensors(arch, config, name, x):
    """Returns a tensor of a layer that keeps a state, or of a shared expert of Granite 4, with its names in files."""
    part = name.split(".", 3)[3] if name.startswith("model.layers.") else ""
    if arch == "lfm2" and part == "conv.conv.weight":
        return {"shortconv.conv.weight": x[:, 0]}
    if part.startswith("shared_mlp."):
        suffix = "_shexp" if config["num_local_experts"] else ""
        if "output_linear" in part:
            return {f"ffn_down{suffix}.weight": x}
        return dict(zip((f"ffn_gate{suffix}.weight", f"ffn_up{suffix}.weight"), np.split(x, 2)))
    kind, _, part = part.partition(".")
    names = {"conv1d.weight": "ssm_conv1d.weight", "conv1d.bias": "ssm_conv1d.bias", "dt_bias": "ssm_dt.bias", "A_log": "ssm_a", "D": "ssm_d"}
    names |= {"norm.weight": "ssm_norm.weight", "out_proj.weight": "ssm_out.weight", "in_proj.weight": "ssm_in.weight"}
    names |= {"in_proj_qkv.weight": "attn_qkv.weight", "in_proj_z.weight": "attn_gate.weight", "in_proj_ba.weight": "ssm_ba.weight"}
    names |= {"in_proj_b.weight": "ssm_beta.weight", "in_proj_a.weight": "ssm_alpha.weight"}
    if part == "A_log":
        x = -np.exp(x)
    if part == "conv1d.weight":
        x = x[:, 0]
    if kind == "mamba":
        shapes = {"A_log": (-1, 1), "D": (-1, 1), "norm.weight": (config["mamba_n_groups"], -1)}
        return {names[part]: x.reshape(shapes[part]) if part in shapes else x}
    if kind != "linear_attn":
        return None
    keys, size = config["linear_num_key_heads"] * config["linear_key_head_dim"], config["linear_value_head_dim"]
    if part == "in_proj_qkvz.weight":
        rows = config["linear_num_value_heads"] * size // config["linear_num_key_heads"]
        dim = config["linear_key_head_dim"]
        groups = x.reshape(config["linear_num_key_heads"], -1, x.shape[1])
        q, k, v, z = (part.reshape(-1, x.shape[1]) for part in np.split(groups, [dim, 2 * dim, 2 * dim + rows], axis=1))
        return {"attn_qkv.weight": np.concatenate([q, k, v]), "attn_gate.weight": z}
    if arch != "qwen3next":
        if part in ("in_proj_qkv.weight", "conv1d.weight"):
            x = tiled(x, config, size, first=2 * keys)
        if part == "in_proj_z.weight":
            x = tiled(x, config, size)
        if part in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
            x = tiled(x, config, 1)
        if part == "out_proj.weight":
            x = tiled(x, config, size, axis=1)
    return {names[part]: x}


def split_latents(config, found):
    """Returns the tensors with two stacks of matrices in place of the projection from latent vectors."""
    split = {}
    for name, (dtype, x) in found.items():
        if "kv_b_proj" in name:
            x = x.reshape(config["num_attention_heads"], -1, x.shape[1])
            keys = x[:, : config["qk_nope_head_dim"]].swapaxes(1, 2)
            split[name.replace("kv_b", "k_b")] = (dtype, np.ascontiguousarray(keys))
            split[name.replace("kv_b", "v_b")] = (dtype, x[:, config["qk_nope_head_dim"] :])
        else:
            split[name] = (dtype, x)
    return split


def add_weights(writer, arch, config, found):
    package_name = PACKAGE_NAMES.get(arch, arch.upper())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[package_name], config["num_hidden_layers"])
    dense = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    states = {name: tensors for name, (_, x) in found.items() if (tensors := state_tensors(arch, config, name, x))}
    for name, tensors in states.items():
        for theirs, x in tensors.items():
            theirs = f"blk.{name.split('.')[2]}.{theirs}"
            if x.ndim == 1 or "conv" in theirs and "proj" not in theirs or theirs.endswith(("ssm_a", "ssm_d", "norm.weight")):
                writer.add_tensor(theirs, np.ascontiguousarray(x, dtype=np.float32))
            else:
                writer.add_tensor(theirs, gguf.quantize(np.ascontiguousarray(x), Q.BF16), raw_dtype=Q.BF16)
    found = one_tensor_per_projection(arch, config, {name: x for name, x in found.items() if name not in states})
    if config["model_type"] == "deepseek_v3":
        found = split_latents(config, found)
    for name, (_, x) in found.items():
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        if name.endswith(("layer_scalar", "sinks")):
            name += ".weight"
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        # llama.cpp knows no dense layers of some architectures with experts.
        theirs = theirs or dense.get_name(name, try_suffixes=(".weight", ".bias"))
        for own, part in ((".router.scale", "ffn_gate_inp"), (".router.per_expert_scale", "ffn_down_exps")):
            if name.endswith(own):
                theirs = f"blk.{name.split('.')[2]}.{part}.scale"
        if name.endswith("shared_expert_gate.weight"):
            x = x.reshape(-1)
        assert theirs, name
        if arch in OFFSET_NORMS and name.endswith("norm.weight"):
            x = x + np.float32(1)
        if arch in PERMUTED and ".q_proj." in name:
            x = permuted(x, config["num_attention_heads"])
        if arch in PERMUTED and ".k_proj." in name:
            x = permuted(x, config["num_key_value_heads"])
        if x.ndim == 1 or theirs.endswith(("bias", "ffn_gate_inp.weight")):
            writer.add_tensor(theirs, x)
        else:
            writer.add_tensor(theirs, gguf.quantize(x, Q.BF16), raw_dtype=Q.BF16)


def convert(model, arch):
    directory = FIXTURES / "families" / model
    config = configuration(directory)
    writer = gguf.GGUFWriter(OUT / f"{model}.gguf", arch)
    # llama.cpp looks up tokens of Phi 3 if the name says "phi3".
    writer.add_name(model.replace("phi3", "phi"))
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    # Of a setting that is written twice, the second is used.
    add_shape(writer, config, head_dim)
    add_settings(writer, arch, config, head_dim)
    add_experts(writer, arch, config)
    has_characters = arch in SENTENCEPIECE
    source = FIXTURES / "golden" / "llama2" if has_characters else directory
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    add_tokenizer(writer, model, tokenizer, config, config["vocab_size"], merged=arch == "gemma4")
    if has_characters:
        writer.add_add_space_prefix(False)
    writer.add_add_bos_token(True)
    add_weights(writer, arch, config, tensors(directory))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for path in OUT.glob("*.gguf"):
        path.unlink()
    for model, arch in ARCHITECTURES.items():
        convert(model, arch)
