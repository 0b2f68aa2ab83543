//! The styles of layers: the names of their modules, and the operations.

/// The style of a layer: the names of its modules, and the operations that differ.
pub struct Style {
    pub qkv: [&'static str; 3],
    pub out: &'static str,
    pub fc: [&'static str; 2],
    pub norms: [&'static str; 2],
    pub scales: Option<[&'static str; 2]>,
    pub norm_first: bool,
    pub eps: f64,
    pub activation: fn(f64) -> f64,
}

pub fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + libm::erf(x / std::f64::consts::SQRT_2))
}

pub fn quick_gelu(x: f64) -> f64 {
    x / (1.0 + (-1.702 * x).exp())
}

pub const BERT: Style = Style {
    qkv: ["attention.self.query", "attention.self.key", "attention.self.value"],
    out: "attention.output.dense",
    fc: ["intermediate.dense", "output.dense"],
    norms: ["attention.output.LayerNorm", "output.LayerNorm"],
    scales: None,
    norm_first: false,
    eps: 1e-12,
    activation: gelu,
};
pub const MPNET: Style = Style {
    qkv: ["attention.attn.q", "attention.attn.k", "attention.attn.v"],
    out: "attention.attn.o",
    norms: ["attention.LayerNorm", "output.LayerNorm"],
    ..BERT
};
pub const DISTILBERT: Style = Style {
    qkv: ["attention.q_lin", "attention.k_lin", "attention.v_lin"],
    out: "attention.out_lin",
    fc: ["ffn.lin1", "ffn.lin2"],
    norms: ["sa_layer_norm", "output_layer_norm"],
    ..BERT
};
pub const VIT: Style = Style {
    qkv: ["attention.attention.query", "attention.attention.key", "attention.attention.value"],
    norms: ["layernorm_before", "layernorm_after"],
    norm_first: true,
    ..BERT
};
pub const DINO: Style = Style {
    fc: ["mlp.fc1", "mlp.fc2"],
    norms: ["norm1", "norm2"],
    scales: Some(["layer_scale1.lambda1", "layer_scale2.lambda1"]),
    eps: 1e-6,
    ..VIT
};
pub const CLIP: Style = Style {
    qkv: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    out: "self_attn.out_proj",
    fc: ["mlp.fc1", "mlp.fc2"],
    norms: ["layer_norm1", "layer_norm2"],
    norm_first: true,
    eps: 1e-5,
    activation: quick_gelu,
    ..BERT
};
/// The style of timm, where one matrix makes queries, keys and values.
pub const TIMM: Style = Style {
    qkv: ["attn.qkv"; 3],
    out: "attn.proj",
    fc: ["mlp.fc1", "mlp.fc2"],
    norms: ["norm1", "norm2"],
    norm_first: true,
    eps: 1e-6,
    ..BERT
};
