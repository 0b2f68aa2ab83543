//! The graph that is made from a model, with what is known of its values.

use std::collections::HashMap;
use std::rc::Rc;

use super::budget::Budget;
use super::counts::Counted;
use super::order::NodeOrder;
use crate::error::Error;
use crate::error::Problem;
use crate::graph::{Constant, Expr, Graph, GraphBuilder, Number, Op, Tensor, ValueId, ValueType};
use crate::loops;
use crate::onnx::{self, DataType, File, Function, NodeProto};
use crate::tensor::Dtype;

/// A result of the importer. The error is the reason, as the end of a sentence.
pub(in crate::onnx) type Outcome<T> = Result<T, String>;

/// The meaning of a name of the model.
#[derive(Clone, Debug)]
pub(in crate::onnx) enum Item {
    Tensor(ValueId),
    Sequence(Vec<ValueId>),
    /// An empty optional.
    Nothing,
    /// An output of a node that cannot be imported.
    Broken,
}

impl Item {
    /// The number of values in it.
    pub fn len(&self) -> usize {
        match self {
            Self::Sequence(all) => all.len(),
            Self::Tensor(_) | Self::Nothing | Self::Broken => 1,
        }
    }
}

impl From<ValueId> for Item {
    fn from(value: ValueId) -> Self {
        Self::Tensor(value)
    }
}

/// The graph so far, and what is known of its values.
pub(in crate::onnx) struct Context<'m> {
    pub file: &'m File,
    pub builder: GraphBuilder,
    pub functions: HashMap<[&'m str; 3], &'m Function>,
    pub problems: Vec<Problem>,
    /// For values with the bits of a type that no graph has, this type.
    pub stored: HashMap<ValueId, DataType>,
    /// The values of which only a number of elements is in use that depends on the data.
    pub counted: HashMap<ValueId, Counted>,
    /// The name of the node that is imported, after those of the functions and bodies around it.
    pub path: String,
    /// Whether the nodes that are imported belong to a branch that may not be taken.
    pub may_be_skipped: bool,
    pub(super) budget: Budget,
    /// Whether the problem at which the import ended was recorded.
    pub has_ended: bool,
    /// The constants of tensors of the file, by the tensors' addresses.
    pub(super) tensors: HashMap<*const onnx::Tensor, ValueId>,
    /// The import order of each graph, by the address of its first node.
    pub(super) orders: HashMap<*const NodeProto, Rc<NodeOrder>>,
    /// The names of nodes, and how often each was asked for.
    names: HashMap<String, usize>,
}

/// The most bytes of a weight that is read because a shape depends on it.
const READ_BYTES: usize = 64 << 20;

/// The most bytes of any value.
const VALUE_BYTES: usize = 1 << 36;

/// The most elements along an axis: sizes that are computed from two of these do not overflow.
const MOST_OF_AN_AXIS: usize = 1 << 32;

/// The most axes of any value.
const MOST_AXES: usize = 64;

impl<'m> Context<'m> {
    pub fn new(file: &'m File) -> Self {
        let functions = &file.model().functions;
        let key = |function: &'m Function| [&function.domain, &function.name, &function.overload].map(|s| s.as_str());
        Self {
            file,
            builder: GraphBuilder::new(),
            functions: functions.iter().map(|function| (key(function), function)).collect(),
            problems: Vec::new(),
            stored: HashMap::new(),
            counted: HashMap::new(),
            path: String::new(),
            may_be_skipped: false,
            budget: Budget::new(file.all_bytes()),
            has_ended: false,
            tensors: HashMap::new(),
            orders: HashMap::new(),
            names: HashMap::new(),
        }
    }

    pub fn finish(self) -> Result<Graph, Error> {
        self.builder.finish()
    }

    pub fn of(&self, value: ValueId) -> &ValueType {
        self.builder.value(value)
    }

    pub fn dims(&self, value: ValueId) -> Vec<usize> {
        self.of(value).dims.clone()
    }

    pub fn dtype(&self, value: ValueId) -> Dtype {
        self.of(value).dtype
    }

    pub fn rank(&self, value: ValueId) -> usize {
        self.of(value).rank()
    }

    /// The elements of a constant, if they are known without reading weights.
    fn folded(&self, value: ValueId) -> Option<Tensor> {
        match self.builder.graph().constant(value)? {
            Constant::Bytes(bytes) => Some(Tensor::from_bytes(self.of(value).clone(), bytes)),
            Constant::Weight(_) => None,
        }
    }

    /// The elements of a value that is the same for all requests; `None` for other values, and for weights that are too
    /// large.
    pub fn known(&self, value: ValueId) -> Outcome<Option<Tensor>> {
        match self.builder.graph().constant(value) {
            Some(Constant::Weight(name)) if self.of(value).bytes() <= READ_BYTES => {
                self.budget.read(self.of(value).bytes())?;
                self.file.weight(name).map(Some).map_err(|e| e.to_string())
            }
            _ => Ok(self.folded(value)),
        }
    }

    /// Takes `count` steps of the import's budget.
    pub fn step(&self, count: usize) -> Outcome<()> {
        self.budget.step(count)
    }

    /// The elements of a value that shapes of other values depend on.
    pub fn ints(&self, value: ValueId, what: &str) -> Outcome<Vec<i64>> {
        self.known_here(value, what)?
            .to_i64s()
            .ok_or_else(|| format!("{what}: expected whole numbers, found {}", self.of(value)))
    }

    /// The elements of a value that attributes are made from.
    pub fn floats(&self, value: ValueId, what: &str) -> Outcome<Vec<f64>> {
        Ok(self.known_here(value, what)?.to_f64s())
    }

    /// The first element of a value that attributes are made from; `None` if it has no elements.
    pub fn first(&self, value: ValueId, what: &str) -> Outcome<Option<Number>> {
        Ok(element(&self.known_here(value, what)?))
    }

    /// The elements of a value that has to be known now.
    fn known_here(&self, value: ValueId, what: &str) -> Outcome<Tensor> {
        let unknown = || format!("{what} has to be known here, but depends on the inputs: bind them as constants");
        self.known(value)?.ok_or_else(unknown)
    }

    /// Adds a constant.
    pub fn constant(&mut self, value: &Tensor) -> ValueId {
        let of = value.value_type().clone();
        self.builder.constant(of.dtype, &of.dims, value.bytes())
    }

    /// Adds a constant of integers in one dimension.
    pub fn vector(&mut self, elems: &[i64]) -> ValueId {
        self.constant(&Tensor::of(&[elems.len()], elems))
    }

    /// Adds a constant of one number, without dimensions.
    pub fn scalar(&mut self, dtype: Dtype, value: f64) -> Outcome<ValueId> {
        self.filled(dtype, &[], value)
    }

    /// Adds a value of these dimensions whose elements are all `value`.
    pub fn filled(&mut self, dtype: Dtype, dims: &[usize], value: f64) -> Outcome<ValueId> {
        let one = self.constant(&Tensor::of(&[], &[0_u8]));
        let number = self.op(Op::Map(number(dtype, value)), &[one])?;
        self.broadcast(number, dims)
    }

    /// Adds an operation of one output whose operands are all there.
    pub fn op(&mut self, op: Op, inputs: &[ValueId]) -> Outcome<ValueId> {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        Ok(self.emit(op, &inputs, 1)?[0])
    }

    /// The results of an operation: its first operand if the operation changes nothing, constants if all operands are
    /// known, else a new node.
    pub fn emit(&mut self, op: Op, inputs: &[Option<ValueId>], outputs: usize) -> Outcome<Vec<ValueId>> {
        self.step(1 + inputs.len())?;
        let types: Vec<_> = inputs.iter().map(|id| id.map(|id| self.builder.value(id))).collect();
        let written = op.infer(&types, outputs).map_err(|what| format!("{}: {what}", op.kind()))?;
        written.iter().try_for_each(check_value)?;
        if let (true, [Some(only)]) = (changes_nothing(&op, types.first().copied().flatten(), &written[0]), inputs) {
            return Ok(vec![*only]);
        }
        let is_known = |id: &ValueId| matches!(self.builder.graph().constant(*id), Some(Constant::Bytes(_)));
        if inputs.iter().flatten().all(is_known) && self.budget.folds(&op, &types, &written) {
            return self.fold(&op, inputs, &written);
        }
        let counted = self.counted_of(&op, inputs, &written[0].dims)?;
        let values = self.push(op, inputs, outputs);
        self.counted.extend(counted.iter().flat_map(|of| values.iter().map(|&value| (value, *of))));
        Ok(values)
    }

    /// Computes an operation on constants now.
    fn fold(&mut self, op: &Op, inputs: &[Option<ValueId>], written: &[ValueType]) -> Outcome<Vec<ValueId>> {
        let known: Vec<_> = inputs.iter().map(|id| id.and_then(|id| self.folded(id))).collect();
        let known: Vec<_> = known.iter().map(Option::as_ref).collect();
        let values = loops::compute(op, &known, written).map_err(|e| e.to_string())?;
        Ok(values.iter().map(|value| self.constant(value)).collect())
    }

    fn push(&mut self, op: Op, inputs: &[Option<ValueId>], outputs: usize) -> Vec<ValueId> {
        let (op, inputs) = match op {
            Op::Map(expr) => self.with_numbers(expr, inputs),
            op => (op, inputs.to_vec()),
        };
        let name = self.fresh();
        self.builder.node_with(&name, op, &inputs, outputs)
    }

    /// A map whose operands with one known element are replaced by numbers in its expression.
    fn with_numbers(&self, expr: Expr, inputs: &[Option<ValueId>]) -> (Op, Vec<Option<ValueId>>) {
        let rank = inputs.iter().flatten().filter(|id| self.of(**id).elems() != 1).map(|id| self.rank(*id)).max();
        let number = |id: &Option<ValueId>| {
            let value = id.filter(|id| self.of(*id).elems() == 1 && Some(self.rank(*id)) <= rank)?;
            let value = self.folded(value)?;
            Some(Expr::Const(value.value_type().dtype, element(&value)?))
        };
        let (mut kept, mut args) = (Vec::new(), Vec::new());
        for id in inputs {
            args.push(number(id).unwrap_or_else(|| {
                kept.push(*id);
                Expr::arg(kept.len() - 1)
            }));
        }
        (Op::Map(expr.with_args(&args)), kept)
    }

    /// A name for a node that no other node has.
    fn fresh(&mut self) -> String {
        loop {
            let count = self.names.entry(self.path.clone()).or_default();
            *count += 1;
            if *count == 1 {
                return self.path.clone();
            }
            let name = format!("{}#{}", self.path, *count - 1);
            if !self.names.contains_key(&name) {
                self.names.insert(name.clone(), 1);
                return name;
            }
        }
    }
}

/// Checks that a graph may have a value of this type.
pub(super) fn check_value(of: &ValueType) -> Outcome<()> {
    if of.rank() > MOST_AXES {
        return Err(format!("a value of {} axes: expected {MOST_AXES} at most", of.rank()));
    }
    // The limit holds for empty values too, so that no product of their sizes exceeds it.
    let bytes = of.dims.iter().try_fold(of.dtype.bytes(), |bytes, &dim| bytes.checked_mul(dim.max(1)));
    match bytes.is_some_and(|bytes| bytes <= VALUE_BYTES) && of.dims.iter().all(|&dim| dim <= MOST_OF_AN_AXIS) {
        true => Ok(()),
        false => Err(format!("{of} is larger than {VALUE_BYTES} bytes, or than {MOST_OF_AN_AXIS} along an axis")),
    }
}

/// A constant of a type in an expression; for a type of whole numbers it is truncated.
pub(in crate::onnx) fn number(dtype: Dtype, value: f64) -> Expr {
    if dtype.is_float() { Expr::float(dtype, value) } else { Expr::int(dtype, value as i128) }
}

/// The first element, if there is one.
fn element(value: &Tensor) -> Option<Number> {
    match value.value_type().dtype {
        Dtype::U64 => value.elems::<u64>().first().map(|&elem| Number::Int(elem.into())),
        dtype if dtype.is_float() => value.to_f64s().first().map(|&elem| Number::Float(elem)),
        _ => value.to_i64s()?.first().map(|&elem| Number::Int(elem.into())),
    }
}

/// Whether an operation of one operand returns the operand unchanged.
fn changes_nothing(op: &Op, operand: Option<&ValueType>, written: &ValueType) -> bool {
    let same = operand == Some(written);
    match op {
        Op::Reshape(_) | Op::Broadcast(_) | Op::Concat(_) => same,
        Op::Transpose(order) => order.iter().copied().eq(0..order.len()),
        Op::Slice(slice) => same && slice.step.iter().all(|&step| step == 1),
        Op::Pad(pad) => same && pad.before.iter().chain(&pad.after).all(|&n| n == 0),
        Op::Map(expr) => *expr == Expr::arg(0),
        Op::Reduce(reduce) => reduce.axes.is_empty(),
        _ => false,
    }
}
