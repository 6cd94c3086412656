"""Writes fixtures/families: tiny models of the families with windows, shared caches, unusual blocks and experts, with outputs of
Hugging Face transformers.

    pip install torch==2.15.0 transformers==5.24.0 safetensors==0.8.0
    python tests/tools/families.py [FAMILY...]

Weights are random numbers that bf16 represents exactly. They are stored in bf16, and transformers computes in f32 with eager
attention and without a cache. `golden.json` has the greedy tokens of five prompts and the five likeliest tokens of each step.
`drift` is the largest difference between these logprobs and those of the same computation in f64. `half` has the results of
transformers in 16-bit types: the greedy tokens before the first that differs, and the largest difference of a greedy token's logprob.

`config.json` is spelled as on the Hugging Face hub or as transformers 5 writes it, and `other.json` in the other way. Both are
loaded again here, and must give the same logits.
"""

import copy
import json
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)

FIXTURES = Path(__file__).parent.parent / "fixtures"
OUT = FIXTURES / "families"
TOKENIZER = FIXTURES / "golden" / "opt-pre"
SEED = 11
VOCAB = 518
PROMPTS = (1, 5, 17, 33, 100)
STEPS = 24
# A draw is used if the two likeliest tokens of every step differ by this much, and each answer has this many tokens.
MARGIN = 0.02
DISTINCT = 6
WINDOW = 20
# The length from which longrope uses its long factors. One answer crosses it.
SHORT = 32

WINDOWED, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"


def rope(theta, kind="default", **settings):
    return {"rope_type": kind, "rope_theta": theta, **settings}


def families():
    """Returns the type of model, the configuration and the spelling of `config.json` for each family."""
    base = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4)
    base |= dict(num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    # Some formats assume that heads are as wide as the residual stream.
    narrow = base | dict(num_attention_heads=2)
    wide_heads = base | dict(head_dim=32)
    # Two workers can divide a quantised projection of this size. `tools/quantised_checkpoints.py` quantises some models.
    divisible = dict(intermediate_size=128)
    three_of_four = dict(sliding_window=WINDOW, layer_types=[WINDOWED] * 3 + [FULL])
    proportional = {WINDOWED: rope(10000.0), FULL: rope(1000000.0, "proportional", partial_rotary_factor=0.25)}
    yarn = rope(500000.0, "yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=64)
    factors = dict(short_factor=[1 + 0.03 * i for i in range(12)], long_factor=[1 + 0.5 * i for i in range(12)])
    longrope = rope(10000.0, "longrope", partial_rotary_factor=0.75, original_max_position_embeddings=SHORT, factor=256 / SHORT, **factors)
    gemma = wide_heads | dict(sliding_window=WINDOW)
    latent = base | dict(num_key_value_heads=4, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32)
    latent |= dict(n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=1)
    magnified = yarn | dict(rope_theta=10000.0, mscale=1.0, mscale_all_dim=0.7)
    experts = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
    delta = dict(linear_conv_kernel_dim=4, linear_key_head_dim=48, linear_value_head_dim=16, linear_num_key_heads=2)
    delta |= dict(linear_num_value_heads=4, rope_parameters=rope(10000.0, partial_rotary_factor=0.25))
    shared = experts | dict(shared_expert_intermediate_size=32)
    mamba = dict(mamba_n_heads=4, mamba_n_groups=1, mamba_d_state=64, mamba_d_head=32, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=16)
    granite = narrow | dict(embedding_multiplier=4.0, logits_scaling=2.0, residual_multiplier=0.4, attention_multiplier=0.1)
    fractions = rope(150000.0, "yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=64)
    return {
        "gemma2": ("gemma2", gemma | dict(
            layer_types=[WINDOWED, FULL] * 2, query_pre_attn_scalar=24, attn_logit_softcapping=4.0,
            final_logit_softcapping=20.0), "hub"),
        "gemma3": ("gemma3_text", gemma | divisible | dict(
            layer_types=[WINDOWED, WINDOWED, FULL, WINDOWED], query_pre_attn_scalar=24,
            rope_parameters={WINDOWED: rope(10000.0), FULL: rope(1000000.0, "linear", factor=8.0)}), "hub"),
        "gemma4": ("gemma4_text", gemma | divisible | dict(
            layer_types=[WINDOWED, FULL] * 2, final_logit_softcapping=20.0, hidden_size_per_layer_input=0,
            attention_k_eq_v=True, num_global_key_value_heads=1, global_head_dim=64, rope_parameters=proportional), "v5"),
        "gemma4-e": ("gemma4_text", gemma | dict(
            layer_types=[WINDOWED, FULL] * 2, hidden_size_per_layer_input=16, vocab_size_per_layer_input=VOCAB,
            num_kv_shared_layers=2, use_double_wide_mlp=True, global_head_dim=64, rope_parameters=proportional), "hub"),
        "olmo2": ("olmo2", narrow | dict(num_hidden_layers=3, rope_parameters=rope(500000.0)), "v5"),
        "olmo3": ("olmo3", narrow | three_of_four | dict(
            num_key_value_heads=1, rope_parameters={WINDOWED: rope(500000.0), FULL: yarn}), "hub"),
        "cohere2": ("cohere2", narrow | three_of_four | dict(
            num_key_value_heads=1, logit_scale=0.25, rope_parameters=rope(10000.0)), "v5"),
        "smollm3": ("smollm3", narrow | dict(
            num_key_value_heads=1, no_rope_layers=[1, 1, 1, 0], use_sliding_window=False, sliding_window=None,
            rope_parameters=rope(2000000.0)), "hub"),
        "phi3": ("phi3", narrow | divisible | dict(
            num_hidden_layers=3, original_max_position_embeddings=SHORT, sliding_window=None, rope_parameters=longrope), "hub"),
        "phi3-window": ("phi3", narrow | dict(
            num_hidden_layers=3, num_key_value_heads=1, sliding_window=WINDOW, rope_parameters=rope(10000.0)), "v5"),
        "glm4": ("glm4", wide_heads | divisible | dict(
            num_hidden_layers=3, attention_bias=True, rope_parameters=rope(10000.0, partial_rotary_factor=0.5)), "v5"),
        "granite": ("granite", narrow | dict(
            num_hidden_layers=3, embedding_multiplier=6.0, logits_scaling=2.0, residual_multiplier=0.3,
            attention_multiplier=0.1, rope_parameters=rope(10000.0)), "v5"),
        "mixtral": ("mixtral", narrow | dict(
            num_hidden_layers=2, num_key_value_heads=1, intermediate_size=64, num_local_experts=4, num_experts_per_tok=2,
            sliding_window=None, rope_parameters=rope(1000000.0)), "v5"),
        "qwen2-moe": ("qwen2_moe", narrow | experts | dict(
            num_hidden_layers=3, norm_topk_prob=False, shared_expert_intermediate_size=64, mlp_only_layers=[],
            decoder_sparse_step=1, rope_parameters=rope(1000000.0)), "hub"),
        "qwen3-moe": ("qwen3_moe", wide_heads | experts | dict(
            num_hidden_layers=3, norm_topk_prob=True, num_experts_per_tok=3, mlp_only_layers=[1], decoder_sparse_step=1,
            rope_parameters=rope(1000000.0)), "v5"),
        "gpt-oss": ("gpt_oss", wide_heads | dict(
            num_hidden_layers=3, intermediate_size=64, num_local_experts=6, num_experts_per_tok=2, sliding_window=WINDOW,
            layer_types=[WINDOWED, FULL, WINDOWED], rope_parameters=fractions), "hub"),
        "gemma4-moe": ("gemma4_text", gemma | dict(
            num_hidden_layers=3, layer_types=[WINDOWED, WINDOWED, FULL], final_logit_softcapping=20.0,
            hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=1, global_head_dim=64,
            enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=32, rope_parameters=proportional), "v5"),
        "granitemoe": ("granitemoe", narrow | dict(
            num_hidden_layers=2, intermediate_size=64, num_local_experts=4, num_experts_per_tok=2, embedding_multiplier=4.0,
            logits_scaling=2.0, residual_multiplier=0.4, attention_multiplier=0.1, rope_parameters=rope(10000.0)), "hub"),
        "deepseek2": ("deepseek_v2", latent | dict(
            num_hidden_layers=3, q_lora_rank=None, topk_method="group_limited_greedy", n_group=4, topk_group=2,
            n_shared_experts=2, norm_topk_prob=False, routed_scaling_factor=1.5, rope_parameters=rope(10000.0)), "v5"),
        "deepseek3": ("deepseek_v3", latent | dict(
            num_hidden_layers=2, q_lora_rank=48, n_group=2, topk_group=1, n_shared_experts=1, norm_topk_prob=True,
            routed_scaling_factor=1.5, rope_parameters=magnified), "hub"),
        "qwen3.5": ("qwen3_5_text", wide_heads | delta | dict(num_hidden_layers=3, layer_types=[LINEAR] * 2 + [FULL]), "hub"),
        "qwen3.5-moe": ("qwen3_5_moe_text", wide_heads | delta | shared | dict(
            num_hidden_layers=2, layer_types=[LINEAR, FULL]), "v5"),
        "qwen3-next": ("qwen3_next", wide_heads | delta | shared | dict(
            num_hidden_layers=2, norm_topk_prob=True, layer_types=[LINEAR, FULL]), "hub"),
        "granite4": ("granitemoehybrid", granite | mamba | dict(
            num_hidden_layers=3, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=64,
            layer_types=["mamba", "attention", "mamba"]), "v5"),
        "granite4-dense": ("granitemoehybrid", granite | mamba | dict(
            num_hidden_layers=3, num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=64,
            position_embedding_type="rope", rope_parameters=rope(10000.0), layer_types=["mamba", "attention", "mamba"]), "hub"),
        "lfm2": ("lfm2", narrow | dict(
            num_hidden_layers=4, intermediate_size=128, block_auto_adjust_ff_dim=True, block_multiple_of=32, conv_L_cache=3,
            layer_types=["conv", FULL, "conv", "conv"], rope_parameters=rope(1000000.0)), "hub"),
    }  # fmt: skip


def build(config, dtype=torch.float32):
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager").eval()


def norms_are_offset(model):
    """Whether the model's norms multiply by one plus their weight, as in Gemma 2 and 3."""
    return model.config.model_type in ("gemma2", "gemma3_text", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")


def draw(model, seed):
    """Fills a model with random numbers that bf16 represents.

    Every projection preserves the scale of its input or raises it a little. Vectors are random too, so that a model in which one
    is left out has other outputs. The last norm scales the logits to a standard deviation of about 6.
    """
    random = torch.Generator().manual_seed(seed)
    offset = 1.0 if norms_are_offset(model) else 0.0
    scaled_embeddings = model.config.model_type.startswith("gemma")
    # The rows of these experts' matrices are inputs, and their gates should reach the limit.
    has_transposed_experts = model.config.model_type == "gpt_oss"

    def numbers(name, shape):
        x = torch.randn(shape, generator=random)
        if name.endswith("layer_scalar"):
            return 0.8 + 0.1 * x
        if name.endswith("scale"):
            return 1.0 + 0.2 * x
        if name.endswith("correction_bias"):
            return 0.3 * x
        if name.endswith("sinks"):
            return x
        if name.endswith("A_log"):
            return 0.7 + 0.4 * x
        if name.endswith("dt_bias"):
            return 0.5 * x
        if name.endswith(".D"):
            return 1.0 + 0.2 * x
        if "norm" in name:
            return 1.0 - (0.0 if "linear_attn.norm" in name else offset) + 0.15 * x
        if len(shape) == 1:
            return 0.1 * x
        if "embed_tokens" in name:
            return 0.4 * x * (shape[-1] ** -0.5 if scaled_embeddings else 1.0)
        if "router" in name or name.endswith("mlp.gate.weight"):
            # Otherwise all experts would have similar scores.
            return 3.0 * x * shape[-1] ** -0.5
        if has_transposed_experts and len(shape) == 3:
            return x * shape[-2] ** -0.5 * (3.0 if "gate_up" in name else 1.2)
        return x * shape[-1] ** -0.5 * (1.0 if "lm_head" in name else 1.2)

    scalars = {name: x for name, x in model.named_buffers() if name.endswith(("layer_scalar", "correction_bias"))}
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *scalars.items()]:
            tensor.copy_(numbers(name, tensor.shape).bfloat16())
        last = model.get_submodule("model.embedding_norm" if model.config.model_type == "lfm2" else "model.norm").weight
        cap, model.config.final_logit_softcapping = getattr(model.config, "final_logit_softcapping", None), None
        tokens = torch.randint(5, VOCAB, (1, 48), generator=random)
        factor = 6.0 / float(model(input_ids=tokens, use_cache=False).logits.std())
        model.config.final_logit_softcapping = cap
        last.copy_(((last + offset) * factor - offset).bfloat16())


def logprobs(model, tokens):
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].log_softmax(-1)


def answer(model, prompt):
    """Returns the greedy tokens, the five likeliest tokens of each step, and the smallest margin of a step."""
    tokens, steps, margin = list(prompt), [], float("inf")
    for _ in range(STEPS):
        values, ids = logprobs(model, tokens)[-1].topk(5)
        margin = min(margin, float(values[0] - values[1]))
        if margin < MARGIN:
            break
        steps.append({"ids": ids.tolist(), "logprobs": [round(float(x), 5) for x in values]})
        tokens.append(int(ids[0]))
    return tokens[len(prompt) :], steps, margin


@contextmanager
def double_precision():
    """Makes transformers compute in f64 where it names f32."""
    single, method = torch.float32, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32 = torch.float = single
        torch.Tensor.float = method
        torch.set_default_dtype(single)


def drift(model, prompts):
    """Returns the largest difference between the prompts' logprobs and their logprobs in f64."""
    config = copy.deepcopy(model.config)
    weights = {name: tensor.double() for name, tensor in model.state_dict().items()}
    with double_precision():
        exact = build(config, torch.float64)
        exact.load_state_dict(weights)
        largest = 0.0
        for prompt in prompts:
            ids, length = prompt["ids"] + prompt["greedy"]["ids"], len(prompt["ids"])
            for step, top in enumerate(prompt["greedy"]["top5"]):
                # Each step is a forward pass of its own, since longrope depends on the length.
                row = logprobs(exact, ids[: length + step])[-1]
                assert row.dtype == torch.float64
                largest = max(largest, *(abs(float(row[i]) - x) for i, x in zip(top["ids"], top["logprobs"])))
    return largest


def half(model, prompts, dtype):
    """Returns the results of a 16-bit type for each prompt, compared with f32."""
    rounded = copy.deepcopy(model).to(dtype)
    results = []
    for prompt in prompts:
        equal, largest, length = None, 0.0, len(prompt["ids"])
        for step, (token, top) in enumerate(zip(prompt["greedy"]["ids"], prompt["greedy"]["top5"])):
            ids = (prompt["ids"] + prompt["greedy"]["ids"])[: length + step]
            with torch.no_grad():
                row = rounded(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float().log_softmax(-1)
            if equal is None and int(row.argmax()) != token:
                equal = step
            largest = max(largest, abs(float(row[token]) - top["logprobs"][0]))
        results.append({"greedy_prefix_equal": STEPS if equal is None else equal, "token_logprob_drift_max": round(largest, 5)})
    return {"native": dtype == torch.bfloat16, "prompts": results}


def hub_spelling(config):
    """Returns a configuration with the members that files on the hub have."""
    config = copy.deepcopy(config)
    kind = config["model_type"]
    config["torch_dtype"] = config.pop("dtype")
    config.pop("transformers_version", None)
    layers = config.pop("per_layer_config", None)
    if layers:
        full = next(iter(layers.values()))
        config["global_head_dim"] = full["head_dim"]
        if "num_key_value_heads" in full:
            config["num_global_key_value_heads"] = full["num_key_value_heads"]
    if kind.startswith("gemma4"):
        return config
    if "num_local_experts" in config and kind.startswith("qwen"):
        config["num_experts"] = config.pop("num_local_experts")
    if kind == "granitemoehybrid":
        names = {LINEAR: "mamba", FULL: "attention"}
        config["layer_types"] = [names.get(name, name) for name in config["layer_types"]]
        config.pop("time_step_limit", None)
    if kind == "qwen3_5_text":
        del config["layer_types"]
        config["full_attention_interval"] = 3
    if kind == "lfm2":
        config["full_attn_idxs"] = [i for i, name in enumerate(config.pop("layer_types")) if name == FULL]
        config["block_ff_dim"], config["tie_embedding"] = config.pop("intermediate_size"), config.pop("tie_word_embeddings")
    settings = config.pop("rope_parameters", None)
    if settings is None:
        return config
    if kind == "gemma2":
        del config["layer_types"]
    if kind == "gemma3_text":
        del config["layer_types"]
        config.pop("_sliding_window_pattern", None)
        config["sliding_window_pattern"] = 3
        config["rope_local_base_freq"] = settings[WINDOWED]["rope_theta"]
    if kind == "cohere2":
        del config["layer_types"]
        config.pop("_sliding_window_pattern", None)
        config |= {"sliding_window_pattern": 4, "layer_switch": 4, "rotary_pct": 1.0}
    if kind == "smollm3":
        config |= {"no_rope_layer_interval": 4, "max_window_layers": 28}
    settings = dict(settings.get(FULL, settings))
    config["rope_theta"] = settings.pop("rope_theta")
    if "partial_rotary_factor" in settings:
        config["partial_rotary_factor"] = settings.pop("partial_rotary_factor")
    if settings["rope_type"] == "longrope":
        settings = {"type": "longrope", "short_factor": settings["short_factor"], "long_factor": settings["long_factor"]}
        config["original_max_position_embeddings"] = SHORT
    config["rope_scaling"] = None if settings.get("rope_type") == "default" else settings
    return config


def write(directory, model, spelling):
    """Writes the weights in bf16, both spellings of the configuration, and a tokenizer."""
    shutil.rmtree(directory, ignore_errors=True)
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    v5 = json.loads((directory / "config.json").read_text())
    v5.pop("use_cache", None)
    spellings = {"v5": v5, "hub": hub_spelling(v5)}
    other = "hub" if spelling == "v5" else "v5"
    for name, key in [("config.json", spelling), ("other.json", other)]:
        (directory / name).write_text(json.dumps(spellings[key], indent=1) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, directory / name)


def check(directory, prompts):
    """Loads the files with each spelling, and compares the last step of each prompt."""
    with tempfile.TemporaryDirectory() as copied:
        shutil.copy(directory / "model.safetensors", copied)
        for name in ("config.json", "other.json"):
            shutil.copy(directory / name, Path(copied) / "config.json")
            config = AutoConfig.from_pretrained(copied)
            model = AutoModelForCausalLM.from_pretrained(copied, config=config, dtype=torch.float32, attn_implementation="eager")
            for prompt in prompts:
                row = logprobs(model.eval(), prompt["ids"] + prompt["greedy"]["ids"][:-1])[-1]
                top = prompt["greedy"]["top5"][-1]
                for id, x in zip(top["ids"], top["logprobs"]):
                    assert abs(float(row[id]) - x) < 2e-5, (directory.name, name, id)


def make(index, name, kind, fields, spelling):
    model = build(CONFIG_MAPPING[kind](**copy.deepcopy(fields)))
    for attempt in range(500):
        seed = SEED * 100000 + index * 1000 + attempt
        draw(model, seed)
        random = torch.Generator().manual_seed(seed)
        prompts = []
        for length in PROMPTS:
            ids = [1, *torch.randint(5, VOCAB, (length - 1,), generator=random).tolist()]
            tokens, steps, margin = answer(model, ids)
            if margin < MARGIN or len(set(tokens)) < DISTINCT:
                break
            greedy = {"max_new_tokens": STEPS, "ignore_eos": True, "ids": tokens, "top5": steps}
            prompts.append({"name": f"{length} tokens", "ids": ids, "greedy": greedy, "margin": round(margin, 5)})
        if len(prompts) == len(PROMPTS):
            break
    else:
        sys.exit(f"{name}: no draw has the margins")
    directory = OUT / name
    write(directory, model, spelling)
    check(directory, prompts)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    golden = {"model": name, "model_type": kind, "seed": seed, "versions": versions, "spelling": spelling}
    golden["drift"] = round(drift(model, prompts), 7)
    golden["half"] = {str(dtype).split(".")[1]: half(model, prompts, dtype) for dtype in (torch.float16, torch.bfloat16)}
    golden["prompts"] = prompts
    (directory / "golden.json").write_text(json.dumps(golden) + "\n")
    margins = min(prompt["margin"] for prompt in prompts)
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{name}: draw {attempt}, margin {margins}, drift {golden['drift']}, {size} parameters", flush=True)


if __name__ == "__main__":
    for index, (name, family) in enumerate(families().items()):
        if not sys.argv[1:] or name in sys.argv[1:]:
            make(index, name, *family)
