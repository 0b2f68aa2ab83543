//! Models whose products of tokens are computed on numbers of e4m3.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

use super::{Model, Values, Weights, name_of};
use crate::error::Error;
use crate::graph::e4m3::{self, MOST_E4M3};
use crate::graph::{
    Constant, Expr, Graph, Node, NodeId, Op, Origin, Reduce, ReduceOp, Tensor, Unary, Value, ValueId, ValueType,
};
use crate::loops;
use crate::tensor::Dtype;

/// The range of scales.
const SCALES: RangeInclusive<f32> = 1e-12..=1e12;
/// Rows of kernels are multiples of 16 bytes.
const ALIGN: usize = 16;

/// A product of several rows with a constant matrix.
struct Product {
    /// The rows, and the matrix.
    operands: [ValueId; 2],
    /// Whether the sum goes over the first axis of the matrix.
    sums_first: bool,
}

impl Product {
    /// The product of a node, if it has several rows.
    fn of(graph: &Graph, node: &Node) -> Option<Self> {
        Self::with_rows(graph, node).filter(|(_, rows)| *rows > 1).map(|(product, _)| product)
    }

    /// The product of a node, and the number of its rows.
    fn with_rows(graph: &Graph, node: &Node) -> Option<(Self, usize)> {
        let Op::Contract(of) = &node.op else { return None };
        let operands = [node.inputs[0]?, node.inputs[1]?];
        let [x, w] = operands.map(|id| graph.value(id));
        graph.constant(operands[1])?;
        let sums_first = of.sums_first()?;
        let is_f32 = [x, w].iter().all(|of| of.dtype == Dtype::F32);
        let fits = w.rank() == 2 && w.dims.iter().all(|&dim| dim > 0 && dim.is_multiple_of(ALIGN));
        let rows = x.elems().checked_div(*x.dims.last()?)?;
        (is_f32 && fits).then_some((Self { operands, sums_first }, rows))
    }
}

impl Model {
    /// Scales for all products of tokens with constant matrices, by the names of their nodes: the largest magnitude of
    /// each product's rows becomes 448, the largest number of e4m3. Each row of `rows` is the bytes of an engine's input
    /// row; the model is computed on the CPU in f32. A few rows like those that the model will see are enough.
    ///
    /// A product is one if its matrix is f32 with dimensions that are multiples of 16, and if one row of the model has
    /// several rows of it: classifiers of one vector are none.
    ///
    /// ```
    /// use trefoil::{Dtype, graph::{Contract, GraphBuilder, Op}, model::{Model, Weights}};
    /// let weights = Weights::from_tensors([("w", vec![16, 16], vec![0.5; 256])])?;
    /// let model = Model::of_graphs(weights, |rows| {
    ///     let mut g = GraphBuilder::new();
    ///     let (x, w) = (g.input("x", Dtype::F32, &[rows, 2, 16]), g.weight("w", Dtype::F32, &[16, 16]));
    ///     let y = g.node("product", Op::Contract(Contract::matmul(3, 2)), &[x, w]);
    ///     g.output("y", y);
    ///     g.finish()
    /// })?;
    /// let row = [-3.5_f32; 32].map(f32::to_le_bytes).concat();
    /// let scales = model.e4m3_scales(&[row])?;
    /// assert_eq!(scales["product"], 3.5 / 448.0);
    /// let in_e4m3 = model.in_e4m3(&scales)?;
    /// assert_eq!(in_e4m3.graph(1)?.nodes.len(), 4); // to codes, and back, of the matrix too
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] for a row of another length, and without rows; [`Error::Unsupported`] for a network of images,
    /// and for a model with state; otherwise as for an engine of the model on the CPU.
    pub fn e4m3_scales<R: AsRef<[u8]>>(&self, rows: &[R]) -> Result<BTreeMap<String, f32>, Error> {
        let (graph, spec) = (self.graph(1)?, self.values()?.input());
        self.refuse_states("a calibration of")?;
        if rows.is_empty() {
            return Err(Error::option("rows", "none", "some, as varied as what the model will see"));
        }
        let (with_maxima, names) = with_maxima(&graph);
        let mut most = vec![0.0_f32; names.len()];
        for row in rows {
            let row = row.as_ref();
            spec.check(row)?;
            let ports = graph.inputs.iter().zip(spec.ports());
            let inputs: Vec<Tensor> =
                ports.map(|(port, at)| Tensor::from_bytes(graph.value(port.value).clone(), &row[at.range()])).collect();
            let found = loops::evaluate(&with_maxima, &mut |name, of| self.weights().read_as(name, of), &inputs)?;
            most.iter_mut().zip(&found).for_each(|(most, found)| *most = most.max(found.elems::<f32>()[0]));
        }
        let scale = |most: f32| if most > 0.0 { most / MOST_E4M3 } else { 1.0 }; // nothing but zeros
        Ok(names.into_iter().zip(most).map(|(name, most)| (name, scale(most))).collect())
    }

    /// The model with these products on numbers of e4m3: the rows of each product are rounded to codes with its scale,
    /// and each row of its result has a matrix rounded to codes with a scale for each column. In the graph these are
    /// maps to codes and back, as in an ONNX file of `QuantizeLinear` and `DequantizeLinear`. The kernels of compute
    /// capability 9.0 multiply the codes; any other device computes the same numbers in loops.
    ///
    /// # Errors
    /// [`Error::Option`] with everything that is wrong: a name that no such product has, as
    /// [`e4m3_scales`](Self::e4m3_scales) names them, and scales that are not between 1e-12 and 1e12;
    /// [`Error::Unsupported`] for a network of images; [`Error::Io`] or [`Error::Tensor`] if weights cannot be read.
    pub fn in_e4m3(&self, scales: &BTreeMap<String, f32>) -> Result<Self, Error> {
        let refused = |problems| Error::option("scales", problems, "products' names, and numbers from 1e-12 to 1e12");
        self.with_products_in_e4m3(&self.graph(1)?, scales, refused)
    }

    /// The model as its configuration has it. A product that has one row at this size stays in floats.
    pub(super) fn in_e4m3_as_kept(
        &self,
        scales: &BTreeMap<String, f32>,
        refused: impl Fn(String) -> Error,
    ) -> Result<Self, Error> {
        let graph = self.graph(1)?;
        let is_single = |node: &&Node| Product::with_rows(&graph, node).is_some_and(|(_, rows)| rows == 1);
        let single: BTreeSet<&str> = graph.nodes.iter().filter(is_single).map(|node| &*node.name).collect();
        let several = scales.iter().filter(|(name, _)| !single.contains(&***name));
        let several = several.map(|(name, scale)| (name.clone(), *scale)).collect();
        self.with_products_in_e4m3(&graph, &several, refused)
    }

    /// The model with these products in e4m3; `graph` is its graph of one row.
    fn with_products_in_e4m3(
        &self,
        graph: &Graph,
        scales: &BTreeMap<String, f32>,
        refused: impl Fn(String) -> Error,
    ) -> Result<Self, Error> {
        let values = self.values()?;
        let products: HashMap<&str, Product> =
            graph.nodes.iter().filter_map(|node| Some((&*node.name, Product::of(graph, node)?))).collect();
        let problem = |(name, scale): (&String, &f32)| match products.contains_key(&**name) {
            false => Some(format!("`{name}` is no product of several rows")),
            true if !SCALES.contains(scale) => Some(format!("`{name}` has the scale {scale}")),
            true => None,
        };
        let problems: Vec<String> = scales.iter().filter_map(problem).collect();
        if !problems.is_empty() {
            return Err(refused(problems.join("; ")));
        }
        let mut made = BTreeMap::new();
        for name in scales.keys() {
            let Product { operands: [_, w], sums_first } = products[&**name];
            let (constant, of) = (graph.constant(w).expect("a product has a constant"), graph.value(w));
            let matrix = name_of(constant, of);
            if self.weights().dims(&coded(&matrix, sums_first)).is_none() {
                let tensor = match constant {
                    Constant::Weight(name) => self.weights().read_as(name, of)?,
                    Constant::Bytes(bytes) => Tensor::from_bytes(of.clone(), bytes),
                };
                let [codes, units] = codes_of(&tensor, sums_first);
                made.insert(coded(&matrix, sums_first), codes);
                made.insert(units_of(&matrix, sums_first), units);
            }
        }
        let weights: Weights = self.weights().with(made)?;
        let scales = scales.clone();
        let values: Values = values.edited(move |graph| with_codes(graph, &scales))?;
        let weights = super::padding::with_layers(weights.into(), &values)?;
        Ok(self.with_values(values.into(), weights))
    }
}

/// The name of a matrix' codes.
fn coded(matrix: &str, sums_first: bool) -> String {
    format!("{matrix} (e4m3{})", if sums_first { ", sums first" } else { "" })
}

/// The name of the units of a matrix' columns or rows.
fn units_of(matrix: &str, sums_first: bool) -> String {
    format!("{matrix} (units{})", if sums_first { ", sums first" } else { "" })
}

/// The codes of a matrix in its own layout, and the numbers that the code of 1 stands for: of each row, or of each column if
/// the sum goes over rows.
fn codes_of(matrix: &Tensor, sums_first: bool) -> [Tensor; 2] {
    let (dims, elems) = (&matrix.value_type().dims, matrix.elems::<f32>());
    let columns = dims[1];
    let place = |at: usize| if sums_first { at % columns } else { at / columns };
    let mut most = vec![0.0_f32; dims[usize::from(sums_first)]];
    for (at, x) in elems.iter().enumerate() {
        most[place(at)] = most[place(at)].max(x.abs());
    }
    // A row of zeros, or of subnormal numbers, has any unit.
    let unit = |most: f32| if most >= f32::MIN_POSITIVE * MOST_E4M3 { most / MOST_E4M3 } else { 1.0 };
    let units: Vec<f32> = most.into_iter().map(unit).collect();
    let codes: Vec<u8> = elems.iter().enumerate().map(|(at, x)| e4m3::encode(x / units[place(at)])).collect();
    [Tensor::of(dims, &codes), Tensor::of(&unit_dims(dims, sums_first), &units)]
}

fn unit_dims(dims: &[usize], sums_first: bool) -> Vec<usize> {
    if sums_first { vec![1, dims[1]] } else { vec![dims[0], 1] }
}

/// The graph whose outputs are the largest magnitudes of its products' rows, and the products' names.
fn with_maxima(graph: &Graph) -> (Graph, Vec<String>) {
    let mut made = Made::of(graph);
    let (mut names, mut known) = (Vec::new(), HashMap::new());
    let mut outputs = Vec::new();
    for node in &graph.nodes {
        made.push(node.clone());
        let Some(Product { operands: [x, _], .. }) = Product::of(graph, node) else { continue };
        let of = graph.value(x).clone();
        let value = *known.entry(x).or_insert_with(|| {
            let name = |part: &str| format!("{} ({part})", node.name);
            let size = made.node(&name("size"), Op::Map(Expr::arg(0).unary(Unary::Abs)), &[x], of.clone());
            let reduce = Reduce { op: ReduceOp::Max, axes: (0..of.rank()).collect(), keep: false };
            made.node(&name("most"), Op::Reduce(reduce), &[size], ValueType::new(Dtype::F32, &[]))
        });
        outputs.push(crate::graph::Port { name: node.name.clone(), value });
        names.push(node.name.clone());
    }
    (Graph { outputs, ..made.graph }, names)
}

/// The graph with the operands of these products as codes.
fn with_codes(graph: &Graph, scales: &BTreeMap<String, f32>) -> Graph {
    let mut made = Made::of(graph);
    let mut known: HashMap<(ValueId, u32), ValueId> = HashMap::new();
    for node in &graph.nodes {
        let mut node = node.clone();
        if let (Some(&scale), Some(of)) = (scales.get(&node.name), Product::of(graph, &node)) {
            let [x, w] = of.operands;
            let name = |part: &str| format!("{} ({part})", node.name);
            // Products that read the same rows with one scale share their codes.
            let x = *known.entry((x, scale.to_bits())).or_insert_with(|| {
                let of = graph.value(x).clone();
                let to_codes = Op::Map(e4m3::rounded(Expr::arg(0), scale));
                let codes = made.node(&name("e4m3"), to_codes, &[x], ValueType { dtype: Dtype::U8, ..of.clone() });
                let number = Expr::arg(0).unary(Unary::OfE4m3) * Expr::float(Dtype::F32, scale.into());
                made.node(&name("of e4m3"), Op::Map(number), &[codes], of)
            });
            let of_w = graph.value(w).clone();
            let matrix = name_of(graph.constant(w).expect("a product has a constant"), &of_w);
            let codes = made.weight(coded(&matrix, of.sums_first), ValueType { dtype: Dtype::U8, ..of_w.clone() });
            let dims = unit_dims(&of_w.dims, of.sums_first);
            let units = made.weight(units_of(&matrix, of.sums_first), ValueType::new(Dtype::F32, &dims));
            let number = Expr::arg(0).unary(Unary::OfE4m3) * Expr::arg(1);
            let w = made.node(&name("matrix of e4m3"), Op::Map(number), &[codes, units], of_w);
            node.inputs = vec![Some(x), Some(w)];
        }
        made.push(node);
    }
    made.graph
}

/// A graph in the making with the values of another one, to which nodes are added.
struct Made {
    graph: Graph,
    names: BTreeSet<String>,
}

impl Made {
    fn of(graph: &Graph) -> Self {
        let names = graph.nodes.iter().map(|node| node.name.clone()).collect();
        Self { graph: Graph { nodes: Vec::new(), ..graph.clone() }, names }
    }

    fn push(&mut self, node: Node) {
        let id = NodeId(self.graph.nodes.len());
        for (number, output) in node.outputs.iter().enumerate() {
            self.graph.values[output.0].origin = Origin::Node(id, number);
        }
        self.graph.nodes.push(node);
    }

    /// Adds a node of one result, under a name that no node of the other graph has.
    fn node(&mut self, name: &str, op: Op, inputs: &[ValueId], of: ValueType) -> ValueId {
        let mut name = name.to_owned();
        while !self.names.insert(name.clone()) {
            name.push('\'');
        }
        let output = self.value(of, Origin::Node(NodeId(0), 0));
        self.push(Node { name, op, inputs: inputs.iter().copied().map(Some).collect(), outputs: vec![output] });
        output
    }

    fn weight(&mut self, name: String, of: ValueType) -> ValueId {
        self.value(of, Origin::Constant(Constant::Weight(name)))
    }

    fn value(&mut self, of: ValueType, origin: Origin) -> ValueId {
        self.graph.values.push(Value { of, origin, quantization: None });
        ValueId(self.graph.values.len() - 1)
    }
}
