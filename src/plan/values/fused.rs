//! Steps that compute several nodes, as single nodes: their operands and results in f16 or bf16.

use super::layered::Split;
use super::patterns::{Beside, Found, Mask, Read, ends_in_eights, writer};
use crate::graph::{Expr, Node, NodeId, Number, Op, Pad, PadMode, Slice, ValueId, ValueType, Window, slide};
use crate::plan::StepOp;
use crate::tensor::Dtype;

impl Split<'_> {
    /// Adds a step in the place of its nodes, named after one of them, and a conversion of its result to f32 for other
    /// readers.
    pub fn push_found(&mut self, named: &Node, found: &Found) {
        let inputs = found.reads.iter().map(|read| Some(self.read(read, &named.name))).collect();
        self.sources[found.writes.0] = self.sources_of(found.reads.iter().flat_map(Read::values).copied());
        if found.writes_its_own() {
            self.to.fused.insert(NodeId(self.to.graph.nodes.len()), found.op.clone());
            return self.push(Node { inputs, outputs: vec![found.writes], ..named.clone() });
        }
        let dims = &self.from.value(found.writes).dims;
        let (channels, written) = (dims[dims.len() - 1], ValueType::new(self.dtype, dims));
        let written = self.add(written);
        self.to.channels.insert(written, channels);
        self.to.fused.insert(NodeId(self.to.graph.nodes.len()), found.op.clone());
        // A node with several results is a step of its own, which writes the others as they are, and so are codes.
        let mut others = named.outputs[1..].to_vec();
        let mut halves = vec![(found.writes, written)];
        match found.beside {
            Some(Beside::Codes(codes)) => others.push(codes),
            Some(Beside::Half(value)) => {
                let half = self.add(ValueType::new(self.dtype, &self.from.value(value).dims));
                self.to.channels.insert(half, channels);
                halves.push((value, half));
            }
            None => {}
        }
        let beside = halves[1..].iter().map(|(value, _)| value);
        others.iter().chain(beside).for_each(|id| self.sources[id.0] = self.sources[found.writes.0].clone());
        let statistics = self.push_statistics(found);
        let written: Vec<ValueId> = halves.iter().map(|(_, half)| *half).collect();
        let outputs = [&written, &others[..], statistics.as_slice()].concat();
        self.push(Node { inputs, outputs, ..named.clone() });
        for (value, half) in halves {
            self.halves.insert(value, half);
            let of = writer(self.from, value).map_or(&named.name, |node| &node.name);
            let name = if value == found.writes { &named.name } else { of };
            self.push_f32(name, half, value);
        }
    }

    /// Adds the statistics of the rows that a step writes, if it writes any, as its second result.
    fn push_statistics(&mut self, found: &Found) -> Option<ValueId> {
        let StepOp::Product(of) = &found.op else { return None };
        let of_rows = ValueType::new(Dtype::F32, &of.statistics_dims(self.batch));
        let added = of.statistics.then(|| self.add(of_rows))?;
        self.statistics.insert(found.writes, added);
        Some(added)
    }

    /// The value of the new graph that a step reads.
    fn read(&mut self, read: &Read, name: &str) -> ValueId {
        match read {
            Read::Half(value) => self.dense_half(*value, name),
            Read::Own(value) => *value,
            Read::Statistics(value) => self.statistics[value],
            Read::Rows(port, image) => {
                self.to.rows.insert(*port, *image);
                *port
            }
            Read::Patches { value, size, stored } => self.patches(*value, *size, *stored, name),
            Read::Windows { value, window, stored } => self.windows(*value, window, *stored, name),
            Read::Blocks(blocks) => self.push_blocks(blocks, name),
            Read::Mask(mask) => match self.masks.iter().find(|(known, _)| known == mask) {
                Some(&(_, there)) => there,
                None => self.push_mask(mask, name),
            },
        }
    }

    /// Adds a mask in the type of kernels, which later steps can read too.
    fn push_mask(&mut self, mask: &Mask, name: &str) -> ValueId {
        let inputs = mask.values.iter().copied().map(Some).collect();
        let half = self.add(ValueType::new(self.dtype, &mask.dims));
        let op = Op::Map(mask.expr.clone().cast(self.dtype));
        self.push(Node { name: format!("{name} (mask)"), op, inputs, outputs: vec![half] });
        let made = if mask.is_odd { self.padded(half, mask.dims.len() - 1, 1, name) } else { half };
        self.masks.push((mask.clone(), made));
        made
    }

    /// A value in the type of kernels. If it is a reshape of a value that exists in this type, the result is a view of
    /// that value.
    fn dense_half(&mut self, x: ValueId, name: &str) -> ValueId {
        if !self.halves.contains_key(&x)
            && let Some(Node { op: Op::Reshape(dims), inputs, .. }) = writer(self.from, x)
            && let Some(from) = inputs[0].filter(|&from| ends_in_eights(self.from, from))
        {
            let of = ValueType::new(self.dtype, dims);
            let from = self.dense_half(from, name);
            return self.node(name, "reshape", Op::Reshape(dims.clone()), from, of);
        }
        self.half(x, name)
    }

    /// The pixels of an image's windows, one window after the other, each followed by zeros up to a height.
    fn patches(&mut self, x: ValueId, [r, s]: [usize; 2], stored: usize, name: &str) -> ValueId {
        let [batch, height, width, channels] = self.to.graph.value(x).dims[..] else { unreachable!("of an image") };
        let of = |dtype, dims: [usize; 6]| ValueType::new(dtype, &dims);
        let apart = of(Dtype::F32, [batch, height / r, r, width / s, s, channels]);
        let x = self.node(name, "windows", Op::Reshape(apart.dims.clone()), x, apart);
        let turned = [batch, height / r, width / s, r, s, channels];
        let x = self.node(name, "patches", Op::Transpose(vec![0, 1, 3, 2, 4, 5]), x, of(Dtype::F32, turned));
        let dtype = self.dtype;
        let x = self.node(name, &dtype.to_string(), Op::Map(Expr::arg(0).cast(dtype)), x, of(dtype, turned));
        if stored > r { self.padded(x, 3, stored - r, name) } else { x }
    }

    /// The pixels of an image's windows, one window after the other: for each place in a window the pixels that are there,
    /// side by side, and zeros up to a number of elements.
    fn windows(&mut self, x: ValueId, window: &Window, stored: usize, name: &str) -> ValueId {
        let half = self.half(x, name);
        let [batch, height, width, channels] = self.to.graph.value(half).dims[..] else { unreachable!("of an image") };
        let Window { size, stride, dilation, pad } = window;
        let counts = slide(window, &[height, width]).expect("of a convolution whose result is known");
        let of = |rows: usize, columns: usize, last: usize| ValueType::new(self.dtype, &[batch, rows, columns, last]);
        let (terms, place) = (size[0] * size[1] * channels, of(counts[0], counts[1], channels));
        let side_by_side = of(counts[0], counts[1], terms);
        // From the first pixel of all windows to the last one.
        let span = [0, 1].map(|axis| (counts[axis] - 1) * stride[axis] + 1);
        let whole = of(span[0], span[1], channels);
        let mut inputs = Vec::new();
        for (r, s) in (0..size[0]).flat_map(|r| (0..size[1]).map(move |s| (r, s))) {
            let before = [(0, r), (1, s)].map(|(axis, at)| pad[axis][0] as isize - (at * dilation[axis]) as isize);
            let after = [(0, height), (1, width)].map(|(axis, of)| span[axis] as isize - before[axis] - of as isize);
            let [before, after] = [before, after].map(|[rows, columns]| vec![0, rows, columns, 0]);
            let pad = Pad { before, after, mode: PadMode::Constant(Number::Float(0.0)) };
            let name = format!("{name} at {r},{s}");
            let mut at = self.node(&name, "padded", Op::Pad(pad), half, whole.clone());
            if stride.iter().any(|&by| by > 1) {
                let step = vec![1, stride[0] as isize, stride[1] as isize, 1];
                let slice = Slice { start: vec![0; 4], step, dims: place.dims.clone() };
                at = self.node(&name, "seen", Op::Slice(slice), at, place.clone());
            }
            inputs.push(Some(at));
        }
        let windows = self.add(side_by_side);
        self.push(Node { name: format!("{name} (windows)"), op: Op::Concat(3), inputs, outputs: vec![windows] });
        if stored > terms { self.padded(windows, 3, stored - terms, name) } else { windows }
    }

    /// The value with some more elements, which are zeros, at the end of an axis.
    fn padded(&mut self, x: ValueId, axis: usize, more: usize, name: &str) -> ValueId {
        let mut dims = self.to.graph.value(x).dims.clone();
        let (before, mut after) = (vec![0; dims.len()], vec![0; dims.len()]);
        (dims[axis], after[axis]) = (dims[axis] + more, more as isize);
        let pad = Pad { before, after, mode: PadMode::Constant(Number::Float(0.0)) };
        self.node(name, "padded", Op::Pad(pad), x, ValueType { dtype: self.dtype, dims })
    }
}
