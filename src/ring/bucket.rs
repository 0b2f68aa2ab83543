//! Buckets: all rows of one bucket have the same ports, and so the same pitch.

use std::collections::BTreeSet;

use crate::error::Error;
use crate::tensor::{Bucket, RowSpec, Size};

/// The rows of one bucket, and the sizes for them.
pub(crate) struct RowBucket {
    pub sizes: Bucket,
    /// The layout of the rows that producers write.
    pub input: RowSpec,
    /// The layout of the rows that consumers read, for each program whose output is downloaded.
    pub outputs: Vec<RowSpec>,
}

/// All buckets of a ring, one or more.
pub(crate) struct Buckets {
    all: Vec<RowBucket>,
    /// The dimensions along which rows may be padded.
    neutral: BTreeSet<String>,
}

/// A number of rows of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub bucket: usize,
    pub rows: usize,
}

impl RowBucket {
    /// The number of rows of the largest batch.
    pub fn capacity(&self) -> usize {
        self.sizes.most()
    }

    /// Bytes of an input row and its output rows without padding. Buckets with different dimensions may have the same
    /// pitch.
    fn dense_bytes(&self) -> usize {
        self.input.row_bytes + self.outputs.iter().map(|output| output.row_bytes).sum::<usize>()
    }

    /// Bytes of a row that are uploaded, and bytes that are downloaded.
    pub fn row_bytes(&self) -> [usize; 2] {
        [self.input.row_pitch, self.outputs.iter().map(|output| output.row_pitch).sum()]
    }
}

impl Buckets {
    pub const fn new(all: Vec<RowBucket>, neutral: BTreeSet<String>) -> Self {
        Self { all, neutral }
    }

    /// One bucket, without free dimensions.
    pub fn one(batch_sizes: &[usize], input: RowSpec, outputs: Vec<RowSpec>) -> Self {
        Self::new(vec![RowBucket { sizes: Bucket::of(batch_sizes.to_vec()), input, outputs }], BTreeSet::new())
    }

    /// The number of buckets.
    pub const fn len(&self) -> usize {
        self.all.len()
    }

    pub fn at(&self, index: usize) -> &RowBucket {
        &self.all[index]
    }

    /// The bucket of batches for which no size is asked for.
    pub fn first(&self) -> &RowBucket {
        self.at(0)
    }

    /// Every size, in the order of the programs' batch sizes.
    pub fn sizes(&self) -> impl Iterator<Item = Size> {
        self.all.iter().flat_map(|bucket| bucket.sizes.sizes())
    }

    /// The bucket of every size.
    pub fn of_sizes(&self) -> impl Iterator<Item = usize> {
        self.all.iter().enumerate().flat_map(|(index, bucket)| vec![index; bucket.sizes.batch_sizes.len()])
    }

    /// The index of the smallest size that holds these rows.
    pub(super) fn size_for(&self, Extent { bucket, rows }: Extent) -> usize {
        let before: usize = self.all[..bucket].iter().map(|bucket| bucket.sizes.batch_sizes.len()).sum();
        before + self.all[bucket].sizes.batch_sizes.partition_point(|&size| size < rows)
    }

    /// The buckets with other batch sizes.
    pub fn with_sizes(mut self, sizes: &[Bucket]) -> Self {
        self.all.iter_mut().zip(sizes).for_each(|(bucket, sizes)| bucket.sizes = sizes.clone());
        self
    }

    /// The most bytes that the rows of a batch of any bucket take in a staging buffer, and in a result buffer, where
    /// outputs lie one after the other.
    pub fn bytes(&self) -> [u64; 2] {
        [self.most(|bucket| bucket.input.row_pitch), self.outputs_before(self.first().outputs.len())]
    }

    /// The byte at which the rows of an output begin in a result buffer.
    pub fn output_at(&self, part: usize) -> usize {
        self.outputs_before(part) as usize // a buffer holds it
    }

    fn outputs_before(&self, part: usize) -> u64 {
        let bytes = |part: usize| self.most(|bucket| bucket.outputs[part].row_pitch);
        (0..part).fold(0, |sum, part| sum.saturating_add(bytes(part)))
    }

    fn most(&self, pitch: impl Fn(&RowBucket) -> usize) -> u64 {
        let bytes = |bucket: &RowBucket| (bucket.capacity() as u64).saturating_mul(pitch(bucket) as u64);
        self.all.iter().map(bytes).max().expect("a ring has a bucket")
    }

    /// The bucket with the smallest rows among those that hold rows of these dimensions, and this number of rows in a
    /// batch. A dimension that is not named is as in the first bucket.
    ///
    /// # Errors
    /// [`Error::Option`] with all sizes if there is none.
    pub fn holding(&self, size: &Size) -> Result<usize, Error> {
        let is_known = |name: &String| self.first().sizes.dims.contains_key(name);
        let fits = |index: &usize| {
            let bucket = self.at(*index);
            let mut dims = bucket.sizes.dims.iter().zip(self.first().sizes.dims.values());
            let holds = |(name, &there): (&String, &usize), default: usize| match size.get(name) {
                Some(wanted) => wanted == there || (wanted < there && self.neutral.contains(name)),
                None => default == there,
            };
            (1..=bucket.capacity()).contains(&size.batch()) && dims.all(|(dim, &default)| holds(dim, default))
        };
        let found = (0..self.len()).filter(fits).min_by_key(|&index| self.at(index).dense_bytes());
        found.filter(|_| size.dims().keys().all(is_known)).ok_or_else(|| self.no_size(size))
    }

    fn no_size(&self, wanted: &Size) -> Error {
        let known: Vec<String> = self.sizes().map(|size| size.to_string()).collect();
        let shorter = match &self.neutral {
            none if none.is_empty() => String::new(),
            neutral => format!(", or less of {}", neutral.iter().cloned().collect::<Vec<_>>().join(", ")),
        };
        Error::option("size", wanted, format!("what a size of the engine holds: {}{shorter}", known.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Dtype;

    fn buckets(neutral: &[&str]) -> Buckets {
        let of = |(sizes, length): (&[usize], usize)| {
            let dims = [("length".to_owned(), length), ("width".to_owned(), 3)].into();
            let row = |pitch: usize| RowSpec::new([("x", Dtype::F32, vec![length, pitch])]);
            RowBucket {
                sizes: Bucket { dims, batch_sizes: sizes.to_vec() },
                input: row(64),
                outputs: vec![row(64), row(128)],
            }
        };
        let all = [(&[1_usize, 8][..], 4), (&[2], 1), (&[4], 16)];
        Buckets::new(all.into_iter().map(of).collect(), neutral.iter().map(|&name| name.to_owned()).collect())
    }

    fn size(batch: usize, length: usize) -> Size {
        Size::new(batch).dim("length", length)
    }

    #[test]
    fn a_size_is_found_by_its_dimensions_and_rows() {
        let buckets = buckets(&[]);
        assert_eq!(buckets.holding(&size(8, 4)).unwrap(), 0);
        assert_eq!(buckets.holding(&size(1, 1)).unwrap(), 1);
        assert_eq!(buckets.holding(&Size::new(3)).unwrap(), 0, "a dimension that is not named is the first bucket's");
        for wrong in [size(3, 1), size(1, 2), size(0, 4), size(1, 4).dim("width", 2), size(1, 4).dim("height", 1)] {
            let error = buckets.holding(&wrong).unwrap_err().to_string();
            assert!(error.contains(&wrong.to_string()) && error.contains("batch=2,length=1,width=3"), "{error}");
        }
    }

    #[test]
    fn rows_that_may_be_padded_take_the_smallest_that_holds_them() {
        let buckets = buckets(&["length"]);
        assert_eq!(buckets.holding(&size(2, 1)).unwrap(), 1);
        assert_eq!(buckets.holding(&size(3, 1)).unwrap(), 0, "the bucket of length 1 holds two rows");
        assert_eq!(buckets.holding(&size(4, 5)).unwrap(), 2);
        assert!(buckets.holding(&size(1, 17)).unwrap_err().to_string().contains("or less of length"));
        assert!(buckets.holding(&size(5, 5)).is_err());
    }

    #[test]
    fn buffers_hold_every_bucket() {
        let buckets = buckets(&[]);
        let row = 64 * 4_u64;
        assert_eq!(buckets.bytes(), [4 * 16 * row, 3 * 4 * 16 * row]);
        assert_eq!(
            [0, 1, 2].map(|part| buckets.output_at(part)),
            [0, 4 * 16 * row, 3 * 4 * 16 * row].map(|at| at as usize)
        );
        let size_for = |bucket, rows| buckets.size_for(Extent { bucket, rows });
        assert_eq!([size_for(0, 1), size_for(0, 2), size_for(1, 1), size_for(2, 4)], [0, 1, 2, 3]);
        assert_eq!(buckets.sizes().count(), 4);
    }
}
