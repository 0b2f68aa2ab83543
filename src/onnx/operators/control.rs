//! Branches and loops.

use super::Operator::Items;
use super::{Item, Outcome, Table};
use crate::graph::{Expr, Tensor, ValueId, ValueType};
use crate::onnx::GraphProto;
use crate::onnx::import::{Call, axis_of};

pub(super) const TABLE: Table = &[("If", Items(branch)), ("Loop", Items(repeat)), ("Scan", Items(scan))];

/// The most trips of a body that are unrolled.
const TRIPS: usize = 4096;

/// The branch of a known condition; otherwise both branches, whose results are selected from.
fn branch(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let condition = c.x(0)?;
    if let Some(known) = c.known(condition)? {
        let holds = known.to_i64s().is_some_and(|elems| elems.first().is_some_and(|&elem| elem != 0));
        let body = c.graph_attr(if holds { "then_branch" } else { "else_branch" })?;
        return c.body(body, Vec::new());
    }
    let (then, otherwise) = (c.graph_attr("then_branch")?, c.graph_attr("else_branch")?);
    let around = std::mem::replace(&mut c.cx.may_be_skipped, true);
    let (then, otherwise) = (c.body(then, Vec::new()), c.body(otherwise, Vec::new()));
    c.cx.may_be_skipped = around;
    let (then, otherwise) = (then?, otherwise?);
    let condition = c.reshape(condition, &[])?;
    then.into_iter().zip(otherwise).map(|both| select(c, condition, both)).collect()
}

fn select(c: &mut Call<'_, '_>, condition: ValueId, both: (Item, Item)) -> Outcome<Item> {
    match both {
        (Item::Broken, _) | (_, Item::Broken) => Ok(Item::Broken),
        (Item::Tensor(a), Item::Tensor(b)) if c.of(a) == c.of(b) => {
            let chosen = Expr::arg(0).select(Expr::arg(1), Expr::arg(2));
            Ok(c.map(chosen, &[condition, a, b])?.into())
        }
        (Item::Tensor(a), Item::Tensor(b)) => Err(format!(
            "the condition depends on the inputs, and the branches give {} and {}: expected one type and shape, or bind \
             what the condition depends on as a constant",
            c.of(a),
            c.of(b)
        )),
        _ => Err("the condition depends on the inputs, and a branch gives no tensor".into()),
    }
}

/// The single boolean that a value holds, if it is known.
fn truth(c: &Call<'_, '_>, item: &Item) -> Outcome<Option<bool>> {
    match item {
        Item::Tensor(value) => {
            let known = c.known(*value)?.and_then(|known| known.to_i64s());
            Ok(known.and_then(|elems| elems.first().map(|&elem| elem != 0)))
        }
        _ => Err("a condition that is no tensor".into()),
    }
}

/// Repeats a body a known number of times; a condition that depends on the data is refused.
fn repeat(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let body = c.graph_attr("body")?;
    let most = c.int_at(0, "the trip count")?;
    let mut condition = c.inputs.get(1).cloned().flatten();
    let mut state: Vec<Item> = c.inputs.iter().skip(2).map(|item| item.clone().unwrap_or(Item::Nothing)).collect();
    let carried = state.len();
    let mut scanned: Vec<Vec<ValueId>> = vec![Vec::new(); body.outputs.len().saturating_sub(carried + 1)];
    for trip in 0.. {
        if most.is_some_and(|most| trip >= most) || !goes_on(c, condition.as_ref())? {
            break;
        }
        if trip as usize >= TRIPS {
            return Err(format!("a loop of more than {TRIPS} trips, which are unrolled"));
        }
        let mut outputs = one_trip(c, body, trip, &state)?;
        if outputs.iter().any(|item| matches!(item, Item::Broken)) {
            return Ok(vec![Item::Broken; carried + scanned.len()]);
        }
        for (all, item) in scanned.iter_mut().zip(outputs.drain(1 + carried..)) {
            let Item::Tensor(value) = item else { return Err("its body gives no tensor".into()) };
            all.push(c.unsqueeze(value, 0)?);
        }
        condition = Some(outputs.remove(0));
        state = outputs;
    }
    if scanned.iter().any(Vec::is_empty) {
        state.extend(stacks_of_nothing(c, body, &state)?);
        return Ok(state);
    }
    for all in scanned {
        state.push(c.concat(&all, 0)?.into());
    }
    Ok(state)
}

/// What the body of a loop gives in a trip: whether to go on, its state, and what is stacked.
fn one_trip<'m>(c: &mut Call<'_, 'm>, body: &'m GraphProto, trip: i64, state: &[Item]) -> Outcome<Vec<Item>> {
    let number = c.constant(&Tensor::of(&[], &[trip]));
    let holds = c.constant(&Tensor::of(&[], &[1_u8]));
    let holds = c.cast(holds, crate::tensor::Dtype::Bool)?;
    let outputs = c.body(body, [&[number.into(), holds.into()], state].concat())?;
    if outputs.len() <= state.len() {
        return Err(format!("its body has {} outputs: expected {} or more", outputs.len(), state.len() + 1));
    }
    Ok(outputs)
}

/// The stacked outputs of a loop without a trip: nothing, of the types that a first trip would give. Problems of that trip
/// are none of the loop's, unless they end the import.
fn stacks_of_nothing<'m>(c: &mut Call<'_, 'm>, body: &'m GraphProto, state: &[Item]) -> Outcome<Vec<Item>> {
    let first = 1 + state.len(); // of the body's outputs that are stacked
    let is_wanted: Vec<bool> =
        (state.len()..body.outputs.len().saturating_sub(1)).map(|index| c.wants(index)).collect();
    if !is_wanted.contains(&true) {
        return Ok(vec![Item::Nothing; is_wanted.len()]);
    }
    let (problems, around) = (c.cx.problems.len(), std::mem::replace(&mut c.cx.may_be_skipped, true));
    let outputs = one_trip(c, body, 0, state);
    c.cx.may_be_skipped = around;
    if c.cx.has_ended {
        return Ok(vec![Item::Broken; is_wanted.len()]);
    }
    let of_trip = c.cx.problems.split_off(problems);
    let why = of_trip.first().map_or(String::new(), |problem| format!(": {}: {}", problem.operator, problem.reason));
    let of_nothing = |(item, is_wanted): (Item, bool)| {
        let Item::Tensor(value) = item else {
            let what = "a loop without a trip, whose body does not show the types of its stacked outputs";
            return if is_wanted { Err(format!("{what}{why}")) } else { Ok(Item::Nothing) };
        };
        let of = c.of(value);
        let dims = [&[0], &of.dims[..]].concat();
        let nothing = Tensor::from_bytes(ValueType::new(of.dtype, &dims), &[]);
        Ok(c.constant(&nothing).into())
    };
    outputs?.split_off(first).into_iter().zip(is_wanted).map(of_nothing).collect()
}

fn goes_on(c: &Call<'_, '_>, condition: Option<&Item>) -> Outcome<bool> {
    let unknown = || "how often the loop runs depends on the inputs: bind them as constants".to_owned();
    condition.map_or(Ok(true), |condition| truth(c, condition)?.ok_or_else(unknown))
}

/// Applies a body at each index along an axis of some inputs, and stacks its outputs.
fn scan(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let old = c.version < 9; // has sequence lengths and a batch
    let body = c.graph_attr("body")?;
    let count = c.size("num_scan_inputs")?.ok_or("num_scan_inputs: expected a number")?;
    if old {
        return batched(c, count);
    }
    let mut inputs: Vec<Item> = c.inputs.iter().map(|item| item.clone().unwrap_or(Item::Nothing)).collect();
    let sequences = inputs.split_off(inputs.len().checked_sub(count).ok_or("fewer inputs than are scanned")?);
    let sequences = tensors(sequences)?;
    let attributes = |name| c.ints_attr(name).map(<[i64]>::to_vec);
    let [axes, directions] = ["scan_input_axes", "scan_input_directions"].map(attributes);
    let [out_axes, out_directions] = ["scan_output_axes", "scan_output_directions"].map(attributes);
    let of = |all: &Option<Vec<i64>>, index: usize| all.as_ref().and_then(|all| all.get(index)).copied().unwrap_or(0);
    let mut along = Vec::new();
    for (index, &value) in sequences.iter().enumerate() {
        along.push((value, axis_of(of(&axes, index), c.rank(value))?, of(&directions, index) == 1));
    }
    let (mut state, scanned) = trips(c, body, inputs, &along)?;
    for (index, mut all) in scanned.into_iter().enumerate() {
        if of(&out_directions, index) == 1 {
            all.reverse();
        }
        let first = *all.first().ok_or("a scan of nothing, whose outputs have no type")?;
        let axis = axis_of(of(&out_axes, index), c.rank(first) + 1)?;
        state.push(stack(c, &all, axis)?.into());
    }
    Ok(state)
}

fn tensors(items: Vec<Item>) -> Outcome<Vec<ValueId>> {
    let tensor = |item| match item {
        Item::Tensor(value) => Ok(value),
        _ => Err("what is scanned is no tensor".to_owned()),
    };
    items.into_iter().map(tensor).collect()
}

fn stack(c: &mut Call<'_, '_>, all: &[ValueId], axis: usize) -> Outcome<ValueId> {
    let mut parts = Vec::with_capacity(all.len());
    for &value in all {
        parts.push(c.unsqueeze(value, axis)?);
    }
    c.concat(&parts, axis)
}

/// The state after the last trip, and the further outputs of each trip.
type Trips = (Vec<Item>, Vec<Vec<ValueId>>);

fn trips<'m>(
    c: &mut Call<'_, 'm>,
    body: &'m crate::onnx::GraphProto,
    mut state: Vec<Item>,
    along: &[(ValueId, usize, bool)],
) -> Outcome<Trips> {
    let carried = state.len();
    let mut scanned: Vec<Vec<ValueId>> = vec![Vec::new(); body.outputs.len().saturating_sub(carried)];
    let lens = along.iter().map(|&(value, axis, _)| c.dim(value, axis)).collect::<Outcome<Vec<_>>>()?;
    if lens.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(format!("sequences of {lens:?} elements: expected as many of each"));
    }
    let len = lens.first().copied().unwrap_or(0);
    if len > TRIPS {
        return Err(format!("a scan of more than {TRIPS} trips, which are unrolled"));
    }
    for trip in 0..len {
        let mut inputs = state;
        for &(value, axis, backwards) in along {
            inputs.push(c.at(value, axis, if backwards { len - 1 - trip } else { trip })?.into());
        }
        let mut outputs = c.body(body, inputs)?;
        let rest = outputs.split_off(carried.min(outputs.len()));
        for (all, value) in scanned.iter_mut().zip(tensors(rest)?) {
            all.push(value);
        }
        state = outputs;
    }
    Ok((state, scanned))
}

/// Version 8 of `scan`: the first input has the length of each sequence, and the first axis of all others is the batch.
fn batched(c: &mut Call<'_, '_>, count: usize) -> Outcome<Vec<Item>> {
    let body = c.graph_attr("body")?;
    if c.maybe(0).is_some() {
        return Err("sequences of different lengths".into());
    }
    let inputs = tensors(c.inputs.iter().skip(1).flatten().cloned().collect())?;
    let states = inputs.len().checked_sub(count).ok_or("fewer inputs than are scanned")?;
    let batch = inputs.first().map_or(Ok(0), |&value| c.dim(value, 0))?;
    let mut rows: Vec<Vec<ValueId>> = Vec::new();
    for row in 0..batch {
        let mut of_row = Vec::new();
        for &value in &inputs {
            of_row.push(c.at(value, 0, row)?);
        }
        let along: Vec<_> = of_row.split_off(states).into_iter().map(|value| (value, 0, false)).collect();
        let (state, scanned) = trips(c, body, of_row.into_iter().map(Item::from).collect(), &along)?;
        let mut outputs = tensors(state)?;
        for all in scanned {
            outputs.push(stack(c, &all, 0)?);
        }
        rows.push(outputs);
    }
    let outputs = rows.first().map_or(0, Vec::len);
    let column = |index: usize| rows.iter().map(|row| row[index]).collect::<Vec<_>>();
    (0..outputs).map(|index| Ok(stack(c, &column(index), 0)?.into())).collect()
}
