//! The names of a layer's tensors in the files of different libraries.

/// The names in a layer, without its number and the text before it.
pub(super) struct Names {
    /// The text before the layer's number.
    pub layers: &'static str,
    /// The products for queries, keys and values, or the one for all three.
    pub qkv: &'static [&'static str],
    /// The biases of queries, keys and values, if there is one product for them but three biases.
    pub biases: Option<[&'static str; 3]>,
    /// The product after attention.
    pub out: &'static str,
    /// The two products after it.
    pub fc: [&'static str; 2],
    /// The product of a gated layer whose result the activation reads, if it is a matrix of its own.
    pub gate: Option<&'static str>,
    /// The two norms.
    pub norms: [&'static str; 2],
    /// The factors of values that are added to the residual stream, if there are any.
    pub scales: Option<[&'static str; 2]>,
    /// Whether norms come before attention and products, or after the sums.
    pub norm_first: bool,
}

pub(super) const BERT: Names = Names {
    layers: "encoder.layer.",
    qkv: &["attention.self.query", "attention.self.key", "attention.self.value"],
    biases: None,
    out: "attention.output.dense",
    fc: ["intermediate.dense", "output.dense"],
    gate: None,
    norms: ["attention.output.LayerNorm", "output.LayerNorm"],
    scales: None,
    norm_first: false,
};

pub(super) const MPNET: Names = Names {
    qkv: &["attention.attn.q", "attention.attn.k", "attention.attn.v"],
    out: "attention.attn.o",
    norms: ["attention.LayerNorm", "output.LayerNorm"],
    ..BERT
};

pub(super) const DISTILBERT: Names = Names {
    layers: "transformer.layer.",
    qkv: &["attention.q_lin", "attention.k_lin", "attention.v_lin"],
    out: "attention.out_lin",
    fc: ["ffn.lin1", "ffn.lin2"],
    norms: ["sa_layer_norm", "output_layer_norm"],
    ..BERT
};

pub(super) const VIT: Names = Names {
    layers: "encoder.layer.",
    qkv: &["attention.attention.query", "attention.attention.key", "attention.attention.value"],
    biases: None,
    out: "attention.output.dense",
    fc: ["intermediate.dense", "output.dense"],
    gate: None,
    norms: ["layernorm_before", "layernorm_after"],
    scales: None,
    norm_first: true,
};

pub(super) const DINOV2: Names = Names {
    fc: ["mlp.fc1", "mlp.fc2"],
    norms: ["norm1", "norm2"],
    scales: Some(["layer_scale1.lambda1", "layer_scale2.lambda1"]),
    ..VIT
};

/// DINOv2's layers whose first product is gated.
pub(super) const DINOV2_GATED: Names = Names { fc: ["mlp.weights_in", "mlp.weights_out"], ..DINOV2 };

pub(super) const DINOV3: Names = Names {
    layers: "layer.",
    qkv: &["attention.q_proj", "attention.k_proj", "attention.v_proj"],
    out: "attention.o_proj",
    fc: ["mlp.up_proj", "mlp.down_proj"],
    gate: Some("mlp.gate_proj"),
    ..DINOV2
};

pub(super) const CLIP: Names = Names {
    layers: "encoder.layers.",
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    out: "self_attn.out_proj",
    fc: ["mlp.fc1", "mlp.fc2"],
    norms: ["layer_norm1", "layer_norm2"],
    ..VIT
};

pub(super) const WHISPER: Names =
    Names { layers: "layers.", fc: ["fc1", "fc2"], norms: ["self_attn_layer_norm", "final_layer_norm"], ..CLIP };

pub(super) const MODERNBERT: Names = Names {
    layers: "layers.",
    qkv: &["attn.Wqkv"],
    out: "attn.Wo",
    fc: ["mlp.Wi", "mlp.Wo"],
    norms: ["attn_norm", "mlp_norm"],
    ..VIT
};

/// The names in Swin's stages.
pub(super) const SWIN: Names =
    Names { layers: "blocks.", qkv: &["attention.self.query", "attention.self.key", "attention.self.value"], ..VIT };

pub(super) const TIMM: Names = Names {
    layers: "blocks.",
    qkv: &["attn.qkv"],
    out: "attn.proj",
    fc: ["mlp.fc1", "mlp.fc2"],
    norms: ["norm1", "norm2"],
    ..VIT
};

/// timm's names for layers that scale the values that they add.
pub(super) const TIMM_SCALED: Names = Names { scales: Some(["ls1.gamma", "ls2.gamma"]), ..TIMM };

/// timm's DINOv3.
pub(super) const TIMM_DINOV3: Names =
    Names { biases: Some(["attn.q_bias", "attn.k_bias", "attn.v_bias"]), scales: Some(["gamma_1", "gamma_2"]), ..TIMM };

/// timm's DINOv3 whose first product is gated.
pub(super) const TIMM_DINOV3_GATED: Names =
    Names { fc: ["mlp.fc1_x", "mlp.fc2"], gate: Some("mlp.fc1_g"), ..TIMM_DINOV3 };
