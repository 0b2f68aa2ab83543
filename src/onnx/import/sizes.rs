//! What is fixed when a model becomes a graph.

use std::collections::BTreeMap;

use crate::graph::Tensor;

/// Sizes of a model's free dimensions, and inputs that are the same for all requests.
///
/// A dimension is called what the file calls it, be it `batch` or `floor(height/2)`; one without a name, or called `?`, is
/// called after its input and its number: `image:0`.
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
    /// No sizes: enough for a model without free dimensions.
    pub fn new() -> Self {
        Self::default()
    }

    /// With this size of a dimension.
    #[must_use]
    pub fn dim(mut self, name: &str, size: usize) -> Self {
        self.dims.insert(name.to_owned(), size);
        self
    }

    /// With this value for an input, which the graph then does not have.
    #[must_use]
    pub fn constant(mut self, input: &str, value: Tensor) -> Self {
        self.constants.insert(input.to_owned(), value);
        self
    }

    /// The size of a dimension.
    pub fn get(&self, name: &str) -> Option<usize> {
        self.dims.get(name).copied()
    }

    /// The sizes that it has.
    pub(crate) const fn dims(&self) -> &BTreeMap<String, usize> {
        &self.dims
    }

    pub(super) fn value(&self, input: &str) -> Option<&Tensor> {
        self.constants.get(input)
    }

    /// All names of dimensions and inputs.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.dims.keys().chain(self.constants.keys()).map(String::as_str)
    }
}
