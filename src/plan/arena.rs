//! Lifetimes and offsets: tensors that are never alive together share memory.

mod taken;

use self::taken::Taken;
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
    for t in 0..plan.tensors.len() {
        let steps = &touches[plan.holder(TensorId(t)).0];
        plan.tensors[t].lifetime = [steps[0], steps[steps.len() - 1]];
    }
    let in_arena = |t: &usize| matches!(plan.tensors[*t].place, Place::Arena(_)) && plan.tensors[*t].part_of.is_none();
    let mut sizes: Vec<usize> = (0..plan.tensors.len()).filter(in_arena).collect();
    sizes.sort_by_key(|&t| (std::cmp::Reverse(plan.tensors[t].bytes), t));
    let mut taken = Taken::new(order.len());
    plan.arena_bytes = 0;
    for &t in &sizes {
        let bytes = aligned(plan.tensors[t].bytes);
        let offset = taken.lowest_gap(&order.beside(&touches[t]), bytes);
        taken.add(&order.between(&touches[t]), offset..offset + bytes);
        plan.tensors[t].place = Place::Arena(offset);
        plan.arena_bytes = plan.arena_bytes.max(offset + bytes);
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

/// The steps that write or read each tensor that is no part, or a part of it, ascending.
fn touches(plan: &Plan) -> Vec<Vec<usize>> {
    let mut touches = vec![Vec::new(); plan.tensors.len()];
    for (index, step) in plan.steps.iter().enumerate() {
        for id in step.inputs.iter().copied().chain(step.outputs.iter().copied()) {
            touches[plan.holder(id).0].push(index);
        }
    }
    touches
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Choices, Limits, Request, lanes, plan};
    use super::*;
    use crate::graph::{GraphBuilder, ValueId, Window};
    use crate::model::Preprocessing;
    use crate::model::images::Network;
    use crate::tensor::{InputFormat, OutputKind, Shape};

    /// The place of each tensor and the bytes of the arena, found by comparing each tensor with all others.
    fn compared(plan: &Plan, order: &LaneOrder) -> (Vec<Place>, usize) {
        let (touches, mut places, mut end) = (touches(plan), Vec::<(usize, usize)>::new(), 0);
        let mut of_tensor: Vec<Place> = plan.tensors.iter().map(|tensor| tensor.place).collect();
        let in_arena = |t: &usize| matches!(of_tensor[*t], Place::Arena(_)) && plan.tensors[*t].part_of.is_none();
        let mut sizes: Vec<usize> = (0..plan.tensors.len()).filter(in_arena).collect();
        sizes.sort_by_key(|&t| (std::cmp::Reverse(plan.tensors[t].bytes), t));
        for t in sizes {
            let all_before =
                |a: usize, b: usize| touches[a].iter().all(|&a| touches[b].iter().all(|&b| order.is_before(a, b)));
            let beside = places.iter().filter(|(_, p)| !all_before(*p, t) && !all_before(t, *p));
            let bytes = |t: usize| aligned(plan.tensors[t].bytes);
            let mut taken: Vec<(usize, usize)> = beside.map(|&(start, p)| (start, start + bytes(p))).collect();
            taken.sort_unstable();
            let mut offset = 0;
            for (start, end) in taken {
                if offset + bytes(t) <= start {
                    break;
                }
                offset = offset.max(end);
            }
            places.push((offset, t));
            of_tensor[t] = Place::Arena(offset);
            end = end.max(offset + bytes(t));
        }
        (of_tensor, end)
    }

    pub(in crate::plan) fn random(seed: u64) -> impl FnMut(usize) -> usize {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move |below| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) as usize % below
        }
    }

    /// A network of random layers of earlier values, with many branches.
    pub(in crate::plan) fn network(seed: u64) -> Network {
        let mut below = random(seed);
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(7, 9, 8));
        let mut values = vec![g.conv2d("first", image, 16, Window::square(3, 1, 1))];
        for i in 0..10 + below(50) {
            let recent = values.len().min(1 + below(9));
            let (x, name, channels) = (values[values.len() - 1 - below(recent)], format!("n{i}"), 8 * (1 + below(9)));
            let y = match below(5) {
                0 => g.max_pool(&name, x, Window::square(3, 1, 1)),
                1 => {
                    let other = values[below(values.len())];
                    if x == other { g.relu(&name, x) } else { g.concat(&name, &[x, other]) }
                }
                kind => g.conv2d(&name, x, channels, Window::square([1, 3][kind % 2], 1, kind % 2)),
            };
            values.push(y);
        }
        let readers = g.graph().readers();
        let unread: Vec<ValueId> = values.into_iter().filter(|value| readers[value.0].is_empty()).collect();
        let all = g.concat("all", &unread);
        g.output("y", all);
        Network::of(&g.finish().unwrap()).unwrap()
    }

    pub(in crate::plan) fn planned(graph: &Network, limits: &Limits) -> Plan {
        let (preprocessing, choices) = (&Preprocessing::new(graph.input), &Choices::new());
        let (input, output) = (InputFormat::U8Nhwc, OutputKind::Features);
        plan(graph, &Request { limits, batch: 1, input, preprocessing, output, choices }).unwrap()
    }

    #[test]
    fn places_are_those_found_by_comparing_each_tensor_with_all_others() {
        let mut most = 0;
        for seed in 1..=300 {
            let graph = network(seed);
            for limits in [Limits::h200(), Limits::a100(), Limits::cpu(2)] {
                for several in [true, false] {
                    let mut plan = planned(&graph, &limits);
                    // Other sizes than layers have.
                    let mut below = random(seed);
                    plan.tensors.iter_mut().for_each(|tensor| tensor.bytes = 256 * below(20));
                    let order = lanes::assign(&mut plan, several);
                    place(&mut plan, &order);
                    let (places, end) = compared(&plan, &order);
                    for (t, (tensor, place)) in plan.tensors.iter().zip(places).enumerate() {
                        assert_eq!(tensor.place, place, "seed {seed} on {limits}: tensor {t}\n{plan}");
                    }
                    assert_eq!(plan.arena_bytes, end);
                    most = most.max(plan.lanes());
                }
            }
        }
        assert!(most > 4, "{most} lanes");
    }
}
