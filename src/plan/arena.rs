//! Lifetimes and offsets: tensors that are never alive together share memory.

use super::{Place, Plan};

/// Offsets are multiples of this, so that every tensor starts on its own cache line and DMA burst.
const ALIGN: usize = 256;

/// Computes lifetimes and gives each arena tensor an offset: largest first, at the lowest gap that no tensor alive at
/// the same time covers. A step's outputs never share memory with its inputs.
pub(super) fn place(plan: &mut Plan) {
    lifetimes(plan);
    let mut order: Vec<usize> =
        (0..plan.tensors.len()).filter(|&t| matches!(plan.tensors[t].place, Place::Arena(_))).collect();
    order.sort_by_key(|&t| (std::cmp::Reverse(plan.tensors[t].bytes), t));
    let mut placed: Vec<usize> = Vec::new();
    for &t in &order {
        let offset = lowest_gap(plan, &placed, t);
        plan.tensors[t].place = Place::Arena(offset);
        placed.push(t);
        plan.arena_bytes = plan.arena_bytes.max(offset + aligned(plan.tensors[t].bytes));
    }
    plan.arena_bytes_without_reuse = order.iter().map(|&t| aligned(plan.tensors[t].bytes)).sum();
}

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

/// Sets each tensor's first write and last read.
fn lifetimes(plan: &mut Plan) {
    for (index, step) in plan.steps.iter().enumerate() {
        for output in [Some(step.output), step.also].into_iter().flatten() {
            plan.tensors[output.0].lifetime = [index, index];
        }
        for input in &step.inputs {
            plan.tensors[input.0].lifetime[1] = index;
        }
    }
}

fn lowest_gap(plan: &Plan, placed: &[usize], t: usize) -> usize {
    let tensor = &plan.tensors[t];
    let mut taken: Vec<(usize, usize)> = placed
        .iter()
        .map(|&p| &plan.tensors[p])
        .filter(|p| p.lifetime[0] <= tensor.lifetime[1] && tensor.lifetime[0] <= p.lifetime[1])
        .filter_map(|p| match p.place {
            Place::Arena(offset) => Some((offset, offset + aligned(p.bytes))),
            _ => None,
        })
        .collect();
    taken.sort_unstable();
    let mut offset = 0;
    for (start, end) in taken {
        if offset + aligned(tensor.bytes) <= start {
            break;
        }
        offset = offset.max(end);
    }
    offset
}
