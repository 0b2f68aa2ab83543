//! Results, read in place.

use std::ffi::c_void;

use super::handles::{look, object, trefoil_output};
use super::layout::{trefoil_result, trefoil_scored_class};
use super::pointers::Out;
use super::status::{Answer, Failure, guard, trefoil_status};
use crate::ring::{Output, RowOutput};
use crate::tensor::OutputKind;

/// A result of a batch or of a row.
pub(super) enum Landed {
    Batch(Output),
    Row(RowOutput),
}
object!(Landed, Output);

impl Landed {
    fn rows(&self) -> usize {
        match self {
            Self::Batch(output) => output.rows(),
            Self::Row(_) => 1,
        }
    }

    fn kind(&self) -> OutputKind {
        match self {
            Self::Batch(output) => output.kind(),
            Self::Row(output) => output.kind(),
        }
    }

    fn row(&self, index: usize) -> Answer<&[u8]> {
        if index >= self.rows() {
            return Err(Failure::argument(format!("row {index}: expected one below {}", self.rows())));
        }
        Ok(match self {
            Self::Batch(output) => output.row(index),
            Self::Row(output) => output.bytes(),
        })
    }
}

/// How many rows an output has: as many as were submitted; 1 of a batcher's row.
///
/// # Safety
/// `rows` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_output_rows(output: trefoil_output, rows: *mut usize) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(rows, "rows")? };
        to.set(look(output, Landed::rows)?);
        Ok(())
    })
}

/// What the rows of an output are: a trefoil_result, as its engine was built for.
///
/// # Safety
/// `result` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_output_result(output: trefoil_output, result: *mut u32) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(result, "result")? };
        to.set(look(output, |landed: &Landed| match landed.kind() {
            OutputKind::Probabilities => trefoil_result::Probabilities,
            OutputKind::Logits => trefoil_result::Logits,
            OutputKind::TopK(_) => trefoil_result::TopK,
            OutputKind::Features => trefoil_result::Features,
        })? as u32);
        Ok(())
    })
}

/// Where row `index` of an output is, in page-locked memory: `row_bytes` of trefoil_engine_output() to be read, which
/// are floats, or trefoil_scored_class for TREFOIL_RESULT_TOP_K. It may be read by several threads until the output is
/// released. `bytes` is null, or gets the length.
///
/// # Safety
/// `row` can be written or is null, and so is `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_output_row(
    output: trefoil_output,
    index: usize,
    row: *mut *const c_void,
    bytes: *mut usize,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(row, "row")? };
        let (at, length) = look(output, |landed: &Landed| landed.row(index).map(|row| (row.as_ptr(), row.len())))??;
        to.set(at.cast());
        if !bytes.is_null() {
            // SAFETY: not null, so it can be written by the caller.
            unsafe { bytes.write(length) };
        }
        Ok(())
    })
}

/// The `capacity` largest values of row `index`, largest first, ties by the lower class; `count` gets how many there
/// are. It allocates nothing. An engine built for TREFOIL_RESULT_TOP_K has no more than it was built for.
///
/// # Safety
/// `classes` has room for `capacity`; `count` can be written. They may be null, which is an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_output_top_k(
    output: trefoil_output,
    index: usize,
    classes: *mut trefoil_scored_class,
    capacity: usize,
    count: *mut usize,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let (_not_null, to) = unsafe { (Out::new(classes, "classes")?, Out::new(count, "count")?) };
        let found = look(output, |landed: &Landed| -> Answer<usize> {
            // SAFETY: `capacity` classes can be written by the caller.
            let mut best = unsafe { Best::new(classes, capacity) };
            for (index, value) in scored(landed, index)? {
                best.offer(trefoil_scored_class { value, index });
            }
            Ok(best.found)
        })??;
        to.set(found);
        Ok(())
    })
}

/// The classes of a row with their values.
fn scored(landed: &Landed, index: usize) -> Answer<impl Iterator<Item = (u32, f32)>> {
    let row = landed.row(index)?;
    let pairs = matches!(landed.kind(), OutputKind::TopK(_));
    let words: &[u32] = bytemuck::cast_slice(row);
    let step = if pairs { 2 } else { 1 };
    let scored = words
        .chunks_exact(step)
        .zip(0..)
        .map(move |(word, class)| (if pairs { word[1] } else { class }, f32::from_bits(word[0])));
    Ok(scored)
}

/// The best classes so far, in the caller's memory, sorted.
struct Best {
    classes: *mut trefoil_scored_class,
    capacity: usize,
    found: usize,
}

impl Best {
    /// # Safety
    /// `capacity` classes can be written there while it lives.
    unsafe fn new(classes: *mut trefoil_scored_class, capacity: usize) -> Self {
        Self { classes, capacity, found: 0 }
    }

    /// Keeps `class` if it is among the best. Classes come in ascending order, so that a tie stays behind.
    fn offer(&mut self, class: trefoil_scored_class) {
        let at = |place: usize| {
            assert!(place < self.capacity);
            // SAFETY: below the capacity.
            unsafe { self.classes.add(place) }
        };
        let mut place = self.found;
        // SAFETY: places below `found` have been written.
        while place > 0 && class.value.total_cmp(unsafe { &(*at(place - 1)).value }).is_gt() {
            place -= 1;
        }
        if place == self.capacity {
            return;
        }
        let kept = self.found.min(self.capacity - 1);
        // SAFETY: `kept` and below are within the capacity; what moves has been written.
        unsafe {
            std::ptr::copy(at(place), self.classes.add(place + 1), kept - place);
            at(place).write(class);
        }
        self.found = kept + 1;
    }
}
