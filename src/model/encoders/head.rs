//! Pooling by attention: one learned query reads all tokens.

use super::block::{Block, Stack};
use crate::error::Error;
use crate::graph::{Contract, Expr, Linear, Op, Tensor, ValueId, ValueType};
use crate::loops;
use crate::model::weights::Weights;
use crate::tensor::Dtype;

/// A head that pools by attention, with a layer of two products after it.
#[derive(Clone)]
pub(super) struct Head {
    /// The name of its module.
    pub name: String,
    pub names: &'static Names,
}

/// The names of the tensors.
pub(super) struct Names {
    /// The vector from which the query is computed.
    probe: &'static str,
    /// The product that computes the query.
    query: Stored,
    /// The product after attention, and the norm that follows it.
    out: &'static str,
    norm: &'static str,
}

/// The storage of the query's product: the names of its matrix and biases.
#[derive(Clone, Copy)]
enum Stored {
    /// In one tensor with those of keys and values, before these.
    Joined([&'static str; 2]),
    /// In tensors of their own.
    Alone([&'static str; 2]),
}

/// The names of the library `transformers`.
pub(super) const NAMES: Names = Names {
    probe: "probe",
    query: Stored::Joined(["attention.in_proj_weight", "attention.in_proj_bias"]),
    out: "attention.out_proj",
    norm: "layernorm",
};

/// The names of timm.
pub(super) const TIMM: Names =
    Names { probe: "latent", query: Stored::Alone(["q.weight", "q.bias"]), out: "proj", norm: "norm" };

impl Head {
    fn at(&self, part: &str) -> String {
        format!("{}.{part}", self.name)
    }

    /// Pools tokens `[rows, tokens, width]` to one vector for each row, `[rows, width]`.
    pub fn pooled(&self, block: &mut Block, of: &Stack, x: ValueId) -> ValueId {
        let Stack { width, heads, .. } = *of;
        for (part, dims) in self.stored(width) {
            block.parts.insert(self.at(part), dims);
        }
        block.made.insert(self.at(QUERY));
        if let Stored::Joined(_) = self.names.query {
            block.made.extend([MATRIX, BIASES].map(|part| self.at(part)));
        }
        let [rows, tokens] = [0, 1].map(|axis| block.g.value(x).dims[axis]);
        let query = block.g.weight(&self.at(QUERY), Dtype::F32, &[1, 1, heads, width / heads]);
        let query = block.g.node(&self.at("q"), Op::Broadcast(vec![rows, 1, heads, width / heads]), &[query]);
        let [weight, bias] = [MATRIX, BIASES].map(|part| self.at(part));
        let kv = Linear { out_features: 2 * width, weight, bias: Some(bias) };
        let kv = block.g.linear_with(&self.at("kv"), x, kv);
        let [k, v] = [("k", 0), ("v", 1)].map(|(part, index)| block.heads(of, &self.at(part), kv, index, tokens));
        let mixed = block.g.attention(&self.at("attention"), [query, k, v], None);
        let x = block.g.node(&self.at("together"), Op::Reshape(vec![rows, width]), &[mixed]);
        let x = block.linear(&self.at(self.names.out), x, width, true);
        let y = block.g.layer_norm(&self.at(self.names.norm), x, of.eps);
        let y = block.linear(&self.at("mlp.fc1"), y, of.inner, true);
        let y = block.g.map(&self.at("activation"), of.activation.expr(), &[y]);
        let y = block.linear(&self.at("mlp.fc2"), y, width, true);
        block.g.map(&self.at("sum"), Expr::arg(0) + Expr::arg(1), &[x, y])
    }

    /// Weights that are computed once: the query, and the matrix and biases of keys and values if they are stored after
    /// those of queries.
    ///
    /// # Errors
    /// [`Error::Io`] if weights cannot be read; [`Error::Tensor`] if they are not floats.
    pub fn computed(&self, weights: &Weights, of: &Stack) -> Result<Vec<(String, Tensor)>, Error> {
        let Stack { width, heads, .. } = *of;
        let mut read = Vec::new();
        for (part, dims) in self.stored(width) {
            read.push(weights.read_as(&self.at(part), &ValueType::new(Dtype::F32, &dims))?);
        }
        let [probe, matrix, biases] = [0, 1, 2].map(|index| read[index].elems::<f32>());
        let (of_query, of_others) = matrix.split_at(width * width);
        let product = Contract { left: vec![1], right: vec![0, 1], result: vec![0] };
        let operands = [Tensor::of(&[width], probe), Tensor::of(&[width, width], of_query)];
        let result = ValueType::new(Dtype::F32, &[width]);
        let query = loops::compute(&Op::Contract(product), &operands.each_ref().map(Some), &[result])?.remove(0);
        let query: Vec<f32> = query.elems::<f32>().iter().zip(biases).map(|(x, bias)| x + bias).collect();
        let mut made = vec![(self.at(QUERY), Tensor::of(&[1, 1, heads, width / heads], &query))];
        if let Stored::Joined(_) = self.names.query {
            made.push((self.at(MATRIX), Tensor::of(&[2 * width, width], of_others)));
            made.push((self.at(BIASES), Tensor::of(&[2 * width], &biases[width..])));
        }
        Ok(made)
    }

    /// The stored tensors from which weights are computed, with their dimensions.
    fn stored(&self, width: usize) -> [(&'static str, Vec<usize>); 3] {
        let ([matrix, biases], rows) = match self.names.query {
            Stored::Joined(names) => (names, 3 * width),
            Stored::Alone(names) => (names, width),
        };
        [(self.names.probe, vec![1, 1, width]), (matrix, vec![rows, width]), (biases, vec![rows])]
    }
}

const QUERY: &str = "query";
const MATRIX: &str = "kv.weight";
const BIASES: &str = "kv.bias";
