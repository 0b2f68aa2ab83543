//! A finished result, read in place.

use std::sync::Arc;

use super::Core;
use crate::device::Note;
use crate::sync::lock;
use crate::tensor::{OutputKind, TensorSpec};

/// The result of a submission: rows of page-locked memory, read in place. Dropping it frees them for a later batch.
///
/// ```
/// # use trefoil::{Engine, model::Model};
/// # fn f(engine: &Engine, model: &Model) -> Result<(), trefoil::Error> {
/// let output = engine.acquire()?.submit(1)?.wait()?;
/// for (class, probability) in output.top_k(0, 5) {
///     println!("{:5.1} % {}", 100.0 * probability, model.label(class));
/// }
/// # Ok(()) }
/// ```
pub struct Output {
    core: Arc<Core>,
    result: usize,
    rows: usize,
}

impl Output {
    pub(super) fn new(core: Arc<Core>, result: usize, rows: usize) -> Self {
        Self { core, result, rows }
    }

    /// Rows submitted, and so rows here.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Shape, type and size of a row; of an engine of several models, of the first one's.
    pub fn spec(&self) -> TensorSpec {
        self.core.spec.outputs[0]
    }

    /// Outputs of a row: one, or as many as the engine has models whose outputs nobody else reads.
    pub fn parts(&self) -> usize {
        self.core.spec.outputs.len()
    }

    /// One of the outputs of an engine of several models, in the order in which the builder named them.
    ///
    /// # Panics
    /// If `index` is not below [`Output::parts`].
    pub fn part(&self, index: usize) -> OutputPart<'_> {
        let spec = self.core.spec.outputs[index];
        let at = self.core.spec.output_at(index, self.core.capacity());
        // SAFETY: self holds the result's credit and was made after its `done` event: the copy engine has written it
        // and nothing writes it before self is dropped.
        let bytes = unsafe { self.core.results[self.result].buffer.bytes() };
        OutputPart { bytes: &bytes[at..], rows: self.rows, spec, kind: self.core.spec.output_kind }
    }

    /// What its rows are.
    #[cfg(feature = "ffi")]
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

    /// The numbers of row `index`: logits or probabilities by class, or features (NHWC).
    ///
    /// # Panics
    /// If `index` is not below [`Output::rows`], or for [`OutputKind::TopK`], whose rows are pairs: see
    /// [`Output::top_k`].
    pub fn values(&self, index: usize) -> &[f32] {
        self.part(0).values(index)
    }

    /// The `k` largest of row `index` as (class, value), largest first, ties by the lower class. An engine built for
    /// [`OutputKind::TopK`] has no more than it was built for.
    ///
    /// # Panics
    /// If `index` is not below [`Output::rows`].
    pub fn top_k(&self, index: usize, k: usize) -> Vec<(usize, f32)> {
        self.part(0).top_k(index, k)
    }
}

/// What one of an engine's models gave for each row of a batch; [`Output::part`] lends it.
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
    /// From its first row on.
    bytes: &'a [u8],
    rows: usize,
    spec: TensorSpec,
    kind: OutputKind,
}

impl<'a> OutputPart<'a> {
    /// Shape, type and size of a row.
    pub fn spec(&self) -> TensorSpec {
        self.spec
    }

    /// As [`Output::row`].
    ///
    /// # Panics
    /// As there.
    pub fn row(&self, index: usize) -> &'a [u8] {
        assert!(index < self.rows, "row {index} of {}", self.rows);
        let TensorSpec { row_bytes, row_pitch, .. } = self.spec;
        &self.bytes[index * row_pitch..][..row_bytes]
    }

    /// As [`Output::values`].
    ///
    /// # Panics
    /// As there.
    pub fn values(&self, index: usize) -> &'a [f32] {
        let kind = self.kind;
        assert!(!matches!(kind, OutputKind::TopK(_)), "the rows of {kind:?} are pairs, read them with top_k");
        bytemuck::cast_slice(self.row(index))
    }

    /// As [`Output::top_k`].
    ///
    /// # Panics
    /// As there.
    pub fn top_k(&self, index: usize, k: usize) -> Vec<(usize, f32)> {
        if let OutputKind::TopK(held) = self.kind {
            let words: &[u32] = bytemuck::cast_slice(self.row(index));
            return words.chunks_exact(2).take(k.min(held)).map(|w| (w[1] as usize, f32::from_bits(w[0]))).collect();
        }
        let values = self.values(index);
        let mut order: Vec<usize> = (0..values.len()).collect();
        let descending = |a: &usize, b: &usize| values[*b].total_cmp(&values[*a]).then(a.cmp(b));
        let k = k.min(order.len());
        if k < order.len() {
            order.select_nth_unstable_by(k, descending);
            order.truncate(k);
        }
        order.sort_unstable_by(descending);
        order.into_iter().map(|class| (class, values[class])).collect()
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
        f.debug_struct("Output").field("rows", &self.rows).field("spec", &self.spec()).finish()
    }
}
