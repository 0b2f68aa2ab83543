//! Rotary position embeddings of queries and keys (RoPE), and layers with a gate.

use super::block::{Block, Stack};
use crate::graph::{Expr, Op, Slice, ValueId};
use crate::tensor::Dtype;

impl Block {
    /// Queries of the first `tokens` tokens and keys of all: `[rows, tokens, heads, dims]`, turned by these angles. The
    /// values of a head are points of planes: all first coordinates, then all second coordinates.
    pub fn turned(
        &mut self,
        of: &Stack,
        at: &str,
        qkv: ValueId,
        [cos, sin]: [ValueId; 2],
        tokens: usize,
    ) -> [ValueId; 2] {
        let name = |part: &str| format!("{at}{part}");
        let [rows, keys] = [0, 1].map(|axis| self.g.value(qkv).dims[axis]);
        let (heads, dims) = (of.heads, of.width / of.heads);
        let whole = vec![rows, keys, 2 * heads, dims];
        let halves = vec![rows, keys, 2 * heads, 2, dims / 2];
        let cut = self.cut(&name("qk.cut"), qkv, [0, 0], [keys, 2 * of.width]);
        let x = self.g.node(&name("qk"), Op::Reshape(whole.clone()), &[cut]);
        let y = self.g.node(&name("qk.halves"), Op::Reshape(halves.clone()), &[x]);
        let swap = Slice { start: vec![0, 0, 0, 1, 0], step: vec![1, 1, 1, -1, 1], dims: halves };
        let y = self.g.node(&name("qk.swap"), Op::Slice(swap), &[y]);
        let y = self.g.node(&name("qk.swapped"), Op::Reshape(whole), &[y]);
        let turn = Expr::arg(0) * Expr::arg(2) + Expr::arg(1) * Expr::arg(3);
        let both = self.g.map(&name("qk.turned"), turn, &[x, y, cos, sin]);
        [("q", 0, tokens), ("k", heads, keys)].map(|(part, head, tokens)| {
            let slice = Slice { start: vec![0, 0, head, 0], step: vec![1; 4], dims: vec![rows, tokens, heads, dims] };
            self.g.node(&name(part), Op::Slice(slice), &[both])
        })
    }

    /// Cosines and sines of the angles of each token, `[tokens, 1, dims]`. The sines for first coordinates are
    /// negative; they multiply the second coordinates.
    pub fn angles(&mut self, angles: &[Vec<f32>]) -> [ValueId; 2] {
        let half = angles.first().map_or(0, Vec::len);
        let both = |first: fn(f32) -> f32, second: fn(f32) -> f32| {
            let of_token = |of: &Vec<f32>| -> Vec<f32> {
                of.iter().map(|&angle| first(angle)).chain(of.iter().map(|&angle| second(angle))).collect()
            };
            angles.iter().flat_map(of_token).collect::<Vec<f32>>()
        };
        [both(f32::cos, f32::cos), both(|angle| -angle.sin(), f32::sin)].map(|table| {
            let bytes = bytemuck::cast_slice::<f32, u8>(&table).to_vec();
            self.g.constant(Dtype::F32, &[angles.len(), 1, 2 * half], bytes)
        })
    }

    /// The first product of a layer with a gate: the activation of its first half times its second half.
    pub fn gated(&mut self, of: &Stack, layer: usize, x: ValueId) -> ValueId {
        let parts: Vec<String> = of.names.gate.iter().chain([&of.names.fc[0]]).map(|part| of.at(layer, part)).collect();
        let y = self.side_by_side(&of.at(layer, "gate and values"), &parts, x, 2 * of.inner);
        let tokens = self.g.value(y).dims[1];
        let [gate, values] = [("gate", 0), ("values", of.inner)]
            .map(|(part, first)| self.cut(&of.at(layer, part), y, [0, first], [tokens, of.inner]));
        self.g.map(&of.at(layer, "gated"), of.activation.expr() * Expr::arg(1), &[gate, values])
    }
}

/// The angular speeds of `count` planes: powers of a base, descending from 1.
pub(super) fn frequencies(base: f64, count: usize) -> Vec<f32> {
    (0..count).map(|plane| 1.0 / (base as f32).powf(plane as f32 / count as f32)).collect()
}
