//! Lifetimes and offsets: tensors that are never alive together share memory.

use super::lanes::LaneOrder;
use super::{Place, Plan, TensorId};

/// Offsets are multiples of this, so that every tensor starts on its own cache line and DMA burst.
const ALIGN: usize = 256;

/// Computes lifetimes and gives each arena tensor an offset: largest first, at the lowest gap that no tensor alive at
/// the same time covers. A step's outputs never share memory with its inputs. Two tensors are alive at the same time
/// unless, in `order`, every step that reads or writes the one ends before every step that reads or writes the other
/// begins; steps of different lanes often have no order. A part of a tensor lies within the whole.
pub(super) fn place(plan: &mut Plan, order: &LaneOrder) {
    let touches = touches(plan);
    for (tensor, steps) in plan.tensors.iter_mut().zip(&touches) {
        tensor.lifetime = [steps[0], steps[steps.len() - 1]];
    }
    let in_arena = |t: &usize| matches!(plan.tensors[*t].place, Place::Arena(_)) && plan.tensors[*t].part_of.is_none();
    let mut sizes: Vec<usize> = (0..plan.tensors.len()).filter(in_arena).collect();
    sizes.sort_by_key(|&t| (std::cmp::Reverse(plan.tensors[t].bytes), t));
    plan.arena_bytes = 0;
    for (index, &t) in sizes.iter().enumerate() {
        let all_before = |a: &[usize], b: &[usize]| a.iter().all(|a| b.iter().all(|b| order.is_before(*a, *b)));
        let (before, after) =
            (|p: usize| all_before(&touches[p], &touches[t]), |p: usize| all_before(&touches[t], &touches[p]));
        let overlapping = sizes[..index].iter().copied().filter(|&p| !before(p) && !after(p));
        let offset = lowest_gap(plan, overlapping.collect(), t);
        plan.tensors[t].place = Place::Arena(offset);
        plan.arena_bytes = plan.arena_bytes.max(offset + aligned(plan.tensors[t].bytes));
    }
    plan.arena_bytes_without_reuse = sizes.iter().map(|&t| aligned(plan.tensors[t].bytes)).sum();
    // The tensor that contains a part has its offset already.
    for t in 0..plan.tensors.len() {
        if let Some(part) = plan.tensors[t].part_of
            && let Place::Arena(offset) = plan.tensors[part.of.0].place
        {
            let pitch = plan.tensors[part.of.0].pitch;
            let tensor = &mut plan.tensors[t];
            (tensor.place, tensor.pitch) = (Place::Arena(offset + part.first_channel * tensor.dtype.bytes()), pitch);
        }
    }
}

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

/// The steps that write or read each tensor, ascending; for a part, the steps of the whole tensor.
fn touches(plan: &Plan) -> Vec<Vec<usize>> {
    let mut touches = vec![Vec::new(); plan.tensors.len()];
    for (index, step) in plan.steps.iter().enumerate() {
        for id in step.inputs.iter().copied().chain(step.outputs.iter().copied()) {
            touches[plan.holder(id).0].push(index);
        }
    }
    (0..plan.tensors.len()).map(|t| touches[plan.holder(TensorId(t)).0].clone()).collect()
}

/// The lowest offset at which tensor `t` overlaps none of the placed tensors in `overlapping`.
fn lowest_gap(plan: &Plan, overlapping: Vec<usize>, t: usize) -> usize {
    let range = |p: usize| match plan.tensors[p].place {
        Place::Arena(offset) => (offset, offset + aligned(plan.tensors[p].bytes)),
        _ => unreachable!("only tensors in the arena are placed"),
    };
    let mut taken: Vec<(usize, usize)> = overlapping.into_iter().map(range).collect();
    taken.sort_unstable();
    let mut offset = 0;
    for (start, end) in taken {
        if offset + aligned(plan.tensors[t].bytes) <= start {
            break;
        }
        offset = offset.max(end);
    }
    offset
}
