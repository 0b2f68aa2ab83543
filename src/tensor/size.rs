//! Sizes of engines: the number of rows in a batch, and sizes of free dimensions.

use std::collections::BTreeMap;
use std::fmt;

/// Sizes of free dimensions, by name.
pub(crate) type Dims = BTreeMap<String, usize>;

/// A size of an engine, or of a request: the number of rows in a batch, and sizes of the model's free dimensions by
/// name. A dimension without a name here has the size that the model was opened at.
///
/// ```
/// use trefoil::Size;
/// let size = Size::new(8).dim("sequence", 128);
/// assert_eq!((size.batch(), size.get("sequence"), size.get("width")), (8, Some(128), None));
/// assert_eq!(size.to_string(), "batch=8,sequence=128");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Size {
    batch: usize,
    dims: Dims,
}

impl Size {
    /// A size with `batch` rows, and no named dimension.
    pub const fn new(batch: usize) -> Self {
        Self { batch, dims: Dims::new() }
    }

    /// Sets the size of the free dimension `name`.
    #[must_use]
    pub fn dim(mut self, name: &str, size: usize) -> Self {
        self.dims.insert(name.to_owned(), size);
        self
    }

    /// Sets the number of rows.
    #[must_use]
    pub fn rows(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    pub(crate) const fn of(batch: usize, dims: Dims) -> Self {
        Self { batch, dims }
    }

    /// The number of rows in a batch.
    pub const fn batch(&self) -> usize {
        self.batch
    }

    /// The size of the free dimension `name`, if this size names it.
    pub fn get(&self, name: &str) -> Option<usize> {
        self.dims.get(name).copied()
    }

    /// The free dimensions that it names.
    pub(crate) const fn dims(&self) -> &Dims {
        &self.dims
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch={}", self.batch)?;
        self.dims.iter().try_for_each(|(name, size)| write!(f, ",{name}={size}"))
    }
}

/// A packed size: rows of different lengths lie end to end in one record, which has as many tokens as all of them together
/// may have.
///
/// ```
/// use trefoil::Packing;
/// let size = Packing { tokens: 4096, rows: 256, longest: 512 };
/// assert_eq!(size.to_string(), "tokens=4096,rows=256,longest=512");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Tokens of all rows together.
    pub tokens: usize,
    /// Rows.
    pub rows: usize,
    /// Tokens of the longest row.
    pub longest: usize,
}

impl Packing {
    /// The packed size in the free dimensions of these names; `None` if one of them is missing.
    pub(crate) fn of(dims: &Dims) -> Option<Self> {
        let [tokens, rows, longest] = Self::NAMES.map(|name| dims.get(name).copied());
        Some(Self { tokens: tokens?, rows: rows?, longest: longest? })
    }

    /// The packed size as free dimensions.
    pub(crate) fn dims(&self) -> Dims {
        let Self { tokens, rows, longest } = *self;
        Self::NAMES.map(str::to_owned).into_iter().zip([tokens, rows, longest]).collect()
    }

    const NAMES: [&'static str; 3] = ["tokens", "rows", "longest"];
}

impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tokens={},rows={},longest={}", self.tokens, self.rows, self.longest)
    }
}

/// The sizes of an engine that have the same free dimensions, and so the same rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// The free dimensions.
    pub dims: Dims,
    /// Rows of a batch, ascending.
    pub batch_sizes: Vec<usize>,
}

impl Bucket {
    /// A bucket without free dimensions.
    pub const fn of(batch_sizes: Vec<usize>) -> Self {
        Self { dims: Dims::new(), batch_sizes }
    }

    /// The buckets of some sizes, in the order in which each bucket's dimensions come first.
    pub fn all(sizes: &[Size]) -> Vec<Self> {
        let mut buckets: Vec<Self> = Vec::new();
        for Size { batch, dims } in sizes {
            match buckets.iter_mut().find(|bucket| bucket.dims == *dims) {
                Some(bucket) => bucket.batch_sizes.push(*batch),
                None => buckets.push(Self { dims: dims.clone(), batch_sizes: vec![*batch] }),
            }
        }
        for bucket in &mut buckets {
            bucket.batch_sizes.sort_unstable();
            bucket.batch_sizes.dedup();
        }
        buckets
    }

    /// The most rows of a batch.
    pub fn most(&self) -> usize {
        *self.batch_sizes.last().expect("a bucket has a batch size")
    }

    /// The bucket with batches of at most `batch` rows; the largest has exactly this many.
    pub fn capped(&self, batch: usize) -> Self {
        let below = self.batch_sizes.iter().copied().filter(|&size| size < batch.min(self.most()));
        Self { dims: self.dims.clone(), batch_sizes: below.chain([batch.min(self.most())]).collect() }
    }

    /// Its sizes, ascending.
    pub fn sizes(&self) -> impl Iterator<Item = Size> {
        self.batch_sizes.iter().map(|&batch| Size::of(batch, self.dims.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_the_same_dimensions_are_together() {
        let size = |batch, length| Size::new(batch).dim("length", length);
        let buckets = Bucket::all(&[size(8, 128), size(1, 64), size(2, 128), size(8, 128)]);
        let told: Vec<Vec<String>> =
            buckets.iter().map(|bucket| bucket.sizes().map(|size| size.to_string()).collect()).collect();
        assert_eq!(told, [vec!["batch=2,length=128", "batch=8,length=128"], vec!["batch=1,length=64"]]);
        assert_eq!((buckets[0].most(), buckets[1].most()), (8, 1));
        let capped = |batch| buckets[0].capped(batch).batch_sizes;
        assert_eq!([capped(1), capped(5), capped(9)], [vec![1], vec![2, 5], vec![2, 8]]);
    }
}
