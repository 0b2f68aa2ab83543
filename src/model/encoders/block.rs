//! Layers of encoders, as nodes of a graph of values.

use std::collections::{BTreeMap, BTreeSet};

use super::names::Names;
use crate::graph::{Expr, GraphBuilder, Linear, Op, Slice, ValueId};
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
    /// Where rows begin and end that lie end to end, and the tokens of the longest: what is added is by distance then.
    pub packed: Option<(ValueId, usize)>,
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

/// A graph of an encoder that grows, and where its weights are from. Most are stored by their names.
#[derive(Default)]
pub(super) struct Block {
    pub g: GraphBuilder,
    /// Weights that are stored tensors one behind the other.
    pub joins: BTreeMap<String, Vec<String>>,
    /// Weights that are computed from stored tensors.
    pub made: BTreeSet<String>,
    /// The stored tensors that are joined, or computed from, and their dimensions.
    pub parts: BTreeMap<String, Vec<usize>>,
    /// How names of biases end that are not stored.
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
    /// By its name in the library `transformers`.
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

    /// The stored tensors that it needs, and their dimensions.
    pub fn needs(&self) -> BTreeMap<String, Vec<usize>> {
        self.read().filter(|(name, _)| !self.is_absent(name)).collect()
    }

    /// Biases that are not stored, and so zeros, and their dimensions.
    pub fn zeros(&self) -> BTreeMap<String, Vec<usize>> {
        self.read().filter(|(name, _)| self.is_absent(name)).collect()
    }

    /// The tensors that are read by their names.
    fn read(&self) -> impl Iterator<Item = (String, Vec<usize>)> {
        let weights = self.g.graph().weights().map(|(name, of)| (name.to_owned(), of.dims.clone()));
        let is_read = |name: &String| !self.joins.contains_key(name) && !self.made.contains(name);
        weights.filter(move |(name, _)| is_read(name)).chain(self.parts.clone())
    }

    fn is_absent(&self, name: &str) -> bool {
        self.absent.iter().any(|end| name.ends_with(end.as_str()))
    }

    /// A tensor of f32.
    pub fn weight(&mut self, name: &str, dims: &[usize]) -> ValueId {
        self.g.weight(name, Dtype::F32, dims)
    }

    /// x times the transpose of a matrix, and biases if there are some.
    pub fn linear(&mut self, name: &str, x: ValueId, columns: usize, has_bias: bool) -> ValueId {
        let with_bias = Linear::named(name, columns);
        let bias = with_bias.bias.filter(|_| has_bias);
        self.g.linear_with(name, x, Linear { bias, weight: with_bias.weight, out_features: columns })
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

    /// A layer, of whose tokens only the first ones are computed.
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

    /// The two products of a layer.
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

    /// Queries, keys and values side by side, by one product.
    fn qkv(&mut self, of: &Stack, layer: usize, x: ValueId) -> ValueId {
        let parts: Vec<String> = of.names.qkv.iter().map(|part| of.at(layer, part)).collect();
        if let (Some(biases), [all]) = (of.names.biases, &parts[..]) {
            self.join(&format!("{all}.bias"), biases.map(|part| of.at(layer, part)).to_vec(), &[of.width]);
        }
        self.side_by_side(&of.at(layer, "qkv"), &parts, x, 3 * of.width)
    }

    /// The product of x with one matrix, or with several one behind the other.
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

    /// Makes a tensor of others, of these dimensions, one behind the other.
    fn join(&mut self, name: &str, parts: Vec<String>, dims: &[usize]) {
        self.parts.extend(parts.iter().map(|part| (part.clone(), dims.to_vec())));
        self.joins.insert(name.to_owned(), parts);
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
