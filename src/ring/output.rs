//! The result of a submission, which the program reads in place.

use std::sync::Arc;

use super::Core;
use super::bucket::{Extent, RowBucket};
use crate::device::Note;
use crate::error::Error;
use crate::sync::lock;
use crate::tensor::{Element, OutputKind, PortKey, RowSpec};

/// The result of a submission: rows in page-locked memory, which the caller reads in place. Dropping the output frees
/// the memory for a later batch.
///
/// ```
/// # use trefoil::{Engine, model::Model};
/// # fn f(engine: &Engine, model: &Model) -> Result<(), trefoil::Error> {
/// let output = engine.acquire()?.submit(1)?.wait()?;
/// for (class, probability) in output.top_k(0, 5)? {
///     println!("{:5.1} % {}", 100.0 * probability, model.label(class));
/// }
/// # Ok(()) }
/// ```
pub struct Output {
    core: Arc<Core>,
    result: usize,
    extent: Extent,
}

impl Output {
    pub(super) fn new(core: Arc<Core>, result: usize, extent: Extent) -> Self {
        Self { core, result, extent }
    }

    fn rows_of(&self) -> &RowBucket {
        self.core.bucket(self.extent.bucket)
    }

    /// The number of rows that were submitted.
    pub fn rows(&self) -> usize {
        self.extent.rows
    }

    /// The ports of a row; for an engine of several models, those of its first output.
    pub fn spec(&self) -> &RowSpec {
        &self.rows_of().outputs[0]
    }

    /// The number of outputs of a row: one, or for an engine of several models as many as there are models whose output
    /// no other model reads.
    pub fn parts(&self) -> usize {
        self.rows_of().outputs.len()
    }

    /// One of the outputs of an engine of several models, in the order in which the builder named them.
    ///
    /// # Panics
    /// If `index` is not below [`Output::parts`].
    pub fn part(&self, index: usize) -> OutputPart<'_> {
        let spec = &self.rows_of().outputs[index];
        let at = self.core.spec.buckets.output_at(index);
        // SAFETY: self holds the result's credit and was made after its `done` event: the copy engine has written it
        // and nothing writes it before self is dropped.
        let bytes = unsafe { self.core.results[self.result].buffer.bytes() };
        let (kind, classes) = (self.core.spec.output_kind, self.core.spec.classes[index]);
        OutputPart { bytes: &bytes[at..], rows: self.extent.rows, spec, kind, classes }
    }

    /// The content of its rows.
    #[cfg(any(feature = "ffi", test))]
    pub(crate) fn kind(&self) -> OutputKind {
        self.core.spec.output_kind
    }

    /// The bytes of row `index`.
    ///
    /// # Panics
    /// If `index` is not below [`Output::rows`].
    pub fn row(&self, index: usize) -> &[u8] {
        self.part(0).row(index)
    }

    /// The elements of one port of row `index`, by its name or its number, see [`RowSpec`].
    ///
    /// ```no_run
    /// # fn f(output: trefoil::Output) -> Result<(), trefoil::Error> {
    /// let boxes: &[f32] = output.port(0, "boxes")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] if there is no such port, or its elements are of another type.
    ///
    /// # Panics
    /// If `index` is not below [`Output::rows`].
    pub fn port<T: Element>(&self, index: usize, port: impl PortKey) -> Result<&[T], Error> {
        self.part(0).port(index, port)
    }

    /// The numbers of row `index` as the device wrote them: logits or probabilities by class, features (NHWC), or the
    /// first port of a model of values.
    ///
    /// # Panics
    /// If `index` is not below [`Output::rows`], for [`OutputKind::TopK`], whose rows are pairs: see [`Output::top_k`]; and
    /// if the first port is not of f32: see [`Output::port`].
    pub fn values(&self, index: usize) -> &[f32] {
        self.part(0).values(index)
    }

    /// The `k` largest values of row `index` as pairs (class, value), largest first, ties by the lower class. An engine
    /// built for [`OutputKind::TopK`] gives at most as many as it was built for.
    ///
    /// # Errors
    /// [`Error::Output`] if any value of the row is not finite or, of probabilities, not within 0 to 1, or if the model
    /// has no such class. Another row of the batch may be sound. [`Error::Option`] if the row's first port is not of f32.
    ///
    /// # Panics
    /// If `index` is not below [`Output::rows`].
    pub fn top_k(&self, index: usize, k: usize) -> Result<Vec<(usize, f32)>, Error> {
        self.part(0).top_k(index, k)
    }
}

/// The output of one of an engine's models for each row of a batch; [`Output::part`] lends it.
///
/// ```
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let cpu = Device::open(Target::Cpu)?;
/// let twins = Engine::builder(&model).beside(&model).on(&cpu).build()?;
/// let output = twins.acquire()?.submit(1)?.wait()?;
/// assert_eq!(output.part(0).values(0), output.part(1).values(0));
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct OutputPart<'a> {
    /// The bytes, from the first row on.
    bytes: &'a [u8],
    rows: usize,
    spec: &'a RowSpec,
    kind: OutputKind,
    /// The number of classes of its model.
    classes: usize,
}

/// The largest value that counts as a probability: a division may round 1 up by this much.
const MOST_PROBABLE: f32 = 1.0 + 1e-5;

impl<'a> OutputPart<'a> {
    /// The ports of a row.
    pub fn spec(&self) -> &'a RowSpec {
        self.spec
    }

    /// The bytes of row `index`, see [`Output::row`].
    ///
    /// # Panics
    /// As there.
    pub fn row(&self, index: usize) -> &'a [u8] {
        assert!(index < self.rows, "row {index} of {}", self.rows);
        let &RowSpec { row_bytes, row_pitch, .. } = self.spec;
        &self.bytes[index * row_pitch..][..row_bytes]
    }

    /// The elements of one port of row `index`, see [`Output::port`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn port<T: Element>(&self, index: usize, port: impl PortKey) -> Result<&'a [T], Error> {
        self.spec.port(port)?.elems_of(self.row(index))
    }

    /// The numbers of row `index`, see [`Output::values`].
    ///
    /// # Panics
    /// As there.
    pub fn values(&self, index: usize) -> &'a [f32] {
        assert!(!self.has_pairs(), "the rows of {:?} are pairs, read them with top_k", self.kind);
        self.port(index, 0).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The `k` largest values of row `index`, see [`Output::top_k`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn top_k(&self, index: usize, k: usize) -> Result<Vec<(usize, f32)>, Error> {
        let mut scored: Vec<(usize, f32)> = self.scored(index)?.collect();
        let k = k.min(scored.len());
        if self.has_pairs() {
            scored.truncate(k); // they lie in order
            return Ok(scored);
        }
        let descending = |a: &(usize, f32), b: &(usize, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if k < scored.len() {
            scored.select_nth_unstable_by(k, descending);
            scored.truncate(k);
        }
        scored.sort_unstable_by(descending);
        Ok(scored)
    }

    /// The classes of a row with their values, in their order in memory. An error if any of the values is not sound.
    pub(crate) fn scored(&self, index: usize) -> Result<impl Iterator<Item = (usize, f32)> + use<'a>, Error> {
        let pairs = self.has_pairs();
        let words: &'a [u32] = bytemuck::cast_slice(self.port::<f32>(index, 0)?);
        let scored = words.chunks_exact(if pairs { 2 } else { 1 }).enumerate().map(move |(place, words)| {
            let class = if pairs { words[1] as usize } else { place };
            (class, f32::from_bits(words[0]))
        });
        match scored.clone().find_map(|(class, value)| self.fault_of(class, value)) {
            Some(what) => Err(Error::Output { row: index, what }),
            None => Ok(scored),
        }
    }

    /// The reason why the value of a class is not sound, if it is not.
    fn fault_of(&self, class: usize, value: f32) -> Option<String> {
        let is_probability = matches!(self.kind, OutputKind::Probabilities | OutputKind::TopK(_));
        if self.has_pairs() && class >= self.classes {
            return Some(format!("it names class {class}, and the model has {}", self.classes));
        }
        if is_probability && !(0.0..=MOST_PROBABLE).contains(&value) {
            return Some(format!("the probability of class {class} is {value}"));
        }
        (!value.is_finite()).then(|| format!("value {class} is {value}"))
    }

    /// Whether the rows are pairs of a probability and a class.
    fn has_pairs(&self) -> bool {
        matches!(self.kind, OutputKind::TopK(_))
    }
}

impl std::fmt::Debug for OutputPart<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutputPart").field("rows", &self.rows).field("spec", &self.spec).finish()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.core.device.note(Note::End(self.core.results[self.result].buffer.span()));
        let mut state = lock(&self.core.state);
        let unused = state.free(self.result);
        self.core.tell_one(&state);
        drop(state);
        drop(unused);
    }
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output").field("rows", &self.extent.rows).field("spec", &self.spec()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Dtype;

    /// The best class of the second of two rows; the first row is sound.
    fn best(kind: OutputKind, words: [u32; 2]) -> Result<Vec<(usize, f32)>, Error> {
        let elems = words.len();
        let spec = RowSpec::new([("y", Dtype::F32, vec![elems])]);
        let mut rows = vec![0_u32; 2 * spec.row_pitch / size_of::<u32>()];
        let second = spec.row_pitch / size_of::<u32>();
        rows[second..][..elems].copy_from_slice(&words);
        let part = OutputPart { bytes: bytemuck::cast_slice(&rows), rows: 2, spec: &spec, kind, classes: 2 };
        assert_eq!(part.top_k(0, 1).unwrap(), [(0, 0.0)], "{kind:?}");
        part.top_k(1, 1)
    }

    #[test]
    fn what_is_no_probability_or_no_class_is_an_error_of_its_row() {
        let (pairs, all) = (OutputKind::TopK(1), OutputKind::Probabilities);
        let rounded = 1.0 + f32::EPSILON;
        for value in [1.1, f32::INFINITY, f32::NAN, -0.1] {
            for (kind, words) in [(pairs, [value.to_bits(), 1]), (all, [0.0_f32.to_bits(), value.to_bits()])] {
                match best(kind, words) {
                    Err(Error::Output { row: 1, what }) => {
                        assert_eq!(what, format!("the probability of class 1 is {value}"));
                    }
                    other => panic!("{kind:?}, {value}: {other:?}"),
                }
            }
        }
        assert_eq!(best(pairs, [rounded.to_bits(), 1]).unwrap(), [(1, rounded)]);
        assert_eq!(best(all, [0.0_f32.to_bits(), rounded.to_bits()]).unwrap(), [(1, rounded)]);
        match best(pairs, [0.5_f32.to_bits(), 2]) {
            Err(Error::Output { row: 1, what }) => assert_eq!(what, "it names class 2, and the model has 2"),
            other => panic!("{other:?}"),
        }
        for kind in [OutputKind::Logits, OutputKind::Features] {
            assert_eq!(best(kind, [0.0_f32.to_bits(), 1.1_f32.to_bits()]).unwrap(), [(1, 1.1)]);
            assert!(matches!(best(kind, [0, f32::NAN.to_bits()]), Err(Error::Output { row: 1, .. })));
        }
    }
}
