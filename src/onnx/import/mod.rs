//! Imports a model's file as a graph of values.
//!
//! Sizes are bound first, so that every dimension is a number, and computations on shapes are done during the import.
//! Functions are inlined, loops are unrolled, and branches on known conditions are taken. Each operator becomes a few
//! operations of the graph, with the attributes of the version that the model uses. All nodes that cannot be imported
//! are reported in one error.

mod budget;
mod call;
mod context;
mod counts;
mod order;
mod scope;
mod shapes;
mod sizes;
mod weights;

use std::collections::{HashMap, HashSet};

pub(super) use call::Call;
use context::check_value;
pub(super) use context::{Context, Item, Outcome, number};
pub(super) use counts::Counted;
use scope::{Frame, Scope};
pub(super) use shapes::{axes_of, axis_of, product, size_of_dim};
pub use sizes::Sizes;
pub(crate) use weights::dtype_of;
pub(super) use weights::is_storage;

use super::{Dim, File, ValueInfo, ValueType};
use crate::error::Error;
use crate::graph::{Graph, ValueId, ValueType as Type};

impl File {
    /// The model as a graph at these sizes of its free dimensions. Its weights have the names of the file's initializers.
    ///
    /// An output `y` whose size depends on the data has its largest possible size. For each such output there is an
    /// output `y.count`, an i64, behind the others: the number of elements along the axis that are in use.
    ///
    /// # Errors
    /// [`Error::Option`] with every dimension whose size is missing, or a size or constant that the model has no use for or
    /// that does not fit; [`Error::Import`] with every node that cannot be imported.
    ///
    /// ```
    /// use trefoil::onnx::{File, Sizes};
    /// let file = File::open("tests/data/onnx/graph.onnx")?;
    /// assert!(file.graph(&Sizes::new()).unwrap_err().to_string().contains("`N`"));
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn graph(&self, sizes: &Sizes) -> Result<Graph, Error> {
        let model = self.model();
        self.check(sizes)?;
        let mut cx = Context::new(self);
        let frame = Frame { opsets: &model.opsets, attributes: HashMap::new(), depth: 0 };
        let mut scope = Scope { names: HashMap::new(), outer: None, frame: &frame };
        let read = model.graph.names_read();
        for tensor in model.graph.initializers.iter().filter(|tensor| read.contains(&tensor.name[..])) {
            let fail = |what| Error::graph(&tensor.name, what);
            scope.names.insert(&tensor.name, cx.initializer(tensor).map_err(fail)?.into());
        }
        for input in &model.graph.inputs {
            if sizes.value(&input.name).is_some() || self.initializer(&input.name).is_none() {
                let value = bind(&mut cx, input, sizes)?;
                scope.names.insert(&input.name, value.into());
            }
        }
        scope.run(&mut cx, &model.graph.nodes);
        if !cx.problems.is_empty() {
            return Err(Error::Import { path: self.path().to_owned(), problems: cx.problems.into() });
        }
        for output in &model.graph.outputs {
            match scope.find(&output.name) {
                Some(Item::Tensor(value)) => cx.builder.output(&output.name, *value),
                Some(_) => return Err(Error::graph(&output.name, "an output that is no tensor")),
                None => return Err(Error::graph(&output.name, "an output that nothing writes")),
            }
        }
        for output in &model.graph.outputs {
            if let Some(Item::Tensor(value)) = scope.find(&output.name)
                && let Some(Counted { count, .. }) = cx.counted.get(value)
            {
                cx.builder.output(&format!("{}.count", output.name), *count);
            }
        }
        cx.finish()
    }

    /// The free dimensions of the inputs, each once, by their names in [`Sizes`]. Inputs with a default are left out.
    ///
    /// ```
    /// # use trefoil::onnx::File;
    /// assert_eq!(File::open("tests/data/onnx/images.onnx")?.free_dims(), ["batch"]);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn free_dims(&self) -> Vec<String> {
        let mut known = HashSet::new();
        let all = self.free_inputs().filter_map(dims).flatten().filter_map(Result::err);
        all.filter(|name| known.insert(name.clone())).collect()
    }

    /// Checks that every free dimension has a size, and every size a dimension.
    fn check(&self, sizes: &Sizes) -> Result<(), Error> {
        let inputs = self.free_inputs().filter(|input| sizes.value(&input.name).is_none());
        let missing: Vec<String> = inputs
            .flat_map(|input| dims(input).unwrap_or_default())
            .filter_map(|dim| dim.err())
            .filter(|name| sizes.get(name).is_none())
            .map(|name| format!("`{name}`"))
            .collect();
        let (mut dims_known, mut inputs_known) = (Vec::new(), Vec::new());
        for input in &self.model().graph.inputs {
            dims_known.extend(dims(input).unwrap_or_default().into_iter().filter_map(Result::err));
            inputs_known.push(input.name.clone());
        }
        let unknown = |names: &mut dyn Iterator<Item = &String>, known: &[String]| {
            names.filter(|name| !known.contains(name)).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        };
        let of_dims = unknown(&mut sizes.dims().keys(), &dims_known);
        if !missing.is_empty() {
            let also = if of_dims.is_empty() { String::new() } else { format!("; the model has no {of_dims}") };
            let expected = format!("a size for each free dimension, also {}{also}", missing.join(", "));
            return Err(Error::option("sizes", "incomplete", expected));
        }
        if !of_dims.is_empty() {
            let mut seen = HashSet::new();
            dims_known.retain(|name| seen.insert(name.clone()));
            let expected = match &dims_known[..] {
                [] => "none: the model has no free dimension".to_owned(),
                known => format!("the model's free dimensions: {}", known.join(", ")),
            };
            return Err(Error::option("sizes", of_dims, expected));
        }
        match unknown(&mut sizes.constants(), &inputs_known) {
            none if none.is_empty() => Ok(()),
            names => Err(Error::option("constants", names, format!("the model's inputs: {}", inputs_known.join(", ")))),
        }
    }

    /// The inputs without a default.
    fn free_inputs(&self) -> impl Iterator<Item = &ValueInfo> {
        let graph = &self.model().graph;
        let constants: HashSet<&str> = graph.initializers.iter().map(|tensor| tensor.name.as_str()).collect();
        graph.inputs.iter().filter(move |input| !constants.contains(input.name.as_str()))
    }
}

/// The dimensions of an input, each with its size or its name; `None` if the file does not say.
fn dims(input: &ValueInfo) -> Option<Vec<Result<usize, String>>> {
    let ValueType::Tensor { dims: Some(dims), .. } = &input.kind else { return None };
    let dim = |(axis, dim): (usize, &Dim)| match dim {
        Dim::Fixed(size) => Ok(*size),
        Dim::Named(name) if name != "?" => Err(name.clone()),
        Dim::Named(_) | Dim::Unknown => Err(format!("{}:{axis}", input.name)),
    };
    Some(dims.iter().enumerate().map(dim).collect())
}

/// Adds an input of the graph, or the constant that it is bound to.
fn bind(cx: &mut Context<'_>, input: &ValueInfo, sizes: &Sizes) -> Result<ValueId, Error> {
    let fail = |what: &str| Error::graph(&input.name, format!("an input {what}"));
    let ValueType::Tensor { dtype: Some(stored), .. } = &input.kind else {
        return Err(fail("that is not a tensor, or has no type in the file"));
    };
    let dtype = dtype_of(*stored).ok_or_else(|| fail(&format!("of {stored}, which is not supported")))?;
    let bound = sizes.value(&input.name);
    let expected = dims(input);
    if let Some(bound) = bound {
        let of = bound.value_type();
        let fits = |dims: &Vec<Result<usize, String>>| {
            dims.len() == of.rank()
                && dims.iter().zip(&of.dims).all(|(dim, size)| !matches!(dim, Ok(dim) if dim != size))
        };
        if of.dtype != dtype || !expected.as_ref().is_none_or(fits) {
            return Err(Error::option("constants", format!("{of} for `{}`", input.name), "the type in the model"));
        }
    }
    let value = match bound {
        Some(bound) => cx.constant(bound),
        None => {
            let dims = expected.ok_or_else(|| fail("of unknown rank: bind it as a constant"))?;
            let dims: Vec<usize> = dims
                .into_iter()
                .map(|dim| dim.or_else(|name| sizes.get(&name).ok_or(name)))
                .collect::<Result<_, _>>()
                .map_err(|name| {
                    Error::option("sizes", "incomplete", format!("a size for each free dimension, also `{name}`"))
                })?;
            check_value(&Type::new(dtype, &dims)).map_err(|what| Error::graph(&input.name, what))?;
            cx.builder.input(&input.name, dtype, &dims)
        }
    };
    cx.store(value, *stored);
    Ok(value)
}
