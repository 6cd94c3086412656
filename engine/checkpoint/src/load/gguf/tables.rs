//! The tensor names of each architecture.

/// Pairs of names, the file's first. Names in layers omit `blk.N.` and the model's own prefix.
pub(super) struct Names {
    pub outside: &'static [(&'static str, &'static str)],
    pub layers: &'static str,
    pub inside: &'static [&'static [(&'static str, &'static str)]],
}

/// The projections and norms of attention that most architectures name alike. A model may lack some.
const ATTENTION: &[(&str, &str)] = &[
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
];
/// The projections of feed-forward layers with a gate.
const MLP: &[(&str, &str)] = &[("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"), ("ffn_down", "mlp.down_proj")];

pub(super) const LLAMA: Names = Names {
    outside: &[("token_embd", "embed_tokens"), ("output_norm", "norm"), ("output", "lm_head")],
    layers: "layers",
    inside: &[ATTENTION, MLP, &[("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")]],
};

pub(super) const GPT2: Names = Names {
    outside: &[("token_embd", "wte"), ("position_embd", "wpe"), ("output_norm", "ln_f"), ("output", "lm_head")],
    layers: "h",
    inside: &[&[
        ("attn_norm", "ln_1"),
        ("attn_qkv", "attn.c_attn"),
        ("attn_output", "attn.c_proj"),
        ("ffn_norm", "ln_2"),
        ("ffn_up", "mlp.c_fc"),
        ("ffn_down", "mlp.c_proj"),
    ]],
};

pub(super) const OPT: Names = Names {
    outside: &[
        ("token_embd", "embed_tokens"),
        ("position_embd", "embed_positions"),
        ("project_in", "project_in"),
        ("project_out", "project_out"),
        ("output_norm", "final_layer_norm"),
        ("output", "lm_head"),
    ],
    layers: "layers",
    inside: &[
        ATTENTION,
        &[
            ("attn_norm", "self_attn_layer_norm"),
            ("ffn_norm", "final_layer_norm"),
            ("ffn_up", "fc1"),
            ("ffn_down", "fc2"),
        ],
    ],
};

/// Gemma 2 to 4. Each of them has only some of these tensors.
pub(super) const GEMMA: Names = Names {
    outside: &[
        ("token_embd", "embed_tokens"),
        ("output_norm", "norm"),
        ("output", "lm_head"),
        ("per_layer_token_embd", "embed_tokens_per_layer"),
        ("per_layer_model_proj", "per_layer_model_projection"),
        ("per_layer_proj_norm", "per_layer_projection_norm"),
    ],
    layers: "layers",
    inside: &[
        ATTENTION,
        MLP,
        &[
            ("attn_norm", "input_layernorm"),
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
            ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
            ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
            ("inp_gate", "per_layer_input_gate"),
            ("proj", "per_layer_projection"),
            ("post_norm", "post_per_layer_input_norm"),
            ("layer_output_scale", "layer_scalar"),
        ],
    ],
};

pub(super) const OLMO2: Names = Names {
    outside: LLAMA.outside,
    layers: LLAMA.layers,
    inside: &[
        ATTENTION,
        MLP,
        &[("post_attention_norm", "post_attention_layernorm"), ("post_ffw_norm", "post_feedforward_layernorm")],
    ],
};

pub(super) const PHI3: Names = Names {
    outside: LLAMA.outside,
    layers: LLAMA.layers,
    inside: &[
        ATTENTION,
        &[
            ("attn_norm", "input_layernorm"),
            ("attn_qkv", "self_attn.qkv_proj"),
            ("ffn_norm", "post_attention_layernorm"),
            ("ffn_up", "mlp.gate_up_proj"),
            ("ffn_down", "mlp.down_proj"),
        ],
    ],
};

pub(super) const GLM4: Names = Names {
    outside: LLAMA.outside,
    layers: LLAMA.layers,
    inside: &[
        ATTENTION,
        &[
            ("attn_norm", "input_layernorm"),
            ("post_attention_norm", "post_self_attn_layernorm"),
            ("ffn_norm", "post_attention_layernorm"),
            ("ffn_up", "mlp.gate_up_proj"),
            ("ffn_down", "mlp.down_proj"),
            ("post_ffw_norm", "post_mlp_layernorm"),
        ],
    ],
};

pub(super) const GPT_OSS: Names = Names {
    outside: LLAMA.outside,
    layers: LLAMA.layers,
    inside: &[
        ATTENTION,
        &[
            ("attn_norm", "input_layernorm"),
            ("attn_sinks", "self_attn.sinks"),
            ("post_attention_norm", "post_attention_layernorm"),
        ],
    ],
};

/// Qwen3-Next, Qwen3.5 and Qwen3.6. `ssm_in` is in files from before the projections were separated.
pub(super) const QWEN_NEXT: Names = Names {
    outside: LLAMA.outside,
    layers: LLAMA.layers,
    inside: &[
        ATTENTION,
        MLP,
        &[
            ("attn_norm", "input_layernorm"),
            ("attn_qkv", "linear_attn.in_proj_qkv"),
            ("attn_gate", "linear_attn.in_proj_z"),
            ("ssm_in", "linear_attn.in_proj_qkvz"),
            ("ssm_ba", "linear_attn.in_proj_ba"),
            ("ssm_beta", "linear_attn.in_proj_b"),
            ("ssm_alpha", "linear_attn.in_proj_a"),
            ("ssm_conv1d", "linear_attn.conv1d"),
            ("ssm_norm", "linear_attn.norm"),
            ("ssm_out", "linear_attn.out_proj"),
            ("post_attention_norm", "post_attention_layernorm"),
        ],
    ],
};

pub(super) const GRANITE_HYBRID: Names = Names {
    outside: LLAMA.outside,
    layers: LLAMA.layers,
    inside: &[
        ATTENTION,
        MLP,
        &[
            ("attn_norm", "input_layernorm"),
            ("ssm_in", "mamba.in_proj"),
            ("ssm_conv1d", "mamba.conv1d"),
            ("ssm_norm", "mamba.norm"),
            ("ssm_out", "mamba.out_proj"),
            ("ffn_norm", "post_attention_layernorm"),
        ],
    ],
};

pub(super) const LFM2: Names = Names {
    outside: &[("token_embd", "embed_tokens"), ("token_embd_norm", "norm"), ("output", "lm_head")],
    layers: LLAMA.layers,
    inside: &[
        ATTENTION,
        MLP,
        &[
            ("attn_norm", "operator_norm"),
            ("shortconv.conv", "conv.conv"),
            ("shortconv.in_proj", "conv.in_proj"),
            ("shortconv.out_proj", "conv.out_proj"),
            ("ffn_norm", "ffn_norm"),
        ],
    ],
};

/// The tensors of states, which have no kind in models.
pub(super) const STATES: &[(&str, &str)] = &[("ssm_a", "A_log"), ("ssm_d", "D"), ("ssm_dt.bias", "dt_bias")];

/// DeepSeek V2 and V3. The projection from latent vectors to keys and values is one matrix or two stacks of matrices.
pub(super) const DEEPSEEK2: Names = Names {
    outside: LLAMA.outside,
    layers: LLAMA.layers,
    inside: &[
        ATTENTION,
        MLP,
        &[
            ("attn_norm", "input_layernorm"),
            ("attn_q_a", "self_attn.q_a_proj"),
            ("attn_q_a_norm", "self_attn.q_a_layernorm"),
            ("attn_q_b", "self_attn.q_b_proj"),
            ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
            ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
            ("attn_kv_b", "self_attn.kv_b_proj"),
            ("attn_k_b", "self_attn.k_b_proj"),
            ("attn_v_b", "self_attn.v_b_proj"),
            ("ffn_norm", "post_attention_layernorm"),
        ],
    ],
};

/// The tensors of experts, in layers of every architecture.
pub(super) const EXPERTS: &[(&str, &str)] = &[
    ("ffn_gate_inp", "mlp.gate"),
    ("exp_probs_b", "mlp.gate.e_score_correction_bias"),
    ("ffn_gate_exps", "mlp.experts.gate_proj"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
    ("ffn_gate_up_exps", "mlp.experts.gate_up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];
