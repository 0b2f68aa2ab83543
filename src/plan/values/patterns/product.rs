//! Products of rows with constant matrices, with the operations that follow.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::epilogue::{Epilogue, Following, MOST_TERMS};
use super::expr::{inlined, replaced, size};
use super::strided::Strided;
use super::{Context, Found, Read, convolution};
use crate::graph::{Contract, Conv, Expr, Graph, Node, NodeId, Op, ValueId};
use crate::model::{Conv2d, Window, filter_of, name_of, window_of};
use crate::plan::roofline::LAUNCH;
use crate::plan::transformer::{height_of_eights, overlaps, stored_terms};
use crate::plan::values::layers::{self, classifier, image, layer};
use crate::plan::{Limits, ProductOp, ProductSizes, Rates, RowsAt, StepOp};
use crate::tensor::Dtype;

/// The largest number of nodes behind a product that are examined.
const MOST_NODES: usize = 24;

/// The product that begins at node `at`, and its last node. `halves` are values that steps write in the type of
/// kernels.
pub(super) fn find(context: &Context<'_>, at: NodeId, halves: &HashSet<ValueId>) -> Option<(NodeId, Found)> {
    let Product { weights, x, bias: own, terms, sizes } = Product::of(context, at)?;
    let ProductSizes { m, n, k } = sizes;
    let (x, x_at) = match x {
        Read::Half(x) => {
            let (x, at) = rows(context, x, [m, k], halves);
            (Read::Half(x), at)
        }
        made => (made, RowsAt { first: 0, pitch: k }),
    };
    let (last, writes, epilogue) = behind(context, at, n, own, |_, _| true);
    let copied = match (&context.graph.nodes[at.0].op, &x) {
        (Op::Conv(_), Read::Half(_)) => Some(0),
        (_, Read::Windows { .. }) => Some(m * k),
        _ => None,
    };
    if copied.is_some_and(|copied| !(epilogue.is_of_products() && is_sooner(context, at, sizes, copied))) {
        return None;
    }
    let Epilogue { bias, activation, scale, residual } = epilogue;
    let vectors = [bias, scale].into_iter().flatten().map(Read::Own);
    let residual = residual.map(|residual| rows(context, residual, [m, n], halves));
    let reads = [x].into_iter().chain(vectors).chain(residual.map(|(value, _)| Read::Half(value))).collect();
    let op = ProductOp {
        weights,
        rows: m / context.batch,
        terms,
        x: x_at,
        activation,
        bias: bias.is_some(),
        scale: scale.is_some(),
        residual: residual.map(|(_, at)| at),
        norm: None,
        statistics: false,
    };
    Some((last, Found { op: StepOp::Product(op), named: at, reads, writes, beside: None }))
}

/// A product of rows with a constant matrix.
struct Product {
    weights: Conv2d,
    x: Read,
    /// The bias that the node itself adds.
    bias: Option<ValueId>,
    /// The number of products in each value of the result.
    terms: usize,
    sizes: ProductSizes,
}

impl Product {
    /// The product that a node computes; `None` if no kernel computes it.
    fn of(context: &Context<'_>, at: NodeId) -> Option<Self> {
        let graph = context.graph;
        let node = &graph.nodes[at.0];
        if classifier(graph, node, context.batch, &context.readers).is_some() {
            return None;
        }
        let product = match &node.op {
            Op::Contract(of) => Self::of_rows(graph, node, of),
            Op::Conv(of) => Self::of_windows(graph, node, of),
            _ => None,
        }?;
        let ([x, w], y) = ([node.inputs[0]?, node.inputs[1]?], node.outputs[0]);
        let is_f32 = [x, w, y].iter().all(|&id| graph.value(id).dtype == Dtype::F32);
        let has_kernel = !product.sizes.kernels(context.limits).is_empty();
        (is_f32 && has_kernel && product.sizes.m.is_multiple_of(context.batch)).then_some(product)
    }

    fn of_rows(graph: &Graph, node: &Node, of: &Contract) -> Option<Self> {
        let [x, w] = [node.inputs[0]?, node.inputs[1]?];
        let filter = filter_of(&name_of(graph.constant(w)?, graph.value(w)), of.sums_first()?);
        let (y, k) = (graph.value(node.outputs[0]), *graph.value(x).dims.last()?);
        let n = *y.dims.last()?;
        let weights = Conv2d { filter, ..Conv2d::named(&node.name, n, Window::square(1, 1, 0)) };
        let sizes = ProductSizes { m: y.elems().checked_div(n)?, n, k };
        Some(Self { weights, x: Read::Half(x), bias: None, terms: k, sizes })
    }

    /// A convolution as a product of the windows' pixels. If its windows do not overlap and cover the image, and kernels
    /// for images would pad the channels, windows of several pixels are copied side by side, unless rows of zeros would
    /// follow each, more than a quarter of its height; single pixels are read in place. Windows of a line that overlap are
    /// copied too.
    fn of_windows(graph: &Graph, node: &Node, of: &Conv) -> Option<Self> {
        let [x, w] = [node.inputs[0]?, node.inputs[1]?];
        let (&[_, height, width, channels], &[r, s]) = (&graph.value(x).dims[..], &of.window.size[..]) else {
            return None;
        };
        let is_line = r == 1 || s == 1;
        let covers = height % r == 0 && width % s == 0 && of.window.pad.iter().flatten().all(|&pad| pad == 0);
        let is_apart = of.window.stride == of.window.size && of.window.dilation.iter().all(|&by| by == 1);
        if of.groups != 1 {
            return None;
        }
        let (terms, window) = (r * s * channels, window_of(&of.window).ok()?);
        let window = Window { size: [r, s], stride: window.stride, ..Window::square(1, 1, 0) };
        let (k, stored) = (stored_terms(&window, terms), height_of_eights(r, terms));
        let read = match (channels % 8 == 0, r * s) {
            (true, 1) if covers && is_apart => Read::Half(x),
            (true, 2..) if is_line && overlaps(&window) => {
                Read::Windows { value: x, window: of.window.clone(), stored: k }
            }
            (false, _) if covers && is_apart && 4 * stored <= 5 * r => Read::Patches { value: x, size: [r, s], stored },
            _ => return None,
        };
        let bias = node.inputs.get(2).copied().flatten();
        if bias.is_some_and(|id| graph.constant(id).is_none() || graph.value(id).dtype != Dtype::F32) {
            return None;
        }
        let y = graph.value(node.outputs[0]);
        let n = *y.dims.last()?;
        let name = |id: ValueId| Some(name_of(graph.constant(id)?, graph.value(id)));
        // The bias is an operand of the step; a kernel for another size may read it together with the filter.
        let (filter, own) = (name(w)?, bias.and_then(name));
        let weights = Conv2d { filter, bias: own, ..Conv2d::named(&node.name, n, window) };
        let sizes = ProductSizes { m: y.elems().checked_div(n)?, n, k };
        Some(Self { weights, x: read, bias, terms, sizes })
    }
}

/// Whether a convolution takes less time as a product with its epilogue, behind a loop that copies this many elements, than
/// in a kernel for images, which either applies the activation or leaves it to a loop. Without a prediction of both it is
/// a product.
fn is_sooner(context: &Context<'_>, at: NodeId, sizes: ProductSizes, copied: usize) -> bool {
    let Context { graph, dtype, limits, batch, .. } = *context;
    let node = &graph.nodes[at.0];
    let (Some(conv), Some(x)) = (layer(graph, node), node.inputs[0]) else { return false };
    let shapes = [x, node.outputs[0]].map(|id| image(&graph.value(id).dims));
    let kernel = layers::kernel(&conv, dtype, shapes, batch, limits);
    let apart = kernel.and_then(|kernel| Some(kernel.clocks? + pass_clocks(sizes.m * sizes.n, limits)?));
    let apart = apart.into_iter().chain(convolution::clocks(context, at)).min_by(f64::total_cmp);
    let whole = sizes.least_clocks(limits);
    let copies = if copied > 0 { pass_clocks(copied, limits) } else { Some(0.0) };
    let whole = whole.zip(copies).map(|(whole, copies)| whole + copies);
    apart.zip(whole).is_none_or(|(apart, whole)| whole <= apart)
}

/// Clocks of a loop that reads and writes `elems` elements; `None` on unknown hardware.
pub(super) fn pass_clocks(elems: usize, limits: &Limits) -> Option<f64> {
    let (rates, bytes) = (Rates::of(limits)?, 2 * elems * Dtype::F16.bytes());
    Some((bytes as f64 / rates.memory_bytes + LAUNCH) * rates.clock_hz)
}

/// The value that has the rows, and their place in it. A view of a value in the type of kernels is read in place.
fn rows(context: &Context<'_>, x: ValueId, [m, k]: [usize; 2], halves: &HashSet<ValueId>) -> (ValueId, RowsAt) {
    let dense = (x, RowsAt { first: 0, pitch: k });
    let view = Strided::of(context.graph, x);
    let (root, factor, first) = (view.root, view.factor, view.first);
    let Some(rows) = view.reshaped(&[m, k]).filter(|_| halves.contains(&root) && factor == 1.0) else {
        return dense;
    };
    let [[_, pitch], [_, stride]] = [rows.axes[0], rows.axes[1]];
    let pitch = if m == 1 { k } else { pitch };
    let is_read = stride == 1 && pitch >= k && [first, pitch].iter().all(|of| of.is_multiple_of(8));
    if is_read { (root, RowsAt { first, pitch }) } else { dense }
}

/// The last node of a product's epilogue, its value, and the epilogue. `own` is the bias of the product's node, and
/// `takes` says whether the kernel can apply an epilogue whose result is this value.
pub(super) fn behind(
    context: &Context<'_>,
    at: NodeId,
    columns: usize,
    own: Option<ValueId>,
    takes: impl Fn(&Epilogue, ValueId) -> bool,
) -> (NodeId, ValueId, Epilogue) {
    let graph = context.graph;
    let product = graph.nodes[at.0].outputs[0];
    let mut region = Region::new(context, product, columns);
    let mut last = (at, product, Epilogue { bias: own, ..Epilogue::default() });
    for _ in 0..MOST_NODES {
        let Some(next) = region.next() else { break };
        let value = graph.nodes[next.0].outputs[0];
        if !region.add(next) || !region.is_closed(next) {
            continue;
        }
        let following = Following { graph, others: &region.others, elems: graph.value(product).elems(), columns };
        let epilogue = following.epilogue(&region.known[&value]);
        if let Some(epilogue) = epilogue.filter(|of| takes(of, value) && (own.is_none() || of.bias.is_none())) {
            last = (next, value, Epilogue { bias: own.or(epilogue.bias), ..epilogue });
        }
    }
    last
}

/// The maps that read a product, directly or through other maps.
struct Region<'a> {
    context: &'a Context<'a>,
    columns: usize,
    elems: usize,
    /// Values as expressions of the product, which is `Arg(0)`, and of `others`.
    known: BTreeMap<ValueId, Expr>,
    others: Vec<ValueId>,
    /// The nodes that compute the known values.
    nodes: BTreeSet<NodeId>,
    /// The nodes that read known values and are not examined yet.
    ahead: BTreeSet<NodeId>,
}

impl<'a> Region<'a> {
    fn new(context: &'a Context<'a>, product: ValueId, columns: usize) -> Self {
        Self {
            context,
            columns,
            elems: context.graph.value(product).elems(),
            known: BTreeMap::from([(product, Expr::arg(0))]),
            others: Vec::new(),
            nodes: BTreeSet::new(),
            ahead: context.readers[product.0].iter().copied().collect(),
        }
    }

    /// The next node to examine.
    fn next(&mut self) -> Option<NodeId> {
        self.ahead.pop_first()
    }

    /// Adds a node to the region if it computes an element for each element of the product; returns whether it does.
    fn add(&mut self, id: NodeId) -> bool {
        let graph = self.context.graph;
        let node = &graph.nodes[id.0];
        let of = graph.value(node.outputs[0]);
        let is_like = of.elems() == self.elems && of.dims.last() == Some(&self.columns) && of.dtype == Dtype::F32;
        let expr = match &node.op {
            Op::Map(_) if is_like => {
                inlined(graph, node).and_then(|expr| replaced(&expr, node, &self.known, &mut self.others))
            }
            Op::Reshape(_) if is_like => node.inputs[0].and_then(|id| self.known.get(&id).cloned()),
            _ => None,
        };
        let Some(expr) = expr.filter(|expr| size(expr) <= MOST_TERMS) else { return false };
        self.known.insert(node.outputs[0], expr);
        self.nodes.insert(id);
        self.ahead.extend(&self.context.readers[node.outputs[0].0]);
        true
    }

    /// Whether the region's values are needed only by node `last`: it depends on all other nodes of the region.
    fn is_closed(&self, last: NodeId) -> bool {
        let graph = self.context.graph;
        let mut needed = BTreeSet::from([last]);
        for &id in self.nodes.iter().rev() {
            let reads_it = |of: &NodeId| needed.contains(of);
            if self.context.readers[graph.nodes[id.0].outputs[0].0].iter().any(reads_it) {
                needed.insert(id);
            }
        }
        let is_inner = |id: &ValueId| {
            let of_region = self.context.readers[id.0].iter().all(|reader| needed.contains(reader));
            of_region && !self.context.shown.contains(id)
        };
        let written = graph.nodes[last.0].outputs[0];
        self.known.keys().filter(|id| **id != written && self.is_behind(**id, &needed)).all(is_inner)
    }

    /// Whether one of these nodes reads the value.
    fn is_behind(&self, id: ValueId, nodes: &BTreeSet<NodeId>) -> bool {
        self.context.readers[id.0].iter().any(|reader| nodes.contains(reader))
    }
}
