//! Layers of encoders, as nodes of a graph of values.

use std::collections::{BTreeMap, BTreeSet};

use super::names::Names;
use crate::graph::{Expr, GraphBuilder, Linear, Op, Slice, ValueId};
use crate::tensor::Dtype;

/// The layers of an encoder.
#[derive(Clone)]
pub(super) struct Stack {
    pub names: &'static Names,
    /// The beginning of all tensors' names.
    pub prefix: String,
    pub width: usize,
    pub heads: usize,
    pub layers: usize,
    /// The number of values between the two products of a layer.
    pub inner: usize,
    pub eps: f64,
    pub activation: Activation,
    /// Whether the first product has twice as many values, and the activation of the first half is multiplied by the
    /// second half.
    pub gated: bool,
    /// Whether the first layer has no norm before its attention.
    pub bare_first: bool,
    /// The ends of the names of absent biases, which are zeros.
    pub absent: Vec<String>,
}

/// Restrictions and positions in a layer's attention: what is added to scores, angles, and packed rows.
#[derive(Clone, Copy, Default)]
pub(super) struct Seen {
    /// The value that is added to scores.
    pub added: Option<ValueId>,
    /// Cosines and sines of the angles by which queries and keys are turned.
    pub turned: Option<[ValueId; 2]>,
    /// For rows that lie end to end, the places where rows begin and end, and the tokens of the longest row. `added` is
    /// then a table by distance.
    pub packed: Option<(ValueId, usize)>,
}

/// The activation between the two products of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    /// GELU by the error function.
    Gelu,
    /// GELU approximated by tanh.
    GeluTanh,
    /// x sigmoid(1.702 x).
    QuickGelu,
    Relu,
    Silu,
}

/// The graph of an encoder in the making, with the sources of its weights. Most weights are stored under their own
/// names.
#[derive(Default)]
pub(super) struct Block {
    pub g: GraphBuilder,
    /// Weights that are joined from stored tensors, one after the other.
    pub joins: BTreeMap<String, Vec<String>>,
    /// Weights that are computed from stored tensors.
    pub made: BTreeSet<String>,
    /// The stored tensors from which weights are joined or computed, and their dimensions.
    pub parts: BTreeMap<String, Vec<usize>>,
    /// The ends of the names of biases that are not stored.
    absent: Vec<String>,
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
    /// The activation of this name in the library `transformers`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "gelu" | "gelu_python" => Some(Self::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_tanh" | "gelu_fast" => Some(Self::GeluTanh),
            "quick_gelu" => Some(Self::QuickGelu),
            "relu" => Some(Self::Relu),
            "silu" | "swish" => Some(Self::Silu),
            _ => None,
        }
    }

    pub fn expr(self) -> Expr {
        let x = Expr::arg(0);
        match self {
            Self::Gelu => x.gelu(),
            Self::GeluTanh => x.gelu_tanh(),
            Self::QuickGelu => x.quick_gelu(),
            Self::Relu => x.relu(),
            Self::Silu => x.silu(),
        }
    }
}

/// A number in f32, as an expression.
pub(super) fn number(value: f64) -> Expr {
    Expr::float(Dtype::F32, value)
}

/// The number that is added to the score of a hidden key.
pub(super) const HIDDEN: f64 = -1e9;

impl Block {
    /// An empty graph for these layers.
    pub fn new(of: &Stack) -> Self {
        Self { absent: of.absent.clone(), ..Self::default() }
    }

    /// The stored tensors that the graph needs, with their dimensions.
    pub fn needs(&self) -> BTreeMap<String, Vec<usize>> {
        self.read().filter(|(name, _)| !self.is_absent(name)).collect()
    }

    /// The biases that are not stored, and so are zeros, with their dimensions.
    pub fn zeros(&self) -> BTreeMap<String, Vec<usize>> {
        self.read().filter(|(name, _)| self.is_absent(name)).collect()
    }

    /// All tensors that the graph reads under their own names, with their dimensions.
    fn read(&self) -> impl Iterator<Item = (String, Vec<usize>)> {
        let weights = self.g.graph().weights().map(|(name, of)| (name.to_owned(), of.dims.clone()));
        let is_read = |name: &String| !self.joins.contains_key(name) && !self.made.contains(name);
        weights.filter(move |(name, _)| is_read(name)).chain(self.parts.clone())
    }

    fn is_absent(&self, name: &str) -> bool {
        self.absent.iter().any(|end| name.ends_with(end.as_str()))
    }

    /// A weight in f32.
    pub fn weight(&mut self, name: &str, dims: &[usize]) -> ValueId {
        self.g.weight(name, Dtype::F32, dims)
    }

    /// x times the transpose of a matrix with `columns` rows, plus biases if there are any.
    pub fn linear(&mut self, name: &str, x: ValueId, columns: usize, has_bias: bool) -> ValueId {
        let with_bias = Linear::named(name, columns);
        let bias = with_bias.bias.filter(|_| has_bias);
        self.g.linear_with(name, x, Linear { bias, weight: with_bias.weight, out_features: columns })
    }

    /// A part of x, `[rows, tokens, columns]`, that begins at this token and column.
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

    /// All layers. Layer i attends as in `seen[i % seen.len()]`, and the last layer computes only the first `last`
    /// tokens.
    pub fn layers(&mut self, of: &Stack, x: ValueId, seen: &[Seen], last: usize) -> ValueId {
        let tokens = self.g.value(x).dims[1];
        (0..of.layers).fold(x, |x, layer| {
            let tokens = if layer + 1 == of.layers { last } else { tokens };
            self.layer(of, layer, x, seen[layer % seen.len()], tokens)
        })
    }

    /// A layer that computes only the first `tokens` tokens.
    pub fn layer(&mut self, of: &Stack, layer: usize, x: ValueId, seen: Seen, tokens: usize) -> ValueId {
        let Names { norms, scales, norm_first, .. } = *of.names;
        let norms = norms.map(|part| of.at(layer, part));
        let scales = scales.map_or([None, None], |scales| scales.map(|part| Some(of.at(layer, part))));
        let kept = self.cut(&of.at(layer, "kept"), x, [0, 0], [tokens, of.width]);
        if norm_first {
            let is_bare = of.bare_first && layer == 0;
            let y = if is_bare { x } else { self.g.layer_norm(&norms[0], x, of.eps) };
            let y = self.attention(of, layer, y, seen, tokens);
            let x = self.sum(&of.at(layer, "sum1"), kept, y, scales[0].as_deref());
            let y = self.g.layer_norm(&norms[1], x, of.eps);
            let y = self.mlp(of, layer, y);
            return self.sum(&of.at(layer, "sum2"), x, y, scales[1].as_deref());
        }
        let y = self.attention(of, layer, x, seen, tokens);
        let x = self.sum(&of.at(layer, "sum1"), kept, y, scales[0].as_deref());
        let x = self.g.layer_norm(&norms[0], x, of.eps);
        let y = self.mlp(of, layer, x);
        let x = self.sum(&of.at(layer, "sum2"), x, y, scales[1].as_deref());
        self.g.layer_norm(&norms[1], x, of.eps)
    }

    /// The two products of a layer with the activation between.
    fn mlp(&mut self, of: &Stack, layer: usize, x: ValueId) -> ValueId {
        let [fc1, fc2] = of.names.fc.map(|part| of.at(layer, part));
        if of.gated {
            let y = self.gated(of, layer, x);
            return self.linear(&fc2, y, of.width, true);
        }
        let y = self.linear(&fc1, x, of.inner, true);
        let y = self.g.map(&of.at(layer, "activation"), of.activation.expr(), &[y]);
        self.linear(&fc2, y, of.width, true)
    }

    /// x + y, or x + scale y if there is a scale.
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

    /// Attention of the first `tokens` tokens to all tokens, and the product that follows.
    fn attention(&mut self, of: &Stack, layer: usize, x: ValueId, seen: Seen, tokens: usize) -> ValueId {
        let name = |part: &str| of.at(layer, part);
        let [rows, keys] = [0, 1].map(|axis| self.g.value(x).dims[axis]);
        let qkv = self.qkv(of, layer, x);
        let [q, k] = match seen.turned {
            Some(by) => self.turned(of, &name(""), qkv, by, tokens),
            None => [("q", 0, tokens), ("k", 1, keys)]
                .map(|(part, index, tokens)| self.heads(of, &name(part), qkv, index, tokens)),
        };
        let v = self.heads(of, &name("v"), qkv, 2, keys);
        let mixed = match seen.packed {
            None => self.g.attention(&name("attention"), [q, k, v], seen.added),
            Some((starts, longest)) => {
                let of_tokens = vec![tokens, of.heads, of.width / of.heads];
                let qkv = [("q", q), ("k", k), ("v", v)].map(|(part, x)| {
                    self.g.node(&name(&format!("{part}.packed")), Op::Reshape(of_tokens.clone()), &[x])
                });
                self.g.packed_attention(&name("attention"), qkv, starts, seen.added, longest)
            }
        };
        let together = self.g.node(&name("together"), Op::Reshape(vec![rows, tokens, of.width]), &[mixed]);
        self.linear(&name(of.names.out), together, of.width, true)
    }

    /// Queries, keys and values side by side, from one product.
    fn qkv(&mut self, of: &Stack, layer: usize, x: ValueId) -> ValueId {
        let parts: Vec<String> = of.names.qkv.iter().map(|part| of.at(layer, part)).collect();
        if let (Some(biases), [all]) = (of.names.biases, &parts[..]) {
            self.join(&format!("{all}.bias"), biases.map(|part| of.at(layer, part)).to_vec(), &[of.width]);
        }
        self.side_by_side(&of.at(layer, "qkv"), &parts, x, 3 * of.width)
    }

    /// The product of x with one matrix, or with several matrices that are joined.
    pub fn side_by_side(&mut self, name: &str, parts: &[String], x: ValueId, columns: usize) -> ValueId {
        if let [all] = parts {
            return self.linear(all, x, columns, true);
        }
        let (terms, of_part) = (self.width(x), columns / parts.len());
        for (kind, dims) in [("weight", &[of_part, terms][..]), ("bias", &[of_part])] {
            self.join(&format!("{name}.{kind}"), parts.iter().map(|part| format!("{part}.{kind}")).collect(), dims);
        }
        self.linear(name, x, columns, true)
    }

    /// Declares a weight that is joined from stored tensors of dimensions `dims`, one after the other.
    fn join(&mut self, name: &str, parts: Vec<String>, dims: &[usize]) {
        self.parts.extend(parts.iter().map(|part| (part.clone(), dims.to_vec())));
        self.joins.insert(name.to_owned(), parts);
    }

    /// Queries, keys or values (`part` 0, 1 or 2) of the first `tokens` tokens: `[rows, tokens, heads, dims]`.
    pub fn heads(&mut self, of: &Stack, name: &str, qkv: ValueId, part: usize, tokens: usize) -> ValueId {
        let rows = self.g.value(qkv).dims[0];
        let cut = self.cut(&format!("{name}.cut"), qkv, [0, part * of.width], [tokens, of.width]);
        self.g.node(name, Op::Reshape(vec![rows, tokens, of.heads, of.width / of.heads]), &[cut])
    }

    /// The number of values of a vector: the last dimension of x.
    pub fn width(&self, x: ValueId) -> usize {
        self.g.value(x).dims.last().copied().unwrap_or(0)
    }
}
