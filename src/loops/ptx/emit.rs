//! The instructions that compute terms at the points that a thread has side by side.
//!
//! The lanes of a thread are its points along an axis, at constant offsets from the first one. A term has a register
//! for each combination of the lanes on which it depends. Each term is computed once, in the outermost scope where
//! everything on which it depends is known.
//!
//! The file is long because all of it is one type: the emitter, which records what is computed already.

use std::collections::{BTreeSet, HashMap};

use super::function::{self, Known};
use super::memory::{self, Place, WIDEST};
use super::nest::Nest;
use super::number::convert;
use super::sum::Sum;
use super::text::{Class, Reg, Text};
use crate::graph::Binary;
use crate::loops::ir::{Guard, TermId, TermKind};
use crate::tensor::Dtype;

/// The value of a term at the points of a thread.
#[derive(Clone, Debug)]
pub(super) struct Value {
    /// The dimensions of lanes on which the value depends, a bit for each.
    pub lanes: u32,
    /// A register for each combination of lanes of these dimensions; the last dimension varies fastest.
    pub regs: Vec<Reg>,
}

/// The points that a thread has side by side along an axis.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    axis: usize,
    /// The distance of each lane from the first one. Lanes form runs of neighbours.
    offsets: Vec<i64>,
    /// The length of a run. The first offset of each run is a multiple of it.
    run: usize,
    /// For each lane, the predicate that says whether the thread has it; `None` if it certainly has it.
    valid: Vec<Option<Reg>>,
}

impl Lanes {
    /// Lanes at `count` neighbouring points.
    pub fn neighbours(axis: usize, count: usize) -> Self {
        Self::runs(axis, count, count, 1)
    }

    /// Lanes at `runs` runs of `run` neighbouring points, which begin `step` apart.
    pub fn runs(axis: usize, run: usize, step: usize, runs: usize) -> Self {
        let offsets = (0..runs).flat_map(|i| (0..run).map(move |j| (i * step + j) as i64));
        Self::at(axis, offsets.collect(), run)
    }

    /// Lanes at these offsets, which form runs of `run` neighbours.
    pub fn at(axis: usize, offsets: Vec<i64>, run: usize) -> Self {
        Self { axis, run, valid: vec![None; offsets.len()], offsets }
    }

    pub fn offset(&self, lane: usize) -> i64 {
        self.offsets[lane]
    }

    pub const fn len(&self) -> usize {
        self.offsets.len()
    }

    pub fn valid(&self, lane: usize) -> Option<Reg> {
        self.valid[lane]
    }

    /// Whether the thread certainly has all lanes.
    fn is_certain(&self) -> bool {
        self.valid.iter().all(Option::is_none)
    }

    pub fn set_valid(&mut self, lane: usize, valid: Option<Reg>) {
        self.valid[lane] = valid;
    }
}

/// The position of a thread along an axis.
#[derive(Clone, Copy, Debug)]
struct At {
    /// The index of the thread's first point; `None` for 0.
    first: Option<Reg>,
    /// A number of which `first` is a multiple.
    step: i64,
    lanes: Option<usize>,
}

/// The axes that are bound, and the values and pointers that are known, at one place in the code.
#[derive(Clone, Debug, Default)]
pub(super) struct EmitState {
    at: Vec<Option<At>>,
    /// Axes in the order in which they were bound.
    bound: Vec<usize>,
    lanes: Vec<Lanes>,
    values: HashMap<TermId, Value>,
    pointers: HashMap<Added, Reg>,
}

/// The key of a known pointer: its parameter, and the axes that were added to it with their strides.
type Added = (usize, Vec<(usize, i64)>);

pub(super) struct Emitter<'n> {
    pub nest: &'n Nest,
    pub text: Text,
    /// The operand of each parameter; the last parameter is the result.
    operands: Vec<usize>,
    state: EmitState,
}

impl<'n> Emitter<'n> {
    pub fn new(nest: &'n Nest) -> Self {
        let operand = |id: TermId| match nest.term(id).kind {
            TermKind::Load { operand, .. } => Some(operand),
            _ => None,
        };
        let loaded: BTreeSet<usize> = nest.needed().filter_map(operand).collect();
        let state = EmitState { at: vec![None; nest.extents.len()], ..EmitState::default() };
        Self { nest, text: Text::default(), operands: loaded.into_iter().collect(), state }
    }

    /// The operands that are loaded, in the order of the parameters.
    pub fn operands(&self) -> &[usize] {
        &self.operands
    }

    /// Reads the parameters. They are known everywhere if this comes before all scopes.
    pub fn parameters(&mut self) {
        for number in 0..=self.operands.len() {
            let raw = self.text.op(Class::Long, "ld.param.b64", &[&format!("[args+{}]", 8 * number)]);
            let pointer = self.text.op(Class::Long, "cvta.to.global.u64", &[&raw]);
            self.state.pointers.insert((number, Vec::new()), pointer);
        }
    }

    /// Emits a body, and then forgets what the body has computed and bound.
    pub fn scope<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.state();
        let result = body(self);
        self.restore(before);
        result
    }

    /// What is bound and known at this place in the code.
    pub fn state(&self) -> EmitState {
        self.state.clone()
    }

    /// Returns to a state that was taken in a scope that is still open, or in a loop within such a scope.
    pub fn restore(&mut self, state: EmitState) {
        self.state = state;
    }

    /// Binds an axis to the index in a register, which is a multiple of `step`; `None` for index 0.
    pub fn bind(&mut self, axis: usize, first: Option<Reg>, step: i64) {
        self.state.at[axis] = Some(At { first, step, lanes: None });
        self.state.bound.push(axis);
    }

    /// Binds the axis of `lanes` to several points, at their offsets from the index `first`.
    pub fn bind_lanes(&mut self, first: Option<Reg>, step: i64, lanes: Lanes) {
        self.state.at[lanes.axis] = Some(At { first, step, lanes: Some(self.state.lanes.len()) });
        self.state.bound.push(lanes.axis);
        self.state.lanes.push(lanes);
    }

    /// The value of a term, which is computed if it is not known yet.
    pub fn value(&mut self, id: TermId) -> Value {
        if let Some(known) = self.state.values.get(&id) {
            return known.clone();
        }
        let nest = self.nest;
        let dtype = nest.machine(id);
        let value = match (&nest.term(id).kind, nest.linear(id)) {
            (_, Some(sum)) => self.index(sum, dtype),
            (TermKind::Const(_), _) => self.number(dtype, nest.constant(id).unwrap_or(0)),
            (TermKind::Load { operand, index, guard }, _) => self.load(*operand, nest.index(*index), *guard),
            (TermKind::Cast(of), _) => {
                let from = nest.machine(*of);
                self.each([*of], |text, [x]| convert(text, [from, dtype], x))
            }
            (TermKind::Unary(op, of), _) => {
                let from = nest.machine(*of);
                let inner = if nest.term(*of).dtype == Dtype::I64 { dtype } else { from };
                self.each([*of], |text, [x]| {
                    let x = convert(text, [from, inner], x);
                    function::unary(text, *op, inner, x)
                })
            }
            (TermKind::Binary(op, of), _) => self.binary(id, *op, *of),
            (TermKind::Select(of), _) => {
                let from = [nest.machine(of[1]), nest.machine(of[2])];
                self.each(*of, |text, [condition, a, b]| {
                    let [a, b] = [(from[0], a), (from[1], b)].map(|(from, x)| convert(text, [from, dtype], x));
                    function::select(text, [condition, a, b])
                })
            }
            (TermKind::Reduce { .. }, _) => self.reduce(id),
            (TermKind::Axis(_), None) => unreachable!("an axis is a sum"),
        };
        self.state.values.insert(id, value.clone());
        value
    }

    /// A constant, which has the same bits at all lanes.
    pub fn number(&mut self, dtype: Dtype, bits: i64) -> Value {
        Value { lanes: 0, regs: vec![self.text.number(Class::of(dtype), bits as u64)] }
    }

    /// Records the registers that hold a term's value.
    pub fn set_value(&mut self, id: TermId, value: Value) {
        self.state.values.insert(id, value);
    }

    fn binary(&mut self, id: TermId, op: Binary, of: [TermId; 2]) -> Value {
        let (nest, to) = (self.nest, self.nest.machine(id));
        if let Some(value) = self.unsigned(op, of) {
            return value;
        }
        let from = of.map(|of| nest.machine(of));
        let wide = from.contains(&Dtype::I64) || to == Dtype::I64;
        let is_index = nest.term(of[0]).dtype == Dtype::I64;
        let inner = match (is_index, wide) {
            (true, true) => Dtype::I64,
            (true, false) => Dtype::I32,
            _ => from[0],
        };
        let rounded = of.iter().any(|&of| nest.is_rounded(of));
        let (divisor, positive) = (nest.constant(of[1]), is_index && nest.is_positive(of[0]));
        let known = Known { divisor, positive, rounded, from_one: nest.is_from_one(of[1]) };
        let shrinks = inner == Dtype::I64 && to == Dtype::I32;
        self.each(of, |text, [a, b]| {
            let of = [convert(text, [from[0], inner], a), convert(text, [from[1], inner], b)];
            let result = function::binary(text, op, inner, of, known);
            if shrinks { convert(text, [inner, to], result) } else { result }
        })
    }

    /// A comparison of u64s, computed in u32. `None` for other operations, and unless each side is a constant below
    /// 2^31 or cast from an i64 that is computed in i32.
    fn unsigned(&mut self, op: Binary, of: [TermId; 2]) -> Option<Value> {
        let nest = self.nest;
        let word = |id: TermId| match nest.term(id).kind {
            TermKind::Cast(of) if nest.term(of).dtype == Dtype::I64 && nest.machine(of) == Dtype::I32 => Some(Ok(of)),
            TermKind::Const(bits) if bits < 1 << 31 => Some(Err(bits)),
            _ => None,
        };
        let compares = matches!(op, Binary::Less | Binary::LessEqual | Binary::Equal);
        if !compares || nest.term(of[0]).dtype != Dtype::U64 {
            return None;
        }
        let [a, b] = [word(of[0])?, word(of[1])?];
        let alike = match (op, a, b) {
            (Binary::Less, Ok(id), Err(end)) => nest.linear(id).map_or(0, |sum| self.alike(sum, end)),
            _ => 0,
        };
        let [a, b] = [a, b].map(|side| match side {
            Ok(id) => self.value(id),
            Err(bits) => self.number(Dtype::U32, bits as i64),
        });
        let a = self.first_of(&a, alike);
        Some(self.zip([&a, &b], |text, of| function::binary(text, op, Dtype::U32, of, Known::default())))
    }

    /// The dimensions along which `0 <= sum < end` holds at all lanes or at none.
    fn alike(&self, sum: &Sum, end: u64) -> u32 {
        let is_alike = |(dim, of_dim): &(usize, &Lanes)| {
            let period = sum.stride(of_dim.axis).saturating_mul(of_dim.len() as i64);
            let multiple = |of: i64| of % period == 0;
            let aligned = |(&axis, &stride): (&usize, &i64)| {
                let at = self.state.at[axis].expect("an axis that is bound");
                let others = at.lanes.filter(|other| other != dim);
                let offsets = others.map_or(&[][..], |other| &self.state.lanes[other].offsets[..]);
                (at.first.is_none() || multiple(stride.wrapping_mul(at.step)))
                    && offsets.iter().all(|&by| multiple(stride.wrapping_mul(by)))
            };
            period > 0
                && of_dim.run == of_dim.len()
                && multiple(sum.base)
                && multiple(end as i64)
                && sum.axes.iter().all(aligned)
                && sum.terms.values().all(|&stride| multiple(stride))
        };
        self.state.lanes.iter().enumerate().filter(is_alike).fold(0, |lanes, (dim, _)| lanes | 1 << dim)
    }

    /// A value at the first lane of each dimension in `lanes`. The result does not depend on these dimensions.
    fn first_of(&self, value: &Value, lanes: u32) -> Value {
        let lanes = value.lanes & !lanes;
        Value { lanes, regs: self.points(lanes).iter().map(|at| self.pick(value, at)).collect() }
    }

    /// The result of a function of terms at each lane.
    fn each<const N: usize>(&mut self, of: [TermId; N], with: impl FnMut(&mut Text, [Reg; N]) -> Reg) -> Value {
        let of = of.map(|of| self.value(of));
        self.zip(of.each_ref(), with)
    }

    /// The result of a function of values at each lane. The function is called once for the same registers.
    pub fn zip<const N: usize>(&mut self, of: [&Value; N], mut with: impl FnMut(&mut Text, [Reg; N]) -> Reg) -> Value {
        let lanes = of.iter().fold(0, |lanes, value| lanes | value.lanes);
        let (points, mut known) = (self.points(lanes), HashMap::new());
        let regs = points.iter().map(|at| {
            let args = of.map(|value| value.regs[self.place(value.lanes, at)]);
            *known.entry(args).or_insert_with(|| with(&mut self.text, args))
        });
        Value { lanes, regs: regs.collect() }
    }

    /// All combinations of lanes of the dimensions in `lanes`. A combination has a number for each dimension: 0 for
    /// those that are not in `lanes`.
    pub fn points(&self, lanes: u32) -> Vec<Vec<usize>> {
        let mut all = vec![vec![0; self.state.lanes.len()]];
        for (dim, of_dim) in self.state.lanes.iter().enumerate().filter(|(dim, _)| lanes >> dim & 1 == 1) {
            let with = |at: &Vec<usize>, lane: usize| {
                let mut at = at.clone();
                at[dim] = lane;
                at
            };
            all = all
                .iter()
                .flat_map(|at| (0..of_dim.offsets.len()).map(|lane| with(at, lane)).collect::<Vec<_>>())
                .collect();
        }
        all
    }

    /// All combinations of lanes of the dimensions in `lanes` and `fastest`. Those in `fastest` vary fastest.
    pub fn points_within(&self, lanes: u32, fastest: u32) -> Vec<Vec<usize>> {
        let inner = self.points(fastest);
        let joined = |a: &Vec<usize>, b: &Vec<usize>| a.iter().zip(b).map(|(a, b)| a + b).collect();
        let at_each = |outer: &Vec<usize>| inner.iter().map(|inner| joined(outer, inner)).collect::<Vec<_>>();
        self.points(lanes & !fastest).iter().flat_map(at_each).collect()
    }

    /// The number of the combination `at` among all combinations of lanes of the dimensions in `lanes`.
    pub fn place(&self, lanes: u32, at: &[usize]) -> usize {
        let dims = self.state.lanes.iter().enumerate().filter(|(dim, _)| lanes >> dim & 1 == 1);
        dims.fold(0, |place, (dim, of_dim)| place * of_dim.offsets.len() + at[dim])
    }

    /// The register of a value at a combination of lanes.
    pub fn pick(&self, value: &Value, at: &[usize]) -> Reg {
        value.regs[self.place(value.lanes, at)]
    }

    /// The dimensions of the lanes along these axes.
    pub fn lanes_of<'a>(&self, axes: impl IntoIterator<Item = &'a usize>) -> u32 {
        let of_axis = |axis: &usize| self.state.at[*axis].and_then(|at| at.lanes);
        axes.into_iter().filter_map(of_axis).fold(0, |lanes, dim| lanes | 1 << dim)
    }

    /// The predicate that says whether the thread has the combination `at` of lanes, by the dimensions in `lanes`;
    /// `None` if it certainly has it.
    pub fn valid(&mut self, lanes: u32, at: &[usize]) -> Option<Reg> {
        let of_dim = |(dim, of_dim): (usize, &Lanes)| (lanes >> dim & 1 == 1).then(|| of_dim.valid[at[dim]]).flatten();
        let all: Vec<Reg> = self.state.lanes.iter().enumerate().filter_map(of_dim).collect();
        all.into_iter().reduce(|a, b| self.text.op(Class::Pred, "and.pred", &[&a, &b]))
    }

    /// The difference between the axes' part of a sum at a combination of lanes and at the first combination.
    fn distance(&self, sum: &Sum, at: &[usize]) -> i64 {
        let of_dim = |(dim, of_dim): (usize, &Lanes)| sum.stride(of_dim.axis).wrapping_mul(of_dim.offsets[at[dim]]);
        self.state.lanes.iter().enumerate().map(of_dim).fold(0, i64::wrapping_add)
    }

    /// The value of a sum in `dtype`, which is i64 or i32.
    pub fn index(&mut self, sum: &Sum, dtype: Dtype) -> Value {
        let (class, kind) = (Class::of(dtype), super::number::kind(dtype));
        let mut first = self.text.number(class, sum.base as u64);
        for (&axis, stride) in &sum.axes {
            if let Some(index) = self.state.at[axis].expect("an axis that is bound").first {
                let index = resized(&mut self.text, index, class);
                first = self.text.op(class, &format!("mad.lo.{kind}"), &[&index, stride, &first]);
            }
        }
        let mut value = Value { lanes: 0, regs: vec![first] };
        for (&term, stride) in &sum.terms {
            let of = self.value(term);
            value = self.zip([&value, &of], |text, [sum, x]| {
                let x = resized(text, x, class);
                text.op(class, &format!("mad.lo.{kind}"), &[&x, stride, &sum])
            });
        }
        let lanes = value.lanes | self.lanes_of(sum.axes.keys());
        let (points, mut known) = (self.points(lanes), HashMap::new());
        let at_lane = |at: &Vec<usize>| match (self.distance(sum, at), self.pick(&value, at)) {
            (0, first) => first,
            (distance, first) => *known
                .entry((distance, first))
                .or_insert_with(|| self.text.op(class, &format!("add.{kind}"), &[&first, &distance])),
        };
        Value { lanes, regs: points.iter().map(at_lane).collect() }
    }

    /// The address of the element at index `sum`, without `sum.base` and the offsets of lanes.
    fn pointer(&mut self, parameter: usize, sum: &Sum, bytes: i64) -> Value {
        let mut value = Value { lanes: 0, regs: vec![self.pointer_along(parameter, sum, bytes)] };
        for (&term, stride) in &sum.terms {
            let of = self.value(term);
            value = self.zip([&value, &of], |text, [pointer, x]| advanced(text, pointer, x, stride * bytes));
        }
        value
    }

    /// The address in a parameter at the first points of all bound axes, without the base and the terms of `sum`.
    fn pointer_along(&mut self, parameter: usize, sum: &Sum, bytes: i64) -> Reg {
        let mut key = (parameter, Vec::new());
        let mut pointer = self.state.pointers[&key];
        for axis in self.state.bound.clone() {
            let (stride, at) = (sum.stride(axis), self.state.at[axis].expect("it is bound"));
            let Some(index) = at.first.filter(|_| stride != 0) else { continue };
            key.1.push((axis, stride));
            pointer = match self.state.pointers.get(&key) {
                Some(&known) => known,
                None => advanced(&mut self.text, pointer, index, stride * bytes),
            };
            self.state.pointers.insert(key.clone(), pointer);
        }
        pointer
    }

    fn load(&mut self, operand: usize, sum: &Sum, guard: Option<Guard>) -> Value {
        let dtype = self.nest.of.operands[operand].dtype;
        let bytes = dtype.bytes() as i64;
        let condition = guard.map(|guard| self.value(guard.condition));
        let otherwise = guard.map(|guard| guard.otherwise).filter(|&otherwise| !self.is_zero(otherwise));
        let otherwise = otherwise.map(|otherwise| {
            let from = self.nest.machine(otherwise);
            self.each([otherwise], |text, [x]| convert(text, [from, dtype], x))
        });
        let pointer = self.pointer(self.parameter(operand), sum, bytes);
        let held = pointer.lanes | condition.as_ref().map_or(0, |condition| condition.lanes);
        let lanes = held | self.lanes_of(sum.axes.keys());
        let run = self.access(sum, held, dtype);
        let mut regs: Vec<Option<Reg>> = vec![None; self.points(lanes).len()];
        let mut known: HashMap<_, Vec<Reg>> = HashMap::new();
        // Elements are loaded in the order in which reductions take them, so that few wait in registers.
        let of_result = self.lanes_of(&self.nest.result_axes()) & lanes;
        for at in self.points_within(lanes, of_result).into_iter().filter(|at| run.begins(at)) {
            let holds = condition.as_ref().map(|condition| self.pick(condition, &at));
            let valid = self.valid(lanes, &at);
            let offset = (sum.base + self.distance(sum, &at)) * bytes;
            let place = Place { address: self.pick(&pointer, &at), offset };
            let read = known.entry((place, holds, valid)).or_insert_with(|| {
                let conditions = [holds, valid].into_iter().flatten();
                let predicate = conditions.reduce(|a, b| self.text.op(Class::Pred, "and.pred", &[&a, &b]));
                memory::read(&mut self.text, place, dtype, run.count, predicate)
            });
            for (&elem, at) in read.iter().zip(run.lanes(&at)) {
                regs[self.place(lanes, &at)] = Some(elem);
            }
        }
        let loaded = Value { lanes, regs: regs.into_iter().flatten().collect() };
        match (condition, otherwise) {
            (Some(condition), Some(otherwise)) => self.zip([&condition, &loaded, &otherwise], function::select),
            _ => loaded,
        }
    }

    fn is_zero(&self, id: TermId) -> bool {
        self.nest.term(id).kind == TermKind::Const(0)
    }

    fn parameter(&self, operand: usize) -> usize {
        self.operands.iter().position(|&of| of == operand).expect("every operand that is loaded is listed")
    }

    /// Writes the result at all points of the thread if the predicate holds.
    pub fn store(&mut self, predicate: Option<Reg>) {
        let (nest, dtype) = (self.nest, self.nest.of.dtype());
        let value = self.value(nest.of.result);
        let machine = nest.machine(nest.of.result);
        let value = self.zip([&value], |text, [x]| convert(text, [machine, dtype], x));
        let sum = Sum::dense(&nest.result_axes(), &nest.extents);
        let pointer = self.pointer(self.operands.len(), &sum, dtype.bytes() as i64);
        let lanes = self.lanes_of(sum.axes.keys());
        let run = self.access(&sum, 0, dtype);
        for at in self.points(lanes).into_iter().filter(|at| run.begins(at)) {
            let valid = self.valid(lanes, &at);
            let predicate = [predicate, valid]
                .into_iter()
                .flatten()
                .reduce(|a, b| self.text.op(Class::Pred, "and.pred", &[&a, &b]));
            let elems: Vec<Reg> = run.lanes(&at).map(|at| self.pick(&value, &at)).collect();
            let place = Place { address: pointer.regs[0], offset: self.distance(&sum, &at) * dtype.bytes() as i64 };
            memory::write(&mut self.text, place, dtype, &elems, predicate);
        }
    }

    /// The lanes whose elements one access takes. All of them are at the same lane of each dimension in `held`.
    fn access(&self, sum: &Sum, held: u32, dtype: Dtype) -> Run {
        let (mut run, mut end, mut is_whole) = (Run { dims: Vec::new(), count: 1 }, 1, true);
        // A run that allows no access of several elements is extended by a dimension that goes on where the run ends.
        while run.count == 1 && is_whole {
            let goes_on = |(dim, of_dim): &(usize, &Lanes)| {
                let is_new = held >> dim & 1 == 0 && !run.has(*dim);
                is_new && sum.stride(of_dim.axis) == end as i64 && (end == 1 || of_dim.is_certain())
            };
            let Some((dim, of_dim)) = self.state.lanes.iter().enumerate().find(goes_on) else { break };
            run.dims.push((dim, of_dim.len()));
            run.count = self.longest(sum, dtype, &run, of_dim.run * end);
            is_whole = of_dim.run == of_dim.len() && of_dim.is_certain();
            end *= of_dim.len();
        }
        run
    }

    /// The number of elements that one access takes if `all` lanes of a run are neighbours: the most that size and
    /// alignment allow.
    fn longest(&self, sum: &Sum, dtype: Dtype, run: &Run, all: usize) -> usize {
        let multiple = |count: usize, of: i64| of % count as i64 == 0;
        let fits = |count: &usize| {
            let aligned = |(&axis, &stride): (&usize, &i64)| {
                let at = self.state.at[axis].expect("an axis that is bound");
                let others = at.lanes.filter(|&other| !run.has(other));
                let lanes = others.map_or(&[][..], |other| &self.state.lanes[other].offsets[..]);
                (at.first.is_none() || multiple(*count, stride * at.step))
                    && lanes.iter().all(|by| multiple(*count, stride * by))
            };
            count * dtype.bytes() <= WIDEST
                && all.is_multiple_of(*count)
                && multiple(*count, sum.base)
                && sum.axes.iter().all(aligned)
                && sum.terms.values().all(|&stride| multiple(*count, stride))
        };
        [16, 8, 4, 2].into_iter().find(fits).unwrap_or(1)
    }

    /// Computes those parts of a term that depend only on bound axes, so that inner loops do not compute them again.
    pub fn hoist(&mut self, id: TermId) {
        let nest = self.nest;
        if self.state.values.contains_key(&id) || matches!(nest.term(id).kind, TermKind::Const(_)) {
            return;
        }
        if nest.deps[id.0].iter().all(|&axis| self.state.at[axis].is_some()) {
            self.value(id);
            return;
        }
        nest.reads(id).into_iter().for_each(|read| self.hoist(read));
        if let TermKind::Load { operand, index, .. } = nest.term(id).kind {
            let bytes = nest.of.operands[operand].dtype.bytes() as i64;
            self.pointer_along(self.parameter(operand), nest.index(index), bytes);
        }
    }
}

/// Lanes of neighbouring elements, along one or more dimensions.
#[derive(Clone, Debug)]
struct Run {
    /// The dimensions with their numbers of lanes. Each dimension goes on where the one before it ends.
    dims: Vec<(usize, usize)>,
    count: usize,
}

impl Run {
    fn has(&self, dim: usize) -> bool {
        self.dims.iter().any(|&(of_run, _)| of_run == dim)
    }

    fn begins(&self, at: &[usize]) -> bool {
        self.position(at).is_multiple_of(self.count)
    }

    fn position(&self, at: &[usize]) -> usize {
        self.dims.iter().rev().fold(0, |position, &(dim, len)| position * len + at[dim])
    }

    /// The combinations of lanes that one access takes, beginning with `first`.
    fn lanes(&self, first: &[usize]) -> impl Iterator<Item = Vec<usize>> {
        (0..self.count).map(|lane| {
            let (mut at, mut position) = (first.to_vec(), self.position(first) + lane);
            for &(dim, len) in &self.dims {
                at[dim] = position % len;
                position /= len;
            }
            at
        })
    }
}

/// A signed number in a register of class `class`, extended or cut to its low bits.
fn resized(text: &mut Text, x: Reg, class: Class) -> Reg {
    match [x.class, class] {
        [Class::Word, Class::Long] => text.op(Class::Long, "cvt.s64.s32", &[&x]),
        [Class::Long, Class::Word] => text.op(Class::Word, "cvt.u32.u64", &[&x]),
        _ => x,
    }
}

/// A pointer plus `bytes` x `index`.
fn advanced(text: &mut Text, pointer: Reg, index: Reg, bytes: i64) -> Reg {
    match (index.class, i32::try_from(bytes)) {
        (Class::Word, Ok(bytes)) => text.op(Class::Long, "mad.wide.s32", &[&index, &bytes, &pointer]),
        _ => {
            let index = resized(text, index, Class::Long);
            text.op(Class::Long, "mad.lo.s64", &[&index, &bytes, &pointer])
        }
    }
}
