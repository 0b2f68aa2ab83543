//! Finds numbers that are infinite or NaN.

use crate::graph::{Tensor, ValueType};
use crate::tensor::Dtype;

/// The number of elements that are infinite or NaN, and the index and value of the first; `None` if all are finite.
pub(crate) fn not_finite(dtype: Dtype, bytes: &[u8]) -> Option<(usize, (usize, f64))> {
    let numbers = Tensor::from_bytes(ValueType::new(dtype, &[bytes.len() / dtype.bytes()]), bytes).to_f64s();
    let mut found = numbers.iter().copied().enumerate().filter(|(_, number)| !number.is_finite());
    let first = found.next()?;
    Some((1 + found.count(), first))
}
