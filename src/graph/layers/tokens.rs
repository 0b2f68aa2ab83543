//! Layers of values of any rank, such as tokens `[rows, tokens, features]`.

use super::Linear;
use crate::graph::builder::GraphBuilder;
use crate::graph::expr::Expr;
use crate::graph::op::{Contract, Norm, Op, PackedAttention};
use crate::graph::value::ValueId;
use crate::tensor::Dtype;

/// Layers of vectors: of values of f32 whose last axis has a vector's elements, whatever the other axes are.
impl GraphBuilder {
    /// Adds a fully connected layer of the weights `{name}.weight` and `{name}.bias`: `[…, out_features]`.
    ///
    /// ```
    /// use trefoil::{Dtype, graph::GraphBuilder};
    /// let mut g = GraphBuilder::new();
    /// let tokens = g.input("tokens", Dtype::F32, &[2, 128, 64]);
    /// let y = g.linear("fc", tokens, 256);
    /// assert_eq!(g.value(y).dims, [2, 128, 256]);
    /// ```
    pub fn linear(&mut self, name: &str, x: ValueId, out_features: usize) -> ValueId {
        self.linear_with(name, x, Linear::named(name, out_features))
    }

    /// Adds a fully connected layer with other tensor names, or without bias.
    pub fn linear_with(&mut self, name: &str, x: ValueId, linear: Linear) -> ValueId {
        let in_features = match self.channels(name, x) {
            Ok(features) => features,
            Err(broken) => return broken,
        };
        let Linear { out_features, weight, bias } = linear;
        let weight = self.parameter(&weight, &[out_features, in_features]);
        let bias = bias.map(|bias| self.parameter(&bias, &[out_features]));
        let rank = self.value(x).rank();
        let outer: Vec<usize> = (0..rank - 1).collect();
        let product = Contract {
            left: [&outer[..], &[rank]].concat(),
            right: vec![rank - 1, rank],
            result: [&outer[..], &[rank - 1]].concat(),
        };
        let y = self.node(name, Op::Contract(product), &[x, weight]);
        match bias {
            Some(bias) => self.map(&format!("{name} + bias"), Expr::arg(0) + Expr::arg(1), &[y, bias]),
            None => y,
        }
    }

    /// Adds the norm of each vector, of the weights `{name}.weight` and `{name}.bias`.
    ///
    /// ```
    /// use trefoil::{Dtype, graph::GraphBuilder};
    /// let mut g = GraphBuilder::new();
    /// let tokens = g.input("tokens", Dtype::F32, &[2, 128, 64]);
    /// let y = g.layer_norm("norm1", tokens, 1e-6);
    /// assert_eq!(g.value(y).dims, [2, 128, 64]);
    /// ```
    pub fn layer_norm(&mut self, name: &str, x: ValueId, eps: f64) -> ValueId {
        let features = match self.channels(name, x) {
            Ok(features) => features,
            Err(broken) => return broken,
        };
        let [weight, bias] = ["weight", "bias"].map(|part| self.parameter(&format!("{name}.{part}"), &[features]));
        let axis = self.value(x).rank() - 1;
        self.node(name, Op::Norm(Norm { axis, eps, centred: true }), &[x, weight, bias])
    }

    /// Adds attention, softmax(q kᵀ / sqrt(features) + mask) v for each head: queries `[rows, tokens, heads, features]`,
    /// keys and values `[rows, keys, heads, features]`, and a mask that is broadcast to `[rows, heads, tokens, keys]`. The
    /// result has the queries' shape.
    ///
    /// ```
    /// use trefoil::{Dtype, graph::GraphBuilder};
    /// let mut g = GraphBuilder::new();
    /// let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, Dtype::F32, &[2, 128, 4, 16]));
    /// let y = g.attention("attention", [q, k, v], None);
    /// assert_eq!(g.value(y).dims, [2, 128, 4, 16]);
    /// ```
    pub fn attention(&mut self, name: &str, [q, k, v]: [ValueId; 3], mask: Option<ValueId>) -> ValueId {
        let [row, token, head, key, feature] = [0, 1, 2, 3, 4];
        let (of_token, of_key) = (vec![row, token, head, feature], vec![row, key, head, feature]);
        let scored = vec![row, head, token, key];
        let features = match self.channels(name, q) {
            Ok(features) => features,
            Err(broken) => return broken,
        };
        let part = |part: &str| format!("{name}.{part}");
        let scores = Contract { left: of_token.clone(), right: of_key.clone(), result: scored.clone() };
        let scores = self.node(&part("scores"), Op::Contract(scores), &[q, k]);
        let scaled = Expr::arg(0) * Expr::float(Dtype::F32, 1.0 / (features as f64).sqrt());
        let scores = match mask {
            Some(mask) => self.map(&part("scaled"), scaled + Expr::arg(1), &[scores, mask]),
            None => self.map(&part("scaled"), scaled, &[scores]),
        };
        let weights = self.node(&part("softmax"), Op::Softmax { axis: 3, log: false }, &[scores]);
        self.node(name, Op::Contract(Contract { left: scored, right: of_key, result: of_token }), &[weights, v])
    }

    /// Adds [attention within rows](PackedAttention) that lie end to end: queries, keys and values `[tokens, heads, features]`,
    /// where rows begin and end, and what is added to scores by distance. Scores are divided by the root of the features.
    ///
    /// ```
    /// use trefoil::{Dtype, graph::GraphBuilder};
    /// let mut g = GraphBuilder::new();
    /// let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, Dtype::F32, &[4096, 4, 16]));
    /// let starts = g.input("starts", Dtype::I64, &[257]); // of 256 rows
    /// let y = g.packed_attention("attention", [q, k, v], starts, None, 512);
    /// assert_eq!(g.value(y).dims, [4096, 4, 16]);
    /// ```
    pub fn packed_attention(
        &mut self,
        name: &str,
        [q, k, v]: [ValueId; 3],
        starts: ValueId,
        bias: Option<ValueId>,
        longest: usize,
    ) -> ValueId {
        let features = match self.channels(name, q) {
            Ok(features) => features,
            Err(broken) => return broken,
        };
        let of = PackedAttention { longest, scale: 1.0 / (features as f64).sqrt() };
        let operands: Vec<ValueId> = [q, k, v, starts].into_iter().chain(bias).collect();
        self.node(name, Op::PackedAttention(of), &operands)
    }
}
