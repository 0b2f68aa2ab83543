//! Layers of encoders, as nodes of a graph of values.

use std::collections::BTreeMap;

use super::names::Names;
use crate::graph::{Binary, Contract, Expr, GraphBuilder, Norm, Op, Slice, Unary, ValueId};
use crate::tensor::Dtype;

/// The layers of an encoder.
#[derive(Clone)]
pub(super) struct Stack {
    pub names: &'static Names,
    /// What the names of all its tensors begin with.
    pub prefix: String,
    pub width: usize,
    pub heads: usize,
    pub layers: usize,
    /// Values between the two products of a layer.
    pub inner: usize,
    pub eps: f64,
    pub activation: Activation,
    /// Whether the first product has twice the values, of which the activation's second half multiplies its first one.
    pub gated: bool,
    /// Whether the first layer has no norm before its attention.
    pub bare_first: bool,
    /// How names of biases end that are not there: they are zeros.
    pub absent: Vec<String>,
}

/// What the tokens of a layer see of each other.
#[derive(Clone, Copy, Default)]
pub(super) struct Seen {
    /// Added to scores.
    pub added: Option<ValueId>,
    /// Cosines and sines of the angles that queries and keys are turned by.
    pub turned: Option<[ValueId; 2]>,
}

/// What is between the two products of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    /// By the error function.
    Gelu,
    /// By tanh.
    GeluTanh,
    /// x sigmoid(1.702 x).
    QuickGelu,
    Relu,
    Silu,
}

/// A graph of an encoder that grows, and the stored tensors that it needs.
#[derive(Default)]
pub(super) struct Block {
    pub g: GraphBuilder,
    /// Dimensions of the tensors, by name.
    pub needs: BTreeMap<String, Vec<usize>>,
    /// Tensors that are others one behind the other.
    pub joins: BTreeMap<String, Vec<String>>,
    /// How names of biases end that are not stored.
    pub absent: Vec<String>,
    /// Such biases, and their dimensions.
    pub zeros: BTreeMap<String, Vec<usize>>,
}

impl Stack {
    /// The name of a tensor or module.
    pub fn name(&self, part: &str) -> String {
        format!("{}{part}", self.prefix)
    }

    /// The name of a module of a layer.
    pub fn at(&self, layer: usize, part: &str) -> String {
        format!("{}{}{layer}.{part}", self.prefix, self.names.layers)
    }
}

impl Activation {
    /// By its name in the library `transformers`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "gelu" | "gelu_python" => Some(Self::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Some(Self::GeluTanh),
            "quick_gelu" => Some(Self::QuickGelu),
            "relu" => Some(Self::Relu),
            "silu" | "swish" => Some(Self::Silu),
            _ => None,
        }
    }

    pub fn expr(self) -> Expr {
        let x = || Expr::arg(0);
        let sigmoid = |x: Expr| number(1.0) / (number(1.0) + (-x).unary(Unary::Exp));
        match self {
            Self::Gelu => {
                let erf = (x() * number(std::f64::consts::FRAC_1_SQRT_2)).unary(Unary::Erf);
                x() * number(0.5) * (number(1.0) + erf)
            }
            Self::GeluTanh => {
                let inner = (x() + x() * x() * x() * number(0.044_715)) * number((2.0 / std::f64::consts::PI).sqrt());
                x() * number(0.5) * (number(1.0) + inner.unary(Unary::Tanh))
            }
            Self::QuickGelu => x() * sigmoid(x() * number(1.702)),
            Self::Relu => x().binary(Binary::Max, number(0.0)),
            Self::Silu => x() * sigmoid(x()),
        }
    }
}

/// A number of f32.
pub(super) fn number(value: f64) -> Expr {
    Expr::float(Dtype::F32, value)
}

/// What hides a key where it is added to scores.
pub(super) const HIDDEN: f64 = -1e9;

impl Block {
    /// An empty graph, for these layers.
    pub fn new(of: &Stack) -> Self {
        Self { absent: of.absent.clone(), ..Self::default() }
    }

    /// A stored tensor.
    pub fn weight(&mut self, name: &str, dims: &[usize]) -> ValueId {
        self.need(name, dims);
        self.g.weight(name, Dtype::F32, dims)
    }

    /// Notes that a tensor is read.
    fn need(&mut self, name: &str, dims: &[usize]) {
        let is_absent = self.absent.iter().any(|end| name.ends_with(end.as_str()));
        let of = if is_absent { &mut self.zeros } else { &mut self.needs };
        of.insert(name.to_owned(), dims.to_vec());
    }

    /// x times the transpose of a stored matrix, and biases if there are some.
    pub fn linear(&mut self, name: &str, x: ValueId, columns: usize, has_bias: bool) -> ValueId {
        let terms = self.width(x);
        let w = self.weight(&format!("{name}.weight"), &[columns, terms]);
        let b = has_bias.then(|| self.weight(&format!("{name}.bias"), &[columns]));
        self.product(name, x, w, b)
    }

    /// x times the transpose of a matrix, and biases if there are some.
    pub fn product(&mut self, name: &str, x: ValueId, w: ValueId, b: Option<ValueId>) -> ValueId {
        let rank = self.g.value(x).rank();
        let outer: Vec<usize> = (0..rank - 1).collect();
        let of = Contract {
            left: [&outer[..], &[rank]].concat(),
            right: vec![rank - 1, rank],
            result: [&outer[..], &[rank - 1]].concat(),
        };
        let y = self.g.node(name, Op::Contract(of), &[x, w]);
        match b {
            Some(b) => self.g.map(&format!("{name} + bias"), Expr::arg(0) + Expr::arg(1), &[y, b]),
            None => y,
        }
    }

    /// The norm of each vector.
    pub fn norm(&mut self, name: &str, x: ValueId, eps: f64) -> ValueId {
        let width = self.width(x);
        let [w, b] = ["weight", "bias"].map(|part| self.weight(&format!("{name}.{part}"), &[width]));
        let axis = self.g.value(x).rank() - 1;
        self.g.node(name, Op::Norm(Norm { axis, eps, centred: true }), &[x, w, b])
    }

    /// Some tokens and columns of x: `[rows, tokens, columns]` from these on.
    pub fn cut(
        &mut self,
        name: &str,
        x: ValueId,
        [token, column]: [usize; 2],
        [tokens, columns]: [usize; 2],
    ) -> ValueId {
        let rows = self.g.value(x).dims[0];
        let slice = Slice { start: vec![0, token, column], step: vec![1; 3], dims: vec![rows, tokens, columns] };
        if self.g.value(x).dims == slice.dims { x } else { self.g.node(name, Op::Slice(slice), &[x]) }
    }

    /// All layers, which see so by turns. Of the last one only so many tokens are computed.
    pub fn layers(&mut self, of: &Stack, x: ValueId, seen: &[Seen], last: usize) -> ValueId {
        let tokens = self.g.value(x).dims[1];
        (0..of.layers).fold(x, |x, layer| {
            let tokens = if layer + 1 == of.layers { last } else { tokens };
            self.layer(of, layer, x, seen[layer % seen.len()], tokens)
        })
    }

    fn layer(&mut self, of: &Stack, layer: usize, x: ValueId, seen: Seen, tokens: usize) -> ValueId {
        let Names { norms, scales, norm_first, .. } = *of.names;
        let norms = norms.map(|part| of.at(layer, part));
        let scales = scales.map_or([None, None], |scales| scales.map(|part| Some(of.at(layer, part))));
        let kept = self.cut(&of.at(layer, "kept"), x, [0, 0], [tokens, of.width]);
        if norm_first {
            let is_bare = of.bare_first && layer == 0;
            let y = if is_bare { x } else { self.norm(&norms[0], x, of.eps) };
            let y = self.attention(of, layer, y, seen, tokens);
            let x = self.sum(&of.at(layer, "sum1"), kept, y, scales[0].as_deref());
            let y = self.norm(&norms[1], x, of.eps);
            let y = self.mlp(of, layer, y);
            return self.sum(&of.at(layer, "sum2"), x, y, scales[1].as_deref());
        }
        let y = self.attention(of, layer, x, seen, tokens);
        let x = self.sum(&of.at(layer, "sum1"), kept, y, scales[0].as_deref());
        let x = self.norm(&norms[0], x, of.eps);
        let y = self.mlp(of, layer, x);
        let x = self.sum(&of.at(layer, "sum2"), x, y, scales[1].as_deref());
        self.norm(&norms[1], x, of.eps)
    }

    /// The two products of a layer.
    pub fn mlp(&mut self, of: &Stack, layer: usize, x: ValueId) -> ValueId {
        let [fc1, fc2] = of.names.fc.map(|part| of.at(layer, part));
        if of.gated {
            let y = self.gated(of, layer, x);
            return self.linear(&fc2, y, of.width, true);
        }
        let y = self.linear(&fc1, x, of.inner, true);
        let y = self.g.map(&of.at(layer, "activation"), of.activation.expr(), &[y]);
        self.linear(&fc2, y, of.width, true)
    }

    /// x + y, or x + scale y.
    pub fn sum(&mut self, name: &str, x: ValueId, y: ValueId, scale: Option<&str>) -> ValueId {
        match scale {
            None => self.g.map(name, Expr::arg(0) + Expr::arg(1), &[x, y]),
            Some(scale) => {
                let width = self.width(x);
                let scale = self.weight(scale, &[width]);
                self.g.map(name, Expr::arg(0) + Expr::arg(1) * Expr::arg(2), &[x, y, scale])
            }
        }
    }

    /// Attention of the first tokens to all of them, and the product behind it.
    pub fn attention(&mut self, of: &Stack, layer: usize, x: ValueId, seen: Seen, tokens: usize) -> ValueId {
        let name = |part: &str| of.at(layer, part);
        let [rows, keys] = [0, 1].map(|axis| self.g.value(x).dims[axis]);
        let qkv = self.qkv(of, layer, x);
        let [q, k] = match seen.turned {
            Some(by) => self.turned(of, &name(""), qkv, by, tokens),
            None => [("q", 0, tokens), ("k", 1, keys)]
                .map(|(part, index, tokens)| self.heads(of, &name(part), qkv, index, tokens)),
        };
        let v = self.heads(of, &name("v"), qkv, 2, keys);
        let mixed = self.mixed(&name(""), [q, k, v], seen.added);
        let together = self.g.node(&name("together"), Op::Reshape(vec![rows, tokens, of.width]), &[mixed]);
        self.linear(&name(of.names.out), together, of.width, true)
    }

    /// Values mixed by the softmax of the scores of queries and keys: all of them, and the result, are
    /// `[rows, tokens, heads, dims]`.
    pub fn mixed(&mut self, at: &str, [q, k, v]: [ValueId; 3], added: Option<ValueId>) -> ValueId {
        let [row, token, head, key, dim] = [0, 1, 2, 3, 4];
        let name = |part: &str| format!("{at}{part}");
        let scored = Contract {
            left: vec![row, token, head, dim],
            right: vec![row, key, head, dim],
            result: vec![row, head, token, key],
        };
        let dims = self.width(q);
        let scores = self.g.node(&name("scores"), Op::Contract(scored), &[q, k]);
        let scaled = Expr::arg(0) * number(1.0 / (dims as f64).sqrt());
        let scores = match added {
            Some(added) => self.g.map(&name("scaled"), scaled + Expr::arg(1), &[scores, added]),
            None => self.g.map(&name("scaled"), scaled, &[scores]),
        };
        let weights = self.g.node(&name("softmax"), Op::Softmax { axis: 3, log: false }, &[scores]);
        let mixed = Contract {
            left: vec![row, head, token, key],
            right: vec![row, key, head, dim],
            result: vec![row, token, head, dim],
        };
        self.g.node(&name("mixed"), Op::Contract(mixed), &[weights, v])
    }

    /// Queries, keys and values side by side, by one product.
    fn qkv(&mut self, of: &Stack, layer: usize, x: ValueId) -> ValueId {
        let parts: Vec<String> = of.names.qkv.iter().map(|part| of.at(layer, part)).collect();
        self.side_by_side(&of.at(layer, "qkv"), &parts, x, 3 * of.width)
    }

    /// The product of x with one matrix, or with several one behind the other.
    pub fn side_by_side(&mut self, name: &str, parts: &[String], x: ValueId, columns: usize) -> ValueId {
        if let [all] = parts {
            return self.linear(all, x, columns, true);
        }
        let (terms, columns) = (self.width(x), columns / parts.len());
        let w = self.joined(name, parts, "weight", &[columns, terms]);
        let b = self.joined(name, parts, "bias", &[columns]);
        self.product(name, x, w, Some(b))
    }

    /// Tensors of these dimensions one behind the other.
    fn joined(&mut self, name: &str, parts: &[String], kind: &str, dims: &[usize]) -> ValueId {
        let parts: Vec<String> = parts.iter().map(|part| format!("{part}.{kind}")).collect();
        parts.iter().for_each(|part| self.need(part, dims));
        let dims = [&[parts.len() * dims[0]], &dims[1..]].concat();
        let name = format!("{name}.{kind}");
        let value = self.g.weight(&name, Dtype::F32, &dims);
        self.joins.insert(name, parts);
        value
    }

    /// One of queries, keys and values: `[rows, tokens, heads, dims]`.
    pub fn heads(&mut self, of: &Stack, name: &str, qkv: ValueId, part: usize, tokens: usize) -> ValueId {
        let rows = self.g.value(qkv).dims[0];
        let cut = self.cut(&format!("{name}.cut"), qkv, [0, part * of.width], [tokens, of.width]);
        self.g.node(name, Op::Reshape(vec![rows, tokens, of.heads, of.width / of.heads]), &[cut])
    }

    /// Values of a vector.
    pub fn width(&self, x: ValueId) -> usize {
        self.g.value(x).dims.last().copied().unwrap_or(0)
    }
}
