//! Results, which the program reads in place.

use std::ffi::c_void;

use super::handles::{look, object, trefoil_output};
use super::layout::{trefoil_result, trefoil_scored_class};
use super::pointers::{Out, tell_length};
use super::port::typed;
use super::rows::Answers;
use super::status::{Answer, Failure, guard, trefoil_status};
use crate::ring::{Output, RowOutput};
use crate::tensor::{OutputKind, RowSpec};

/// The result of a batch, of a row, or of the rows of one call, at least one of which has a result.
pub(super) enum Landed {
    Batch(Output),
    Row(RowOutput),
    Rows(Answers),
}
object!(Landed, Output);

impl Landed {
    fn rows(&self) -> usize {
        match self {
            Self::Batch(output) => output.rows(),
            Self::Row(_) => 1,
            Self::Rows(rows) => rows.len(),
        }
    }

    fn kind(&self) -> OutputKind {
        match self {
            Self::Batch(output) => output.kind(),
            Self::Row(output) => output.kind(),
            Self::Rows(rows) => rows.iter().flatten().next().expect("a row has a result").kind(),
        }
    }

    /// The layout of its rows.
    pub(super) fn spec(&self) -> &RowSpec {
        match self {
            Self::Batch(output) => output.spec(),
            Self::Row(output) => output.spec(),
            Self::Rows(rows) => rows.iter().flatten().next().expect("a row has a result").spec(),
        }
    }

    fn row(&self, index: usize) -> Answer<&[u8]> {
        if index >= self.rows() {
            return Err(Failure::argument(format!("row {index}: expected one below {}", self.rows())));
        }
        Ok(match self {
            Self::Batch(output) => output.row(index),
            Self::Row(output) => output.bytes(),
            Self::Rows(rows) => rows[index].as_ref().map_err(Clone::clone)?.bytes(),
        })
    }
}

/// The number of rows in an output: as many as were submitted; 1 for a single row of a batcher.
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

/// The kind of result in the rows of an output: a trefoil_result, an option of its engine. For a model of values it is
/// TREFOIL_RESULT_FEATURES, whatever the option says.
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

/// The address of row `index` of an output, in page-locked memory: a multiple of 256. For a network of images the row
/// is floats, or trefoil_scored_class for TREFOIL_RESULT_TOP_K; for any other model it is the ports. Several threads
/// may read the row until the output is released. `bytes` is null, or gets the length of the row.
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
        // SAFETY: by the caller.
        unsafe { tell_length(bytes, length) };
        Ok(())
    })
}

/// The address of a port of row `index` of an output, by the port's number; the same rules hold as for
/// trefoil_output_row(). The address is a multiple of 16. `dtype` is a trefoil_dtype, the type of the elements that the
/// program reads; if the port has elements of another type, the call fails. `bytes` is null, or gets the length of the
/// port.
///
/// # Safety
/// `elements` can be written or is null, and so is `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_output_port(
    output: trefoil_output,
    index: usize,
    port: usize,
    dtype: u32,
    elements: *mut *const c_void,
    bytes: *mut usize,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(elements, "elements")? };
        let (at, length) = look(output, |landed: &Landed| -> Answer<_> {
            let (row, port) = (landed.row(index)?, typed(landed.spec(), port, dtype)?);
            Ok((row[port.range()].as_ptr(), port.bytes()))
        })??;
        to.set(at.cast());
        // SAFETY: by the caller.
        unsafe { tell_length(bytes, length) };
        Ok(())
    })
}

/// Copies rows of an output, `count` from row `first` on, to `values`, one behind the other without gaps. `bytes` is
/// the sum of the lengths that trefoil_output_row() gives for these rows.
///
/// # Safety
/// `bytes` bytes can be written at `values`, or it is null, which is an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_output_copy(
    output: trefoil_output,
    first: usize,
    count: usize,
    values: *mut c_void,
    bytes: usize,
) -> trefoil_status {
    guard(|| {
        if values.is_null() {
            return Err(Failure::null("values"));
        }
        look(output, |landed: &Landed| {
            let end = first.checked_add(count);
            let end = end.ok_or_else(|| Failure::argument(format!("there are no {count} rows from row {first} on")))?;
            let rows = (first..end).map(|index| landed.row(index));
            let rows = rows.collect::<Answer<Vec<_>>>()?;
            let expected = rows.iter().map(|row| row.len()).sum::<usize>();
            if bytes != expected {
                return Err(Failure::argument(format!("bytes is {bytes}: expected {expected}, {count} rows")));
            }
            let mut at = values.cast::<u8>();
            for row in rows {
                // SAFETY: the rows together are `bytes` long, which the caller can write; they are the ring's own memory.
                unsafe {
                    std::ptr::copy_nonoverlapping(row.as_ptr(), at, row.len());
                    at = at.add(row.len());
                }
            }
            Ok(())
        })?
    })
}

/// The `capacity` largest values of row `index`, largest first, ties by the lower class; `count` gets the number of
/// values written. The call allocates nothing. An engine built for TREFOIL_RESULT_TOP_K gives at most `top_k` values.
/// For a model of values the values are the elements of the first port, numbered in the order in which they lie; the
/// call returns INVALID_ARGUMENT if they are not of TREFOIL_DTYPE_F32. Returns OUTPUT if a value of the row is not
/// finite, if a probability is not within 0 to 1, or if the model has no such class.
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
            landed.row(index)?; // there is such a row
            match landed {
                Landed::Batch(output) => best.take(output.part(0).scored(index)?),
                Landed::Row(output) => best.take(output.scored()?),
                Landed::Rows(rows) => best.take(rows[index].as_ref().map_err(Clone::clone)?.scored()?),
            }
            Ok(best.found)
        })??;
        to.set(found);
        Ok(())
    })
}

/// The best classes so far, sorted, in the caller's memory.
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

    /// Keeps the best classes of a row; class indices are below 2^32.
    fn take(&mut self, scored: impl Iterator<Item = (usize, f32)>) {
        scored.for_each(|(class, value)| self.offer(trefoil_scored_class { value, index: class as u32 }));
    }

    /// Keeps `class` if it is among the best. Classes come in ascending order, so that of equal values the lower class
    /// stays first.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Target};
    use crate::engine::Engine;
    use crate::ffi::handles::insert;
    use crate::graph::GraphBuilder;
    use crate::model::{Model, Preprocessing, Weights};
    use crate::tensor::Shape;

    /// A model with two classes and one pixel; its sums overflow unless the pixel is black.
    fn overflowing() -> Model {
        let mut graph = GraphBuilder::new();
        let pixel = graph.image("pixel", Shape::new(1, 1, 1));
        let logits = graph.linear("fc", pixel, 2);
        graph.output("logits", logits);
        let zeros = ("fc.bias".to_owned(), vec![2], vec![0.0; 2]);
        let weights = Weights::from_tensors([("fc.weight".to_owned(), vec![2, 1], vec![3e38; 2]), zeros]).unwrap();
        let preprocessing = Preprocessing { std: vec![0.01], ..Preprocessing::new(Shape::new(1, 1, 1)) };
        Model::new(graph.finish().unwrap(), weights, preprocessing, Vec::new()).unwrap()
    }

    #[test]
    fn a_row_that_is_no_answer_has_a_status_of_its_own() {
        let (model, cpu) = (overflowing(), Device::open(Target::Cpu).unwrap());
        let engine = Engine::builder(&model).on(&cpu).build().unwrap();
        let row = |pixel| Landed::Row(engine.batcher().build().unwrap().submit(&[pixel]).unwrap().wait().unwrap());
        let mut batch = engine.acquire().unwrap();
        batch.row_mut(0).fill(0);
        batch.row_mut(1).fill(255);
        let of_batch = insert(Landed::Batch(batch.submit(2).unwrap().wait().unwrap())).unwrap();
        let [black, white] = [0, 255].map(|pixel| insert(row(pixel)).unwrap());
        for (output, index, expected) in [
            (of_batch, 0, trefoil_status::Ok),
            (of_batch, 1, trefoil_status::Output),
            (black, 0, trefoil_status::Ok),
            (white, 0, trefoil_status::Output),
        ] {
            let (mut best, mut count) = ([trefoil_scored_class { value: 0.0, index: 0 }; 2], 0);
            // SAFETY: there is room for two classes and a count.
            let status = unsafe { trefoil_output_top_k(output, index, best.as_mut_ptr(), 2, &raw mut count) };
            assert_eq!(status, expected);
        }
    }
}
