//! Encoders of transformers with random weights, written as exporters write them.

use trefoil::graph::{Binary, Contract, Conv, Expr, Graph, GraphBuilder, Norm, Op, Slice, Unary, ValueId, Window};
use trefoil::model::{Model, Weights};
use trefoil::{Dtype, Error};

use super::random::Random;

/// The sizes and the style of an encoder.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    /// Number of tokens of a row; for images the number of patches and one more.
    pub tokens: usize,
    pub heads: usize,
    /// Number of values of a head.
    pub dims: usize,
    pub layers: usize,
    pub style: Style,
}

/// The form in which an encoder is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Like timm's vision transformers: norms first, one product for queries, keys and values, GELU by erf.
    Vision,
    /// Like `Vision`, but of images in patches of this many pixels, with classes of the first token.
    Images(usize),
    /// Like BERT: norms last, a product for each of queries, keys and values, a mask of keys, GELU by tanh.
    Text,
}

/// Number of classes of images.
pub const CLASSES: usize = 1000;

impl Encoder {
    /// The encoder, with weights that keep the size of values.
    pub fn model(self) -> Result<Model, Error> {
        let graph = self.graph(1)?;
        let mut random = Random::new(&format!("{self:?}"));
        let mut tensors = Vec::new();
        for value in &graph.values {
            let trefoil::graph::Origin::Constant(trefoil::graph::Constant::Weight(name)) = &value.origin else {
                continue;
            };
            let (dims, elems) = (value.of.dims.clone(), value.of.elems());
            let values = match dims[..] {
                [k, _] => random.singles(elems, (3.0 / k as f64).sqrt()),
                [_, c, r, s] => random.singles(elems, (3.0 / (c * r * s) as f64).sqrt()),
                _ if name.ends_with("factor") => random.singles(elems, 0.5).iter().map(|x| 1.0 + x).collect(),
                _ => random.singles(elems, 0.5),
            };
            tensors.push((name.clone(), dims, values));
        }
        tensors.sort_by(|a, b| a.0.cmp(&b.0));
        tensors.dedup_by(|a, b| a.0 == b.0);
        Model::of_graphs(Weights::from_tensors(tensors)?, move |rows| self.graph(rows))
    }

    /// Number of values of a token.
    pub const fn width(self) -> usize {
        self.heads * self.dims
    }

    fn graph(self, batch: usize) -> Result<Graph, Error> {
        let mut block = Block { g: GraphBuilder::new(), batch, of: self };
        let mut x = match self.style {
            Style::Images(patch) => block.patches(patch),
            Style::Vision | Style::Text => block.g.input("x", Dtype::F32, &[batch, self.tokens, self.width()]),
        };
        let mask = (self.style == Style::Text).then(|| block.mask());
        for layer in 0..self.layers {
            x = match mask {
                None => block.vision(&format!("{layer}"), x),
                Some(mask) => block.text(&format!("{layer}"), x, mask),
            };
        }
        if let Style::Images(_) = self.style {
            x = block.classes(x);
        }
        block.g.output("y", x);
        block.g.finish()
    }
}

fn number(value: f64) -> Expr {
    Expr::float(Dtype::F32, value)
}

/// A graph to which blocks are added.
struct Block {
    g: GraphBuilder,
    batch: usize,
    of: Encoder,
}

impl Block {
    fn product(&mut self, name: &str, x: ValueId, n: usize) -> ValueId {
        let (k, rank) = (*self.g.value(x).dims.last().expect("it has axes"), self.g.value(x).rank());
        let w = self.g.weight(&format!("{name}.matrix"), Dtype::F32, &[k, n]);
        let y = self.g.node(name, Op::Contract(Contract::matmul(rank, 2)), &[x, w]);
        let b = self.g.weight(&format!("{name}.bias"), Dtype::F32, &[n]);
        self.g.map(&format!("{name} + bias"), Expr::arg(0) + Expr::arg(1), &[b, y])
    }

    fn norm(&mut self, name: &str, x: ValueId) -> ValueId {
        let vector =
            |g: &mut GraphBuilder, part: &str| g.weight(&format!("{name}.{part}"), Dtype::F32, &[self.of.width()]);
        let [w, b] = ["factor", "bias"].map(|part| vector(&mut self.g, part));
        self.g.node(name, Op::Norm(Norm { axis: 2, eps: 1e-6, centred: true }), &[x, w, b])
    }

    fn sum(&mut self, name: &str, x: ValueId, y: ValueId) -> ValueId {
        self.g.map(name, Expr::arg(0) + Expr::arg(1), &[x, y])
    }

    /// The mask: the second input has a 1 for each key of a row that counts.
    fn mask(&mut self) -> ValueId {
        let seen = self.g.input("seen", Dtype::F32, &[self.batch, self.of.tokens]);
        let apart = self.g.node("seen.apart", Op::Reshape(vec![self.batch, 1, 1, self.of.tokens]), &[seen]);
        self.g.map("mask", (number(1.0) - Expr::arg(0)) * number(-1e9), &[apart])
    }

    fn patches(&mut self, patch: usize) -> ValueId {
        let (batch, width) = (self.batch, self.of.width());
        let side = (self.of.tokens - 1).isqrt();
        let x = self.g.input("x", Dtype::F32, &[batch, 3, side * patch, side * patch]);
        let x = self.g.node("pixels", Op::Transpose(vec![0, 2, 3, 1]), &[x]);
        let filter = self.g.weight("patches.filter", Dtype::F32, &[width, 3, patch, patch]);
        let bias = self.g.weight("patches.bias", Dtype::F32, &[width]);
        let conv = Conv { window: Window::all(2, patch, patch, 0), groups: 1 };
        let x = self.g.node("patches", Op::Conv(conv), &[x, filter, bias]);
        let x = self.g.node("tokens", Op::Reshape(vec![batch, side * side, width]), &[x]);
        let class = self.g.weight("class", Dtype::F32, &[1, 1, width]);
        let class = self.g.node("classes", Op::Broadcast(vec![batch, 1, width]), &[class]);
        let x = self.g.node("all", Op::Concat(1), &[class, x]);
        let places = self.g.weight("places", Dtype::F32, &[1, self.of.tokens, width]);
        self.sum("placed", x, places)
    }

    fn classes(&mut self, x: ValueId) -> ValueId {
        let (batch, width) = (self.batch, self.of.width());
        let x = self.norm("norm", x);
        let first = Slice { start: vec![0; 3], step: vec![1; 3], dims: vec![batch, 1, width] };
        let x = self.g.node("first", Op::Slice(first), &[x]);
        let x = self.g.node("flat", Op::Reshape(vec![batch, width]), &[x]);
        self.product("head", x, CLASSES)
    }

    fn vision(&mut self, at: &str, x: ValueId) -> ValueId {
        let width = self.of.width();
        let y = self.norm(&format!("{at}.norm1"), x);
        let qkv = self.joined(at, y);
        let y = self.attention(at, qkv, None);
        let y = self.product(&format!("{at}.proj"), y, width);
        let x = self.sum(&format!("{at}.sum1"), x, y);
        let y = self.norm(&format!("{at}.norm2"), x);
        let y = self.product(&format!("{at}.fc1"), y, 4 * width);
        let y = self.gelu(at, y);
        let y = self.product(&format!("{at}.fc2"), y, width);
        self.sum(&format!("{at}.sum2"), x, y)
    }

    fn text(&mut self, at: &str, x: ValueId, mask: ValueId) -> ValueId {
        let width = self.of.width();
        let qkv = self.separate(at, x);
        let y = self.attention(at, qkv, Some(mask));
        let y = self.product(&format!("{at}.proj"), y, width);
        let y = self.sum(&format!("{at}.sum1"), y, x);
        let x = self.norm(&format!("{at}.norm1"), y);
        let y = self.product(&format!("{at}.fc1"), x, 4 * width);
        let y = self.gelu_by_tanh(at, y);
        let y = self.product(&format!("{at}.fc2"), y, width);
        let y = self.sum(&format!("{at}.sum2"), y, x);
        self.norm(&format!("{at}.norm2"), y)
    }

    fn joined(&mut self, at: &str, x: ValueId) -> [ValueId; 3] {
        let Encoder { tokens, heads, dims, .. } = self.of;
        let qkv = self.product(&format!("{at}.qkv"), x, 3 * self.of.width());
        let apart = Op::Reshape(vec![self.batch, tokens, 3, heads, dims]);
        let apart = self.g.node(&format!("{at}.apart"), apart, &[qkv]);
        let turned = self.g.node(&format!("{at}.turned"), Op::Transpose(vec![2, 0, 3, 1, 4]), &[apart]);
        [0, 1, 2].map(|part| {
            let (start, dims) = (vec![part, 0, 0, 0, 0], vec![1, self.batch, heads, tokens, dims]);
            let slice = Op::Slice(Slice { start, step: vec![1; 5], dims: dims.clone() });
            let cut = self.g.node(&format!("{at}.cut{part}"), slice, &[turned]);
            self.g.node(&format!("{at}.part{part}"), Op::Reshape(dims[1..].to_vec()), &[cut])
        })
    }

    fn separate(&mut self, at: &str, x: ValueId) -> [ValueId; 3] {
        let Encoder { tokens, heads, dims, .. } = self.of;
        ["query", "key", "value"].map(|name| {
            let y = self.product(&format!("{at}.{name}"), x, self.of.width());
            let apart = Op::Reshape(vec![self.batch, tokens, heads, dims]);
            let apart = self.g.node(&format!("{at}.{name}.apart"), apart, &[y]);
            self.g.node(&format!("{at}.{name}.turned"), Op::Transpose(vec![0, 2, 1, 3]), &[apart])
        })
    }

    fn attention(&mut self, at: &str, [q, k, v]: [ValueId; 3], mask: Option<ValueId>) -> ValueId {
        let Encoder { tokens, dims, .. } = self.of;
        let k = self.g.node(&format!("{at}.k"), Op::Transpose(vec![0, 1, 3, 2]), &[k]);
        let scores = self.g.node(&format!("{at}.scores"), Op::Contract(Contract::matmul(4, 4)), &[q, k]);
        let root = number((dims as f64).sqrt());
        let mut scores = self.g.map(&format!("{at}.scaled"), Expr::arg(0) / root, &[scores]);
        if let Some(mask) = mask {
            scores = self.sum(&format!("{at}.masked"), scores, mask);
        }
        let weights = self.g.node(&format!("{at}.softmax"), Op::Softmax { axis: 3, log: false }, &[scores]);
        let mixed = self.g.node(&format!("{at}.mixed"), Op::Contract(Contract::matmul(4, 4)), &[weights, v]);
        let turned = self.g.node(&format!("{at}.back"), Op::Transpose(vec![0, 2, 1, 3]), &[mixed]);
        self.g.node(&format!("{at}.together"), Op::Reshape(vec![self.batch, tokens, self.of.width()]), &[turned])
    }

    fn gelu(&mut self, at: &str, x: ValueId) -> ValueId {
        let erf = (Expr::arg(0) / number(std::f64::consts::SQRT_2)).unary(Unary::Erf);
        let y = self.g.map(&format!("{at}.erf"), erf + number(1.0), &[x]);
        self.g.map(&format!("{at}.gelu"), Expr::arg(0) * Expr::arg(1) * number(0.5), &[x, y])
    }

    fn gelu_by_tanh(&mut self, at: &str, x: ValueId) -> ValueId {
        let cubed = Expr::arg(0).binary(Binary::Pow, number(3.0)) * number(0.044_715);
        let inner = (Expr::arg(0) + cubed) * number((2.0 / std::f64::consts::PI).sqrt());
        let y = self.g.map(&format!("{at}.tanh"), inner.unary(Unary::Tanh) + number(1.0), &[x]);
        self.g.map(&format!("{at}.gelu"), Expr::arg(0) * number(0.5) * Expr::arg(1), &[x, y])
    }
}
