//! The values that are fixed when a model becomes a graph: sizes and constants.

use std::collections::BTreeMap;

use crate::graph::Tensor;

/// Sizes of a model's free dimensions, and inputs that are the same for all requests.
///
/// The name of a dimension is its name in the file, such as `batch` or `floor(height/2)`. A dimension without a name,
/// or with the name `?`, is named by its input and axis: `image:0`.
///
/// ```
/// use trefoil::{graph::Tensor, onnx::Sizes};
/// let sizes = Sizes::new().dim("batch", 8).dim("image:2", 224).constant("axes", Tensor::of(&[1], &[-1_i64]));
/// assert_eq!(sizes.get("batch"), Some(8));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Sizes {
    dims: BTreeMap<String, usize>,
    constants: BTreeMap<String, Tensor>,
}

impl Sizes {
    /// No sizes, for a model without free dimensions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the size of the dimension `name`.
    #[must_use]
    pub fn dim(mut self, name: &str, size: usize) -> Self {
        self.dims.insert(name.to_owned(), size);
        self
    }

    /// Sets the value of an input, which the graph then does not have as an input.
    #[must_use]
    pub fn constant(mut self, input: &str, value: Tensor) -> Self {
        self.constants.insert(input.to_owned(), value);
        self
    }

    /// Whether no dimension has a size and no input a value.
    pub fn is_empty(&self) -> bool {
        self.dims.is_empty() && self.constants.is_empty()
    }

    /// The size of a dimension.
    pub fn get(&self, name: &str) -> Option<usize> {
        self.dims.get(name).copied()
    }

    /// All sizes, by the name of the dimension.
    pub(crate) const fn dims(&self) -> &BTreeMap<String, usize> {
        &self.dims
    }

    pub(super) fn value(&self, input: &str) -> Option<&Tensor> {
        self.constants.get(input)
    }

    /// The names of all dimensions and inputs.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.dims.keys().chain(self.constants.keys()).map(String::as_str)
    }

    /// The names of the inputs that have a value.
    pub(super) fn constants(&self) -> impl Iterator<Item = &String> {
        self.constants.keys()
    }
}
