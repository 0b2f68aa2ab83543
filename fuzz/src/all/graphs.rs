//! ONNX files of a few nodes, made from decisions: any operators with any attributes, and operands of all types and
//! ranks.

use super::source::Source;
use super::write::{attribute, bytes, int, message, model};

/// The bytes of a file.
pub fn file(source: &mut Source<'_>) -> Vec<u8> {
    let version = 7 + source.below(22) as i64;
    let mut writer = Writer { source, graph: Vec::new(), names: Vec::new(), made: 0, depth: 0 };
    for _ in 0..1 + writer.source.below(4) {
        writer.operand();
    }
    let before = writer.names.len();
    writer.nodes(4);
    let outputs = writer.names.split_off(before).into_iter().map(|name| port(12, &name, 1, &[]));
    writer.graph.extend(outputs.collect::<Vec<_>>());
    let opsets = [message(8, &[int(2, version)]), message(8, &[bytes(1, "ai.onnx.preview"), int(2, 1)])];
    [model(&writer.graph), opsets.concat()].concat()
}

struct Writer<'s, 'a> {
    source: &'s mut Source<'a>,
    /// The fields of the graph.
    graph: Vec<Vec<u8>>,
    /// The names of the values that a node may read.
    names: Vec<String>,
    made: usize,
    /// The number of graphs around the present one.
    depth: usize,
}

/// The numbers of element types; usual types occur more often.
const DTYPES: [i64; 22] = [1, 1, 1, 1, 7, 7, 7, 6, 9, 10, 11, 2, 3, 4, 5, 12, 13, 16, 17, 21, 22, 8];

/// The names of attributes that are graphs.
const BODIES: [&str; 3] = ["body", "then_branch", "else_branch"];

const DIMS: [usize; 12] = [0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 7];

impl Writer<'_, '_> {
    fn fresh(&mut self) -> String {
        self.made += 1;
        format!("v{}", self.made)
    }

    /// Adds an input or an initializer.
    fn operand(&mut self) {
        let (name, dtype) = (self.fresh(), self.source.pick(&DTYPES));
        let dims = self.source.some(5, |source| source.pick(&DIMS));
        let field = match self.source.below(3) {
            0 => port(11, &name, dtype, &dims),
            _ => message(5, &[bytes(8, &name), self.tensor(dtype, &dims)]),
        };
        self.graph.push(field);
        self.names.push(name);
    }

    /// The fields of a tensor.
    fn tensor(&mut self, dtype: i64, dims: &[usize]) -> Vec<u8> {
        let elems: usize = dims.iter().product();
        let mut raw = Vec::new();
        for _ in 0..elems {
            match dtype {
                1 => raw.extend(self.source.float().to_le_bytes()),
                10 => raw.extend(half::f16::from_f32(self.source.float()).to_le_bytes()),
                16 => raw.extend(half::bf16::from_f32(self.source.float()).to_le_bytes()),
                11 => raw.extend(f64::from(self.source.float()).to_le_bytes()),
                7 | 13 => raw.extend(self.source.int().to_le_bytes()),
                6 | 12 => raw.extend((self.source.int() as i32).to_le_bytes()),
                4 | 5 => raw.extend((self.source.int() as i16).to_le_bytes()),
                9 => raw.push(self.source.byte() & 1),
                _ => raw.push(self.source.byte()),
            }
        }
        if matches!(dtype, 21 | 22) {
            raw.truncate(elems.div_ceil(2));
        }
        [dims.iter().map(|&dim| int(1, dim as i64)).collect::<Vec<_>>().concat(), int(2, dtype), bytes(9, raw)].concat()
    }

    fn nodes(&mut self, most: usize) {
        for _ in 0..1 + self.source.below(most) {
            let node = self.node();
            self.graph.push(node);
        }
    }

    fn node(&mut self) -> Vec<u8> {
        let op_type = self.source.pick(&OPERATORS);
        let mut fields = vec![bytes(4, op_type)];
        for _ in 0..self.source.below(7) {
            let at = self.source.below(self.names.len() + 1);
            fields.push(bytes(1, self.names.get(at).map_or("", String::as_str)));
        }
        let mut attributes = self.source.some(5, |source| source.pick(&ATTRIBUTES));
        attributes.sort_unstable();
        attributes.dedup();
        for name in attributes.into_iter().filter(|name| !BODIES.contains(name)) {
            fields.push(self.attribute(name));
        }
        if matches!(op_type, "If" | "Loop" | "Scan" | "SequenceMap" | "FlexAttention") {
            for name in BODIES {
                fields.push(attribute(name, &[int(20, 5), bytes(6, self.body())]));
            }
        }
        let outputs: Vec<String> = (0..1 + self.source.below(3)).map(|_| self.fresh()).collect();
        fields.extend(outputs.iter().map(|name| bytes(2, name)));
        self.names.extend(outputs);
        message(1, &fields)
    }

    fn attribute(&mut self, name: &str) -> Vec<u8> {
        let source = &mut *self.source;
        let value = match source.below(6) {
            0 | 1 => [int(20, 2), int(3, source.int())].concat(),
            2 => [int(20, 1), float(2, source.float())].concat(),
            3 => [int(20, 3), bytes(4, source.pick(&TEXTS))].concat(),
            4 => [int(20, 7), source.some(6, |source| int(8, source.int())).concat()].concat(),
            _ => {
                let dims = self.source.some(2, |source| source.pick(&DIMS));
                let dtype = self.source.pick(&DTYPES);
                [int(20, 4), bytes(5, self.tensor(dtype, &dims))].concat()
            }
        };
        attribute(name, &[value])
    }

    /// The fields of a graph that a node has as an attribute. Its nodes can read the values around it.
    fn body(&mut self) -> Vec<u8> {
        if self.depth == 2 {
            return Vec::new();
        }
        let (graph, around) = (std::mem::take(&mut self.graph), self.names.len());
        self.depth += 1;
        for _ in 0..self.source.below(4) {
            let name = self.fresh();
            self.graph.push(port(11, &name, 1, &[]));
            self.names.push(name);
        }
        self.nodes(2);
        for _ in 0..self.source.below(4) {
            let name = self.names[self.source.below(self.names.len())].clone();
            self.graph.push(port(12, &name, 1, &[]));
        }
        self.depth -= 1;
        self.names.truncate(around);
        std::mem::replace(&mut self.graph, graph).concat()
    }
}

fn float(number: u32, value: f32) -> Vec<u8> {
    [vec![(number << 3 | 5) as u8], value.to_le_bytes().to_vec()].concat()
}

/// An input or output of a graph.
fn port(field: u32, name: &str, dtype: i64, dims: &[usize]) -> Vec<u8> {
    let dims = dims.iter().map(|&dim| message(1, &[int(1, dim as i64)])).collect::<Vec<_>>();
    message(field, &[bytes(1, name), message(2, &[message(1, &[int(1, dtype), message(2, &dims)])])])
}

const OPERATORS: [&str; 191] = [
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "AffineGrid",
    "And",
    "ArgMax",
    "ArgMin",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Attention",
    "AveragePool",
    "BatchNormalization",
    "BitCast",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "BlackmanWindow",
    "Cast",
    "CastLike",
    "CausalConvWithState",
    "Ceil",
    "Celu",
    "CenterCropPad",
    "Clip",
    "Col2Im",
    "Compress",
    "Concat",
    "ConcatFromSequence",
    "Constant",
    "ConstantOfShape",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "Cos",
    "Cosh",
    "CumProd",
    "CumSum",
    "DFT",
    "DeformConv",
    "DepthToSpace",
    "DequantizeLinear",
    "Det",
    "Div",
    "Dropout",
    "DynamicQuantizeLinear",
    "Einsum",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Expand",
    "EyeLike",
    "Flatten",
    "FlexAttention",
    "Floor",
    "GRU",
    "Gather",
    "GatherElements",
    "GatherND",
    "Gelu",
    "Gemm",
    "GlobalAveragePool",
    "GlobalLpPool",
    "GlobalMaxPool",
    "Greater",
    "GreaterOrEqual",
    "GridSample",
    "GroupNormalization",
    "HammingWindow",
    "HannWindow",
    "HardSigmoid",
    "HardSwish",
    "Hardmax",
    "Identity",
    "If",
    "InstanceNormalization",
    "IsInf",
    "IsNaN",
    "LRN",
    "LSTM",
    "LayerNormalization",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "LinearAttention",
    "Log",
    "LogSoftmax",
    "Loop",
    "LpNormalization",
    "LpPool",
    "MatMul",
    "MatMulInteger",
    "Max",
    "MaxPool",
    "MaxUnpool",
    "Mean",
    "MeanVarianceNormalization",
    "MelWeightMatrix",
    "Min",
    "Mish",
    "Mod",
    "Mul",
    "Neg",
    "NegativeLogLikelihoodLoss",
    "NonMaxSuppression",
    "NonZero",
    "Not",
    "OneHot",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "Or",
    "PRelu",
    "Pad",
    "Pow",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
    "RMSNormalization",
    "RNN",
    "Range",
    "Reciprocal",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "Relu",
    "Reshape",
    "Resize",
    "ReverseSequence",
    "RoiAlign",
    "RotaryEmbedding",
    "Round",
    "STFT",
    "Scan",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "Selu",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SequenceMap",
    "Shape",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Size",
    "Slice",
    "Softmax",
    "SoftmaxCrossEntropyLoss",
    "Softplus",
    "Softsign",
    "SpaceToDepth",
    "Split",
    "SplitToSequence",
    "Sqrt",
    "Squeeze",
    "Sub",
    "Sum",
    "SwiGLU",
    "Swish",
    "Tan",
    "Tanh",
    "TensorScatter",
    "ThresholdedRelu",
    "Tile",
    "TopK",
    "Transpose",
    "Trilu",
    "Unique",
    "Unsqueeze",
    "Upsample",
    "Where",
    "Xor",
];

const ATTRIBUTES: [&str; 116] = [
    "alpha",
    "axis",
    "mode",
    "axes",
    "epsilon",
    "coordinate_transformation_mode",
    "group",
    "p",
    "keepdims",
    "scale",
    "reduction",
    "direction",
    "auto_pad",
    "kernel_shape",
    "saturate",
    "output_datatype",
    "softmax_precision",
    "output_dtype",
    "beta",
    "align_corners",
    "activations",
    "update_rule",
    "round_mode",
    "padding_mode",
    "nearest_mode",
    "keep_aspect_ratio_policy",
    "equation",
    "approximate",
    "activation",
    "value",
    "size",
    "sampling_ratio",
    "rotary_embedding_dim",
    "qk_matmul_output_mode",
    "output_width",
    "output_height",
    "offset_group",
    "num_scan_inputs",
    "num_outputs",
    "num_heads",
    "q_num_heads",
    "kv_num_heads",
    "num_groups",
    "blocksize",
    "block_size",
    "batch_dims",
    "split",
    "perm",
    "pads",
    "output_shape",
    "upper",
    "storage_order",
    "start",
    "sorted",
    "right_window_size",
    "left_window_size",
    "periodic",
    "onesided",
    "largest",
    "k",
    "end",
    "to",
    "ignore_index",
    "dtype",
    "scales",
    "spatial_scale",
    "softcap",
    "momentum",
    "lambd",
    "gamma",
    "extrapolation_value",
    "cubic_coeff_a",
    "bias",
    "clip",
    "transB",
    "transA",
    "training_mode",
    "select_last_index",
    "reverse",
    "noop_with_empty_axes",
    "new_axis",
    "linear_before_reset",
    "layout",
    "is_causal",
    "inverse",
    "interleaved",
    "input_forget",
    "fmod",
    "exclusive",
    "exclude_outside",
    "count_include_pad",
    "center_point_box",
    "ceil_mode",
    "antialias",
    "allowzero",
    "time_axis",
    "batch_axis",
    "starts",
    "ends",
    "strides",
    "dilations",
    "output_padding",
    "hidden_size",
    "body",
    "then_branch",
    "else_branch",
    "score_mod",
    "value_int",
    "value_ints",
    "value_float",
    "value_floats",
    "max_trip",
    "to_bits",
    "detect_positive",
    "detect_negative",
    "shape",
];

const TEXTS: [&str; 56] = [
    "constant",
    "reflect",
    "edge",
    "wrap",
    "linear",
    "cubic",
    "nearest",
    "bilinear",
    "SAME_UPPER",
    "SAME_LOWER",
    "VALID",
    "NOTSET",
    "DCR",
    "CRD",
    "none",
    "add",
    "mul",
    "max",
    "min",
    "mean",
    "sum",
    "avg",
    "forward",
    "reverse",
    "bidirectional",
    "tanh",
    "half_pixel",
    "asymmetric",
    "align_corners",
    "tf_crop_and_resize",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "floor",
    "ceil",
    "round_prefer_ceil",
    "stretch",
    "not_larger",
    "not_smaller",
    "Tanh",
    "Sigmoid",
    "Relu",
    "LeakyRelu",
    "zeros",
    "border",
    "reflection",
    "LEFT",
    "RIGHT",
    "ij,jk->ik",
    "ii->i",
    "b...i,...->bi",
    "gated",
    "delta",
    "gated_delta",
    "silu",
    "swish",
    "output_half_pixel",
];
