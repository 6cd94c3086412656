"""Writes the checkpoints of fixtures/quantised: models' projections, rounded in a simple way and packed as in AutoAWQ, GPTQ,
compressed-tensors and FP8 checkpoints, and random weights in each format with the elements that the format's own program computes.

    pip install torch==2.15.0 compressed-tensors==0.20.0 numpy==2.4.6 safetensors==0.8.0
    pip download --no-deps autoawq==0.2.9 && tar xzf autoawq-0.2.9.tar.gz
    python tests/tools/quantised_checkpoints.py autoawq-0.2.9/awq/utils/packing_utils.py

AutoAWQ is unpacked by the named file, and compressed-tensors by its package. GPTQ's packages cannot be imported without a GPU's
kernels. `gptq_elements` therefore repeats the computation of `dequantize_weight` in GPTQModel 7.7.0, after its conversion of the
first version of the format to the second.
"""

import importlib.util
import json
import sys
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file

FIXTURES = Path(__file__).parent.parent / "fixtures"
OUT = FIXTURES / "quantised"
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "c_attn", "c_proj", "c_fc")
PROJECTIONS += ("qkv_proj", "gate_up_proj", "w1", "w2", "w3", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
# The first version of GPTQ's format stores each zero point less one. This is one in each of a word's eight integers.
ONES = 0x11111111


def words(nibbles):
    """Packs each eight integers along the last axis into a word, with the first in the lowest bits."""
    nibbles = nibbles.to(torch.int64).reshape(*nibbles.shape[:-1], -1, 8)
    packed = (nibbles << (4 * torch.arange(8))).sum(-1)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def awq_words(x):
    """Packs integers like `words`, in AutoAWQ's order."""
    return words(x.reshape(*x.shape[:-1], -1, 8)[..., AWQ_ORDER].reshape(x.shape))


def less_one(packed):
    """Subtracts one from each zero point in packed words, as in the first version of GPTQ's format."""
    packed = (packed.to(torch.int64) - ONES) & 0xFFFFFFFF
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def rounded(w, group, symmetric, dtype=torch.float16):
    """Returns the integers [N, K], scales and zero points [N, K / group] of a matrix."""
    parts = w.float().reshape(w.shape[0], -1, group)
    if symmetric:
        scale = (parts.abs().amax(-1) / 7).clamp(min=1e-5).to(dtype)
        zero = torch.full_like(scale, 8, dtype=torch.int32)
    else:
        low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
        scale = ((high - low) / 15).clamp(min=1e-5).to(dtype)
        zero = (-low / scale.float()).round().clamp(0, 15).to(torch.int32)
    q = ((parts / scale.float()[..., None]).round() + zero[..., None]).clamp(0, 15)
    return q.reshape(w.shape).to(torch.int32), scale, zero


def awq(q, scale, zero):
    return {
        "qweight": awq_words(q.T.contiguous()),
        "qzeros": awq_words(zero.T.contiguous()),
        "scales": scale.T.contiguous(),
    }


def gptq(q, scale, zero, g_idx, v2):
    zeros = words(zero.T.contiguous())
    return {
        "qweight": words(q).T.contiguous(),
        "qzeros": zeros if v2 else less_one(zeros),
        "scales": scale.T.contiguous(),
        "g_idx": g_idx.to(torch.int32),
    }


def gptq_elements(t, v2):
    shifts = 4 * torch.arange(8)
    zeros = t["qzeros"].to(torch.int64) + (0 if v2 else ONES)
    zeros = (zeros[:, :, None] >> shifts) & 15
    q = (t["qweight"].to(torch.int64)[:, None, :] >> shifts[:, None]) & 15
    g_idx = t["g_idx"].long()
    zeros, q = zeros.reshape(zeros.shape[0], -1), q.reshape(-1, q.shape[-1])
    return (t["scales"][g_idx] * (q - zeros[g_idx])).T.contiguous()


def packed(q, scale, zero, symmetric):
    """Packs integers for compressed-tensors. The format's integers start at -8 and are stored from 0."""
    tensors = {
        "weight_packed": words(q),
        "weight_scale": scale,
        "weight_shape": torch.tensor(q.shape),
    }
    if not symmetric:
        tensors["weight_zero_point"] = words(zero.T.contiguous()).T.contiguous()
    return tensors


def int8(w, dtype=torch.bfloat16):
    """Returns 8-bit integers and a scale for each row."""
    scale = (w.float().abs().amax(1, keepdim=True) / 127).clamp(min=1e-4).to(dtype)
    return (w.float() / scale.float()).round().clamp(-127, 127).to(torch.int8), scale


def packed8(q, scale):
    """Packs 8-bit integers for compressed-tensors, four in a word. They are stored from 0."""
    stored = (q.to(torch.int16) + 128).to(torch.uint8).contiguous().view(torch.int32)
    return {"weight_packed": stored, "weight_scale": scale, "weight_shape": torch.tensor(q.shape)}


def fp8(w, block, dtype=torch.float32):
    """Returns FP8 codes, and scales for blocks of this size."""
    rows, cols = w.shape
    down, across = block
    padded = torch.zeros(-(-rows // down) * down, -(-cols // across) * across)
    padded[:rows, :cols] = w.float()
    blocks = padded.reshape(padded.shape[0] // down, down, padded.shape[1] // across, across)
    scale = (blocks.abs().amax((1, 3)) / 448).clamp(min=1e-12).to(dtype)
    codes = (blocks / scale.float()[:, None, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes.reshape(padded.shape)[:rows, :cols].contiguous(), scale


def act_order(w, group):
    """Returns the inputs in descending order of size, as in GPTQ, and the group of each input."""
    order = torch.argsort(w.float().square().sum(0), descending=True)
    g_idx = torch.empty(w.shape[1], dtype=torch.int64)
    g_idx[order] = torch.arange(w.shape[1]) // group
    return order, g_idx


def gptq_of(w, group, symmetric, desc_act, v2):
    group = w.shape[1] if group == -1 else group
    order, g_idx = act_order(w, group) if desc_act else (torch.arange(w.shape[1]), torch.arange(w.shape[1]) // group)
    q, scale, zero = rounded(w[:, order], group, symmetric)
    back = torch.empty_like(q)
    back[:, order] = q
    return gptq(back, scale, zero, g_idx, v2)


def compressed(weights, fmt, group_format="group_0", ignore=("lm_head",)):
    return {
        "quant_method": "compressed-tensors", "format": fmt, "quantization_status": "compressed",
        "config_groups": {group_format: {"targets": ["Linear"], "weights": weights, "input_activations": None}},
        "ignore": list(ignore), "kv_cache_scheme": None,
    }  # fmt: skip


INT4 = {"num_bits": 4, "type": "int", "dynamic": False}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False}
FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}

# The directory of the model, quantization_config, and the function that quantises a weight.
MODELS = {
    "awq": (
        "golden/llama3",
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm", "modules_to_not_convert": None},
        lambda w: awq(*rounded(w, 64, False)),
    ),
    "gptq": (
        "golden/qwen2",
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False, "checkpoint_format": "gptq"},
        lambda w: gptq_of(w, 32, False, True, False),
    ),
    "gptq-v2": (
        "golden/llama2",
        {"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": False, "sym": True, "checkpoint_format": "gptq_v2"},
        lambda w: gptq_of(w, -1, True, False, True),
    ),
    # GPT-2's projections are stored with a row per input, but packed with a row per output.
    "gptq-conv1d": (
        "golden/gpt2",
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True},
        lambda w: gptq_of(w.T, 32, True, False, False),
    ),
    "compressed-int4": (
        "golden/mistral",
        compressed({**INT4, "symmetric": False, "strategy": "group", "group_size": 32}, "pack-quantized"),
        lambda w: packed(*rounded(w, 32, False, torch.bfloat16), False),
    ),
    "fp8": (
        "golden/llama3",
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        lambda w: dict(zip(("weight", "weight_scale_inv"), fp8(w, (128, 128)))),
    ),
    "compressed-fp8": (
        "golden/qwen3",
        compressed({**FLOAT8, "strategy": "channel"}, "float-quantized"),
        lambda w: dict(zip(("weight", "weight_scale"), fp8(w, (1, w.shape[1]), torch.bfloat16))),
    ),
    "awq-gemma3": (
        "families/gemma3",
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm", "modules_to_not_convert": None},
        lambda w: awq(*rounded(w, 32, False)),
    ),
    # Several projections are stored as one.
    "gptq-phi3": (
        "families/phi3",
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True, "checkpoint_format": "gptq"},
        lambda w: gptq_of(w, 32, True, False, False),
    ),
    # The heads of layers differ in size, and some layers have no projection for values.
    "compressed-fp8-gemma4": (
        "families/gemma4",
        compressed({**FLOAT8, "strategy": "channel"}, "float-quantized"),
        lambda w: dict(zip(("weight", "weight_scale"), fp8(w, (1, w.shape[1]), torch.bfloat16))),
    ),
    "fp8-glm4": (
        "families/glm4",
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [32, 32]},
        lambda w: dict(zip(("weight", "weight_scale_inv"), fp8(w, (32, 32)))),
    ),
    "awq-mixtral": (
        "families/mixtral",
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm", "modules_to_not_convert": ["gate"]},
        lambda w: awq(*rounded(w, 32, False)),
    ),
    "gptq-qwen3-moe": (
        "families/qwen3-moe",
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True, "dynamic": {"-:.*\\.gate$": {}}},
        lambda w: gptq_of(w, 32, True, False, False),
    ),
    "compressed-int8-qwen2-moe": (
        "families/qwen2-moe",
        compressed({**INT8, "strategy": "channel"}, "pack-quantized", ignore=("lm_head", "re:.*mlp.gate$", "re:.*shared_expert_gate$")),
        lambda w: packed8(*int8(w)),
    ),
    "fp8-deepseek3": (
        "families/deepseek3",
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [32, 32]},
        lambda w: dict(zip(("weight", "weight_scale_inv"), fp8(w, (32, 32)))),
    ),
    # All experts of a layer are one tensor, and their scales another.
    "fp8-gemma4-moe": (
        "families/gemma4-moe",
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [32, 32]},
        lambda w: dict(zip(("weight", "weight_scale_inv"), fp8(w, (32, 32)))),
    ),
}  # fmt: skip


def model(name, source, config, quantise):
    directory = FIXTURES / source
    tensors = {}
    for path in sorted(directory.glob("model*.safetensors")):
        for key, w in load_file(path).items():
            if key.split(".")[-2] in PROJECTIONS and key.endswith(".weight"):
                parts = quantise(w)
                tensors |= {key.removesuffix("weight") + part: tensor for part, tensor in parts.items()}
            elif key.split(".")[-1] in PROJECTIONS and w.ndim == 3:
                experts = [quantise(expert) for expert in w]
                stacked = {part: torch.stack([expert[part] for expert in experts]) for part in experts[0]}
                tensors |= {key + part.removeprefix("weight"): tensor for part, tensor in stacked.items()}
    write(name, {**json.loads((directory / "config.json").read_text()), "quantization_config": config}, tensors)


def write(name, config, tensors):
    (OUT / name).mkdir(parents=True)
    (OUT / name / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file({key: x.contiguous() for key, x in tensors.items()}, OUT / name / "model.safetensors")


def random_forms(unpacking):
    """Writes random tensors in each format with the elements that its program computes, in the program's type."""
    spec = importlib.util.spec_from_file_location("packing_utils", unpacking)
    autoawq = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(autoawq)
    random = torch.Generator().manual_seed(19)

    def integers(*shape):
        return torch.randint(0, 16, shape, generator=random, dtype=torch.int32)

    def scales(*shape, dtype=torch.float16):
        return (torch.randn(shape, generator=random) * 0.01).to(dtype)

    def put(name, config, tensors, elements):
        tensors = {f"m.{part}": x for part, x in tensors.items()}
        write(f"random/{name}", {"model_type": "llama", "quantization_config": config}, {**tensors, "elements": elements})

    n, k = 40, 192
    t = awq(integers(n, k), scales(n, k // 64), integers(n, k // 64))
    elements = autoawq.dequantize_gemm(t["qweight"], t["qzeros"], t["scales"], 4, 64).T
    put("awq", {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}, t, elements)

    for v2 in (False, True):
        for desc_act in (False, True):
            g_idx = torch.arange(k) // 32
            if desc_act:
                g_idx = g_idx[torch.randperm(k, generator=random)]
            t = gptq(integers(n, k), scales(n, k // 32), integers(n, k // 32), g_idx, v2)
            name = f"gptq{'-v2' if v2 else ''}{'-desc-act' if desc_act else ''}"
            config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": desc_act, "sym": False}
            config["checkpoint_format"] = "gptq_v2" if v2 else "gptq"
            put(name, config, t, gptq_elements(t, v2))

    def elements_of(args, fmt, tensors):
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
        return BaseCompressor.get_value_from_registry(fmt).decompress(dict(tensors), scheme)["weight"]

    for name, args, group in [
        ("compressed-int4", {"symmetric": True, "strategy": "group", "group_size": 64}, 64),
        ("compressed-int4-zeros", {"symmetric": False, "strategy": "group", "group_size": 32}, 32),
        ("compressed-int4-channel", {"symmetric": True, "strategy": "channel"}, k),
        # Groups without a type in memory, and rows that end within a word.
        ("compressed-int4-odd", {"symmetric": False, "strategy": "group", "group_size": 12}, 12),
    ]:
        args = {**INT4, **args}
        cols = 180 if group == 12 else k
        q = integers(n, cols)
        t = packed(q if cols % 8 == 0 else torch.nn.functional.pad(q, (0, 4)), scales(n, cols // group, dtype=torch.bfloat16),
                   integers(n, cols // group), args["symmetric"])  # fmt: skip
        t["weight_shape"] = torch.tensor([n, cols])
        put(name, compressed(args, "pack-quantized"), t, elements_of(args, "pack-quantized", t))

    def codes(*shape):
        x = torch.randint(0, 256, shape, generator=random, dtype=torch.int32)
        # Replace the codes of NaN.
        return torch.where(x & 127 == 127, x - 1, x).to(torch.uint8).view(torch.float8_e4m3fn)

    n, k = 136, 192
    for name, args, shape in [
        ("compressed-fp8-tensor", {"strategy": "tensor"}, (1,)),
        ("compressed-fp8-channel", {"strategy": "channel"}, (n, 1)),
        ("compressed-fp8-block", {"strategy": "block", "block_structure": [128, 128]}, (2, 2)),
    ]:
        args = {**FLOAT8, **args}
        t = {"weight": codes(n, k), "weight_scale": scales(*shape, dtype=torch.bfloat16)}
        put(name, compressed(args, "float-quantized"), t, elements_of(args, "float-quantized", t))
    # The same with f32 scales, as in FP8 checkpoints of other programs.
    t = {"weight": codes(n, k), "weight_scale_inv": scales(2, 2, dtype=torch.float32)}
    down, across = (x.repeat_interleave(128)[:m] for x, m in ((torch.arange(2), n), (torch.arange(2), k)))
    elements = t["weight"].float() * t["weight_scale_inv"][down][:, across]
    put("fp8", {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}, t, elements)
    t = {"weight": codes(n, k), "weight_scale": scales(dtype=torch.float32)}
    put("fp8-tensor", {"quant_method": "fp8", "activation_scheme": "static"}, t, t["weight"].float() * t["weight_scale"])

    n, k = 40, 192
    q = torch.randint(-128, 128, (n, k), generator=random, dtype=torch.int32).to(torch.int8)
    some = lambda *shape, dtype=torch.bfloat16: (torch.rand(shape, generator=random) * 0.1 + 0.001).to(dtype)
    for name, fmt, args, scale in [
        ("compressed-int8", "pack-quantized", {"strategy": "group", "group_size": 64}, some(n, k // 64)),
        ("compressed-int8-channel", "int-quantized", {"strategy": "channel"}, some(n, 1)),
        # Scales that f16 would change.
        ("compressed-int8-wide", "int-quantized", {"strategy": "channel"}, some(n, 1, dtype=torch.float32)),
        ("compressed-int8-tensor", "int-quantized", {"strategy": "tensor"}, some(1)),
    ]:
        args = {**INT8, **args}
        t = packed8(q, scale) if fmt == "pack-quantized" else {"weight": q, "weight_scale": scale}
        put(name, compressed(args, fmt), t, elements_of(args, fmt, t))


if __name__ == "__main__":
    for path in sorted(OUT.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    for name, (source, config, quantise) in MODELS.items():
        model(name, source, config, quantise)
    random_forms(sys.argv[1])
