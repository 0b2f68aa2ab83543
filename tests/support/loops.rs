//! Loops of every operation, in every type that it takes, with operands, to be run on a device and on the CPU.
//! The file is as long as the list of operations.

use half::{bf16, f16};
use trefoil::Dtype;
use trefoil::graph::{
    ArgReduce, Binary, Contract, Conv, Expr, Nearest, Norm, Number, Op, Pad, PadMode, Pool, PoolOp, Reduce, ReduceOp,
    Resize, ResizeCoordinates, ResizeMode, Slice, Tensor, Unary, ValueType, Window,
};
use trefoil::loops::{Loop, LoopBuilder, Lowered, Monoid, TermKind, inline, lower};

use super::random::Random;

/// A loop with its operands.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub of: Loop,
    pub operands: Vec<Tensor>,
    pub to: ValueType,
    /// The largest number that is added up.
    pub scale: f64,
}

const UNARIES: [Unary; 27] = [
    Unary::Neg,
    Unary::Abs,
    Unary::Sign,
    Unary::Floor,
    Unary::Ceil,
    Unary::Round,
    Unary::Sqrt,
    Unary::Exp,
    Unary::Log,
    Unary::Sin,
    Unary::Cos,
    Unary::Tan,
    Unary::Asin,
    Unary::Acos,
    Unary::Atan,
    Unary::Sinh,
    Unary::Cosh,
    Unary::Tanh,
    Unary::Asinh,
    Unary::Acosh,
    Unary::Atanh,
    Unary::Erf,
    Unary::Not,
    Unary::IsNan,
    Unary::IsInf,
    Unary::ToE4m3,
    Unary::OfE4m3,
];

const BINARIES: [Binary; 17] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Rem,
    Binary::Mod,
    Binary::Pow,
    Binary::Min,
    Binary::Max,
    Binary::Equal,
    Binary::Less,
    Binary::LessEqual,
    Binary::And,
    Binary::Or,
    Binary::Xor,
    Binary::ShiftLeft,
    Binary::ShiftRight,
];

/// The allowed difference between two results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// No difference, except in the bits of NaN and the sign of 0.
    Exact,
    /// The roundings of this many f32 operations on numbers as large as the largest operand, which partly cancel, and
    /// some roundings of the result itself.
    Rounded(usize),
}

impl Case {
    /// The loops of an operation, one for each output.
    pub fn of(name: &str, op: &Op, inputs: &[&Tensor], outputs: usize) -> Vec<Self> {
        let types: Vec<Option<&ValueType>> = inputs.iter().map(|input| Some(input.value_type())).collect();
        let written = op.infer(&types, outputs).unwrap_or_else(|what| panic!("{name}: {what}"));
        Self::of_types(name, op, inputs, &types, &written)
    }

    /// The loops of an operation some of whose operands are absent.
    pub fn of_types(
        name: &str,
        op: &Op,
        inputs: &[&Tensor],
        types: &[Option<&ValueType>],
        to: &[ValueType],
    ) -> Vec<Self> {
        let Lowered::Loops(loops) = lower(op, types, to) else { return Vec::new() };
        let case = |(of, to): (Loop, &ValueType)| {
            let operands = inputs.iter().map(|&input| input.clone()).collect();
            let scale = if adds(&of) { inputs.iter().map(|input| largest(input)).fold(0.0, f64::max) } else { 0.0 };
            Self { name: name.to_owned(), of, operands, to: to.clone(), scale }
        };
        loops.into_iter().zip(to).map(case).collect()
    }

    /// The result of the loop on the CPU.
    pub fn expected(&self) -> Tensor {
        let operands: Vec<&Tensor> = self.operands.iter().collect();
        trefoil::loops::run(&self.of, &operands, self.to.clone()).expect("it fits into memory")
    }

    /// The allowed difference: sums of floats are in any order, and transcendental functions are rounded to a few units
    /// of the last place.
    pub fn bound(&self) -> Bound {
        let is_rounded = |term: &trefoil::loops::Term| {
            let transcendental = match term.kind {
                TermKind::Unary(op, _) => UNARIES.iter().skip(7).take(15).any(|&other| other == op),
                TermKind::Binary(op, _) => op == Binary::Pow,
                _ => false,
            };
            term.dtype.is_float() && transcendental
        };
        let points: usize = self.of.axes[self.of.rank..].iter().copied().max().unwrap_or(1);
        match adds(&self.of) || self.of.terms.iter().any(is_rounded) {
            true => Bound::Rounded(32 + points),
            false => Bound::Exact,
        }
    }

    /// Compares a device's result with the CPU's.
    pub fn check(&self, found: &Tensor) -> Result<(), String> {
        let (expected, bound) = (self.expected(), self.bound());
        if bound == Bound::Exact && self.to.dtype.is_integer() {
            let wrong = found.bytes().iter().zip(expected.bytes()).position(|(a, b)| a != b);
            return wrong.map_or(Ok(()), |byte| Err(self.differs(byte / self.to.dtype.bytes(), found, &expected, 0.0)));
        }
        let [a, b] = [found.to_f64s(), expected.to_f64s()];
        let largest = largest(&expected).max(self.scale);
        let (unit, least) = match self.to.dtype {
            Dtype::F16 => (f16::EPSILON.to_f64(), f16::MIN_POSITIVE.to_f64()),
            Dtype::Bf16 => (bf16::EPSILON.to_f64(), bf16::MIN_POSITIVE.to_f64()),
            _ => (0.0, 0.0),
        };
        for (i, (&a, &b)) in a.iter().zip(&b).enumerate() {
            let off = match bound {
                Bound::Exact => 0.0,
                Bound::Rounded(count) => {
                    let single = f64::from(f32::EPSILON);
                    unit * b.abs().max(least) + (count as f64).sqrt() * single * largest + 16.0 * single * b.abs()
                }
            };
            if !(a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= off) {
                return Err(self.differs(i, found, &expected, off));
            }
        }
        Ok(())
    }

    fn differs(&self, elem: usize, found: &Tensor, expected: &Tensor, off: f64) -> String {
        let [a, b] = [found, expected].map(|of| of.to_f64s()[elem]);
        format!("{}: element {elem} of {} is {a}: expected {b} within {off:e}", self.name, self.to)
    }
}

/// Whether a loop adds up or multiplies floats.
fn adds(of: &Loop) -> bool {
    let adds = |kind: &TermKind| matches!(kind, TermKind::Reduce { op: Monoid::Sum | Monoid::Prod, .. });
    of.terms.iter().any(|term| term.dtype.is_float() && adds(&term.kind))
}

/// The largest absolute value of the finite numbers of a tensor.
fn largest(of: &Tensor) -> f64 {
    of.to_f64s().into_iter().filter(|x| x.is_finite()).fold(0.0, |most, x| most.max(x.abs()))
}

/// All cases; they are the same each time.
pub fn all() -> Vec<Case> {
    let mut all = functions();
    all.extend(casts());
    all.extend(reductions());
    all.extend(rows());
    all.extend(moves());
    all.extend(gathers());
    all.extend(products());
    all.extend(windows());
    all.extend(resizes());
    all.extend(small());
    all.extend(fused());
    all.push(products_of_what_no_axis_changes());
    all.extend(between_convolutions());
    all
}

/// Numbers of a type: first special ones, then random ones.
pub fn values(dtype: Dtype, dims: &[usize], seed: &str) -> Tensor {
    let mut random = Random::new(seed);
    let specials = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        3.0,
        7.0,
        -7.0,
        31.0,
        63.0,
        64.0,
        100.0,
        -100.0,
        127.0,
        -128.0,
        128.0,
        255.0,
        256.0,
        32767.0,
        -32768.0,
        65535.0,
        65504.0,
        65520.0,
        2147483647.0,
        -2147483648.0,
        4294967295.0,
        1e10,
        -1e10,
        9.3e18,
        -9.3e18,
        2e19,
        1e-6,
        1e-30,
        1e-40,
        1e38,
        1e300,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        88.0,
        -87.0,
    ];
    let count: usize = dims.iter().product();
    let any = |i: usize, random: &mut Random| match i % 7 {
        0 => specials[(i / 7) % specials.len()],
        1 => random.signed() * 300.0,
        2 => random.signed() * 70000.0,
        _ => random.signed() * 4.0,
    };
    let all: Vec<f64> = (0..count).map(|i| any(i, &mut random)).collect();
    let all = Tensor::of(dims, &all);
    converted(&all, dtype)
}

/// Numbers from -1 to 1 for a floating-point type, whole numbers for an integer type.
pub fn signed(dtype: Dtype, dims: &[usize], seed: &str) -> Tensor {
    let mut random = Random::new(seed);
    let scale = if dtype.is_float() { 1.0 } else { 20.0 };
    let all: Vec<f64> = (0..dims.iter().product()).map(|_| random.signed() * scale).collect();
    converted(&Tensor::of(dims, &all), dtype)
}

/// A tensor converted to another type, as by a cast.
fn converted(of: &Tensor, dtype: Dtype) -> Tensor {
    let to = ValueType::new(dtype, &of.value_type().dims);
    trefoil::loops::compute(&Op::Map(Expr::arg(0).cast(dtype)), &[Some(of)], &[to]).expect("it fits").remove(0)
}

fn functions() -> Vec<Case> {
    let mut all = Vec::new();
    for dtype in Dtype::ALL {
        let [a, b] = ["a", "b"].map(|seed| values(dtype, &[3, 701], &format!("{seed} {dtype}")));
        for op in UNARIES.into_iter().filter(|op| op.dtype(dtype).is_ok()) {
            let of = if dtype.is_float() { &signed(dtype, &[5, 640], "x") } else { &a };
            for (x, what) in [(&a, "any"), (of, "small")] {
                all.extend(Case::of(&format!("{op:?} of {what} {dtype}"), &Op::Map(Expr::arg(0).unary(op)), &[x], 1));
            }
        }
        let (c, d) = (signed(dtype, &[64, 64], "c"), signed(dtype, &[64, 64], "d"));
        for op in BINARIES.into_iter().filter(|op| op.dtype(dtype).is_ok()) {
            let map = Op::Map(Expr::arg(0).binary(op, Expr::arg(1)));
            let is_wild = op == Binary::Pow && dtype.is_float(); // large powers of any numbers are off by a few units
            for (x, y, what) in [(&a, &b, "any"), (&c, &d, "small")].into_iter().skip(usize::from(is_wild)) {
                all.extend(Case::of(&format!("{op:?} of {what} {dtype}"), &map, &[x, y], 1));
            }
        }
        let chosen = values(Dtype::Bool, &[3, 701], "chosen");
        let choice = Op::Map(Expr::arg(0).select(Expr::arg(1), Expr::arg(2)));
        all.extend(Case::of(&format!("select of {dtype}"), &choice, &[&chosen, &a, &b], 1));
    }
    all
}

fn casts() -> Vec<Case> {
    let cast = |from: Dtype, to: Dtype| {
        let x = values(from, &[2, 700], &format!("cast {from}"));
        Case::of(&format!("cast of {from} to {to}"), &Op::Map(Expr::arg(0).cast(to)), &[&x], 1)
    };
    Dtype::ALL.into_iter().flat_map(|from| Dtype::ALL.into_iter().flat_map(move |to| cast(from, to))).collect()
}

fn reduce(op: ReduceOp, axes: &[usize]) -> Op {
    Op::Reduce(Reduce { op, axes: axes.to_vec(), keep: false })
}

fn reductions() -> Vec<Case> {
    let mut all = Vec::new();
    let ops = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Mean];
    for dtype in Dtype::ALL {
        let x = signed(dtype, &[6, 35, 16], "reduced");
        for (op, axes) in
            ops.into_iter().flat_map(|op| [&[0][..], &[1], &[2], &[0, 2], &[0, 1, 2]].map(|axes| (op, axes)))
        {
            let of = reduce(op, axes);
            if of.infer(&[Some(x.value_type())], 1).is_ok() {
                all.extend(Case::of(&format!("{op:?} of {dtype} along {axes:?}"), &of, &[&x], 1));
            }
        }
    }
    for (dims, axes) in [
        (&[3, 5000][..], &[1][..]),
        (&[3, 33], &[1]),
        (&[300, 1024], &[1]),
        (&[4099, 40], &[0]),
        (&[2, 1000, 64], &[1]),
        (&[100_000], &[0]),
        (&[7, 12, 13, 5], &[1, 2]),
        (&[40, 17, 9], &[0, 1, 2]),
    ] {
        let x = signed(Dtype::F32, dims, "long");
        all.extend(Case::of(&format!("sum of {dims:?} along {axes:?}"), &reduce(ReduceOp::Sum, axes), &[&x], 1));
        let x = values(Dtype::F32, dims, "long");
        all.extend(Case::of(&format!("maximum of {dims:?} along {axes:?}"), &reduce(ReduceOp::Max, axes), &[&x], 1));
        let x = signed(Dtype::I8, dims, "long");
        for (largest, last) in [(true, false), (true, true), (false, false), (false, true)] {
            let of = Op::ArgReduce(ArgReduce { largest, axis: axes[0], keep: true, last });
            all.extend(Case::of(&format!("extreme of {dims:?}, {of:?}"), &of, &[&x], 1));
        }
    }
    for dtype in Dtype::ALL.into_iter().filter(|&dtype| dtype != Dtype::Bool) {
        let x = values(dtype, &[70, 90], "extreme");
        for (largest, axis) in [(true, 0), (false, 1)] {
            let of = Op::ArgReduce(ArgReduce { largest, axis, keep: false, last: axis == 0 });
            all.extend(Case::of(&format!("extreme of {dtype}, {of:?}"), &of, &[&x], 1));
        }
    }
    all
}

/// Softmax and norms: several reductions over the same row, then a map of its elements.
fn rows() -> Vec<Case> {
    let mut all = Vec::new();
    for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64] {
        for dims in [&[5, 7][..], &[9, 64], &[130, 1000], &[33, 1024], &[3, 5000], &[2, 40_000], &[4, 9, 31], &[1, 1]] {
            let x = signed(dtype, dims, "rows");
            for (axis, log) in [(dims.len() - 1, false), (dims.len() - 1, true), (0, false)] {
                let of = Op::Softmax { axis, log };
                all.extend(Case::of(&format!("{of:?} of {dtype} {dims:?}"), &of, &[&x], 1));
            }
            for (axis, centred) in [(dims.len() - 1, true), (dims.len() - 1, false), (0, true)] {
                let of = Op::Norm(Norm { axis, eps: 1e-5, centred });
                let [scale, bias] = ["scale", "bias"].map(|seed| signed(dtype, &dims[axis..], seed));
                all.extend(Case::of(&format!("{of:?} of {dtype} {dims:?}"), &of, &[&x, &scale, &bias], 1));
            }
        }
    }
    all
}

fn moves() -> Vec<Case> {
    let mut all = Vec::new();
    for dtype in Dtype::ALL {
        let x = values(dtype, &[4, 36, 48], "moved");
        let mut put = |what: &str, of: Op| all.extend(Case::of(&format!("{what} of {dtype}"), &of, &[&x], 1));
        put("reshape", Op::Reshape(vec![48, 144]));
        put("transpose", Op::Transpose(vec![0, 2, 1]));
        put("rotation", Op::Transpose(vec![2, 0, 1]));
        put("reversal", Op::Transpose(vec![2, 1, 0]));
        put("slice", Op::Slice(Slice { start: vec![3, 30, 47], step: vec![-1, -4, -3], dims: vec![4, 7, 15] }));
        put("even slice", Op::Slice(Slice { start: vec![0, 4, 16], step: vec![1, 2, 1], dims: vec![4, 16, 32] }));
        put("broadcast", Op::Broadcast(vec![3, 4, 36, 48]));
        let modes = [PadMode::Reflect, PadMode::Edge, PadMode::Wrap];
        let number = if dtype.is_float() { Number::Float(0.5) } else { Number::Int(1) };
        for mode in modes.into_iter().chain([PadMode::Constant(number)]) {
            put(&format!("{mode:?}"), Op::Pad(Pad { before: vec![0, 2, 1], after: vec![0, -3, 7], mode }));
        }
        let y = values(dtype, &[4, 3, 48], "beside");
        all.extend(Case::of(&format!("concatenation of {dtype}"), &Op::Concat(1), &[&x, &y, &x], 1));
        let thin = values(dtype, &[4, 1, 1], "thin");
        all.extend(Case::of(&format!("thin broadcast of {dtype}"), &Op::Broadcast(vec![4, 20, 64]), &[&thin], 1));
    }
    let turns = [
        (&[512, 768][..], &[1, 0][..]),
        (&[3, 65, 97], &[1, 0, 2]),
        (&[2, 33, 5, 64], &[0, 2, 1, 3]),
        (&[2, 130, 5, 94], &[0, 3, 2, 1]),
        (&[2, 66, 77], &[0, 2, 1]),
    ];
    for (dims, order) in turns {
        for dtype in [Dtype::Bool, Dtype::U8, Dtype::F16, Dtype::F32, Dtype::F64] {
            let x = values(dtype, dims, "turned");
            all.extend(Case::of(
                &format!("transpose of {dtype} {dims:?} to {order:?}"),
                &Op::Transpose(order.to_vec()),
                &[&x],
                1,
            ));
        }
    }
    all.extend(
        [(Dtype::F16, 2), (Dtype::U8, 2), (Dtype::F16, 3), (Dtype::F32, 2)].map(|(dtype, count)| turned(dtype, count)),
    );
    all.push(turned_windows());
    all.extend([Dtype::Bool, Dtype::U8, Dtype::F16, Dtype::F32, Dtype::F64].map(all_turned));
    // There is a number for each of three colours: a thread computes whole pixels, eight or two of them.
    for (name, width) in [("pixels of three colours", 264), ("pixels of three colours in pairs", 270)] {
        let pixels = values(Dtype::U8, &[8, 265, width, 3], "pixels");
        let of_colours = ["factors", "terms"].map(|what| signed(Dtype::F32, &[3], what));
        let normalised = (Expr::arg(0).cast(Dtype::F32) * Expr::arg(1) + Expr::arg(2)).cast(Dtype::F16);
        let operands = [&pixels, &of_colours[0], &of_colours[1]];
        all.extend(Case::of(name, &Op::Map(normalised), &operands, 1));
    }
    let x = signed(Dtype::F32, &[640, 1024], "far");
    let swish = Expr::arg(0) / (Expr::float(Dtype::F32, 1.0) + (-Expr::arg(0)).unary(Unary::Exp));
    all.extend(Case::of("swish of a large value", &Op::Map(swish), &[&x], 1));
    all.extend(Case::of(
        "axes of a large value",
        &Op::Map(Expr::Axis(0) * Expr::int(Dtype::I64, 1 << 33) + Expr::Axis(1)),
        &[&x],
        1,
    ));
    all
}

/// The sum of a value that lies as the result does and of others that lie in another order.
fn turned(dtype: Dtype, others: usize) -> Case {
    let as_it_is = values(dtype, &[3, 66, 70], "as it is");
    let others: Vec<Tensor> = (0..others).map(|i| values(dtype, &[3, 70, 66], &format!("turned {i}"))).collect();
    let operands = [vec![as_it_is], others].concat();
    let types: Vec<ValueType> = operands.iter().map(|operand| operand.value_type().clone()).collect();
    let mut b = LoopBuilder::new(&types, &types[0].dims);
    let point = b.point();
    let mut sum = b.load(0, &point);
    for other in 1..operands.len() {
        let other = b.load(other, &[point[0], point[2], point[1]]);
        sum = b.binary(Binary::Add, sum, other);
    }
    let (name, of) = (format!("sum of {} of {dtype} in another order", operands.len() - 1), b.finish(sum));
    Case { name, of, operands, to: types[0].clone(), scale: 1.0 }
}

/// Two operands in another order of axes, and nothing else: the result is turned.
fn all_turned(dtype: Dtype) -> Case {
    let (rows, columns) = if dtype == Dtype::U8 { (66, 70) } else { (67, 71) };
    let operands = ["first", "second"].map(|what| values(dtype, &[3, columns, rows], what));
    let types = operands.each_ref().map(|operand| operand.value_type().clone());
    let to = ValueType::new(dtype, &[3, rows, columns]);
    let mut b = LoopBuilder::new(&types, &to.dims);
    let point = b.point();
    let [a, other] = [0, 1].map(|operand| b.load(operand, &[point[0], point[2], point[1]]));
    let op = if dtype == Dtype::Bool { Binary::And } else { Binary::Max };
    let result = b.binary(op, a, other);
    let (name, of) = (format!("{op:?} of two of {dtype}, both turned"), b.finish(result));
    Case { name, of, operands: operands.to_vec(), to, scale: 1.0 }
}

/// Windows of three frames, side by side with zeros, of channels that lie one behind the other: all loads are turned.
fn turned_windows() -> Case {
    let (channels, frames) = (20, 150);
    let x = values(Dtype::F32, &[2, channels, frames], "frames");
    let to = ValueType::new(Dtype::F16, &[2, frames, 64]);
    let mut b = LoopBuilder::new(std::slice::from_ref(x.value_type()), &to.dims);
    let point = b.point();
    let mut window = b.float(Dtype::F32, 0.0);
    for tap in 0..3 {
        let channel = b.shifted(point[2], -(tap * channels as i64));
        let frame = b.shifted(point[1], tap - 1);
        let is_inside = [b.within(channel, channels), b.within(frame, frames)];
        let condition = b.all(is_inside);
        window = b.load_if(0, &[point[0], channel, frame], condition, window);
    }
    let result = b.cast(Dtype::F16, window);
    Case { name: "windows of turned frames".into(), of: b.finish(result), operands: vec![x], to, scale: 1.0 }
}

fn gathers() -> Vec<Case> {
    let mut all = Vec::new();
    let x = values(Dtype::F32, &[10, 9, 32], "gathered");
    for dtype in [Dtype::I32, Dtype::I64] {
        let at = converted(&Tensor::of(&[2, 4], &[0.0, -1.0, 8.0, 3.0, -9.0, 5.0, 2.0, 2.0]), dtype);
        for axis in 0..3 {
            all.extend(Case::of(&format!("gather along {axis} by {dtype}"), &Op::Gather(axis), &[&x, &at], 1));
        }
        let at = signed(dtype, &[10, 9, 32], "at");
        let low = Expr::arg(0).binary(Binary::Mod, Expr::int(dtype, 9));
        let to = at.value_type().clone();
        let at = trefoil::loops::compute(&Op::Map(low), &[Some(&at)], &[to]).expect("it fits").remove(0);
        all.extend(Case::of(&format!("gather of elements by {dtype}"), &Op::GatherElements(1), &[&x, &at], 1));
        let at = converted(&Tensor::of(&[3, 2], &[0.0, -1.0, 9.0, 3.0, -10.0, 5.0]), dtype);
        all.extend(Case::of(&format!("gather of slices by {dtype}"), &Op::GatherNd(0), &[&x, &at], 1));
    }
    all
}

fn products() -> Vec<Case> {
    let mut all = Vec::new();
    for dtype in [Dtype::F32, Dtype::F16, Dtype::F64, Dtype::I32, Dtype::U8, Dtype::I64] {
        for (a, b) in [
            (&[64, 64][..], &[64, 64][..]),
            (&[9, 40], &[40, 21]),
            (&[200, 129], &[129, 136]),
            (&[3, 70, 16], &[3, 16, 68]),
            (&[2, 3, 20, 33], &[33, 40]),
            (&[1, 300], &[300, 65]),
            (&[130, 20], &[20, 1]),
            (&[700, 36], &[36, 16]),
            (&[530, 20], &[20, 24]),
            (&[1030, 17], &[17, 60]),
            (&[16, 33], &[33, 700]),
            (&[27, 20], &[20, 530]),
        ] {
            let (x, y) = (signed(dtype, a, "left"), signed(dtype, b, "right"));
            let of = Op::Contract(Contract::matmul(a.len(), b.len()));
            all.extend(Case::of(&format!("product of {dtype} {a:?} and {b:?}"), &of, &[&x, &y], 1));
        }
        let (x, y) = (signed(dtype, &[90, 40], "left"), signed(dtype, &[70, 40], "right"));
        let of = Op::Contract(Contract { left: vec![0, 2], right: vec![1, 2], result: vec![0, 1] });
        all.extend(Case::of(&format!("product of {dtype} with a transposed one"), &of, &[&x, &y], 1));
        let of = Op::Contract(Contract { left: vec![0, 2], right: vec![1, 2], result: vec![1, 0] });
        all.extend(Case::of(&format!("transposed product of {dtype}"), &of, &[&x, &y], 1));
    }
    all
}

fn window(size: &[usize], stride: &[usize], dilation: &[usize], pad: &[[usize; 2]]) -> Window {
    Window { size: size.to_vec(), stride: stride.to_vec(), dilation: dilation.to_vec(), pad: pad.to_vec() }
}

fn windows() -> Vec<Case> {
    let mut all = Vec::new();
    for dtype in [Dtype::F32, Dtype::F16, Dtype::F64, Dtype::I32, Dtype::I8] {
        for (dims, k, groups, of) in [
            (&[2, 14, 13, 24][..], 40, 1, window(&[3, 3], &[1, 1], &[1, 1], &[[1, 1], [1, 1]])),
            (&[2, 9, 8, 6], 4, 2, window(&[3, 2], &[2, 1], &[1, 2], &[[1, 0], [1, 1]])),
            (&[1, 12, 12, 16], 16, 16, window(&[5, 5], &[1, 1], &[1, 1], &[[2, 2], [2, 2]])),
            (&[3, 30, 8], 12, 1, window(&[4], &[3], &[2], &[[0, 3]])),
            (&[1, 5, 6, 4, 3], 8, 1, window(&[2, 3, 2], &[1, 1, 1], &[1, 1, 1], &[[1, 0], [1, 1], [0, 0]])),
            (&[2, 7, 7, 64], 96, 1, window(&[1, 1], &[1, 1], &[1, 1], &[[0, 0], [0, 0]])),
            (&[1, 33, 33, 3], 32, 1, window(&[7, 7], &[2, 2], &[1, 1], &[[3, 3], [3, 3]])),
            // So many results that threads have pixels side by side.
            (&[3, 28, 28, 204], 204, 204, window(&[3, 3], &[1, 1], &[1, 1], &[[1, 1], [1, 1]])),
            (&[8, 28, 28, 308], 308, 308, window(&[5, 5], &[2, 2], &[1, 1], &[[2, 2], [2, 2]])),
        ] {
            let x = signed(dtype, dims, "image");
            let channels = dims[dims.len() - 1];
            let filter = signed(dtype, &[&[k, channels / groups], &of.size[..]].concat(), "filter");
            let bias = signed(dtype, &[k], "bias");
            let name = format!("convolution of {dtype} {dims:?} by {:?}", of.size);
            all.extend(Case::of(&name, &Op::Conv(Conv { window: of, groups }), &[&x, &filter, &bias], 1));
        }
        for (dims, k, groups, of, spatial) in [
            (&[1, 4, 5, 4][..], 6, 2, window(&[3, 2], &[2, 3], &[1, 1], &[[1, 1], [0, 0]]), vec![7, 14]),
            (&[2, 5, 8], 16, 1, window(&[4], &[1], &[2], &[[2, 1]]), vec![8]),
        ] {
            let x = signed(dtype, dims, "image");
            let filter = signed(dtype, &[&[dims[dims.len() - 1], k / groups], &of.size[..]].concat(), "filter");
            let name = format!("transposed convolution of {dtype} {dims:?} by {:?}", of.size);
            all.extend(Case::of(&name, &Op::ConvTranspose(Conv { window: of, groups }, spatial), &[&x, &filter], 1));
        }
        let x = signed(dtype, &[2, 9, 11, 40], "pooled");
        let of = window(&[3, 2], &[2, 1], &[1, 2], &[[1, 1], [0, 1]]);
        for op in [PoolOp::Max, PoolOp::Sum, PoolOp::Mean, PoolOp::MeanOfTaps] {
            let pool = Op::Pool(Pool { op, window: of.clone() });
            let outputs = 1 + usize::from(op == PoolOp::Max);
            if pool.infer(&[Some(x.value_type())], outputs).is_ok() {
                all.extend(Case::of(&format!("{op:?} of windows of {dtype}"), &pool, &[&x], outputs));
            }
        }
    }
    all
}

fn resizes() -> Vec<Case> {
    let mut all = Vec::new();
    let modes = [
        ResizeMode::Nearest(Nearest::PreferFloor),
        ResizeMode::Nearest(Nearest::PreferCeil),
        ResizeMode::Nearest(Nearest::Floor),
        ResizeMode::Nearest(Nearest::Ceil),
        ResizeMode::Linear,
        ResizeMode::Cubic(-0.75),
    ];
    let coordinates = [
        ResizeCoordinates::HalfPixel,
        ResizeCoordinates::HalfPixelSymmetric,
        ResizeCoordinates::PytorchHalfPixel,
        ResizeCoordinates::AlignCorners,
        ResizeCoordinates::Asymmetric,
        ResizeCoordinates::Crop,
    ];
    let x = signed(Dtype::F32, &[1, 7, 9, 4], "resized");
    let bytes = signed(Dtype::U8, &[1, 7, 9, 4], "resized");
    for (mode, coordinates) in modes.into_iter().flat_map(|mode| coordinates.map(|coordinates| (mode, coordinates))) {
        for (dims, antialias) in [([1, 15, 20, 4], false), ([1, 4, 5, 4], true)] {
            let scales = (0..4).map(|axis| dims[axis] as f64 / x.value_type().dims[axis] as f64).collect();
            let is_crop = coordinates == ResizeCoordinates::Crop;
            let of = Resize {
                mode,
                coordinates,
                dims: dims.to_vec(),
                scales,
                crop: vec![[0.0, 1.0], [-0.2, 0.9], [0.1, 1.0], [0.0, 1.0]],
                antialias: antialias && matches!(mode, ResizeMode::Linear | ResizeMode::Cubic(_)),
                exclude_outside: antialias && matches!(mode, ResizeMode::Cubic(_)),
                outside: is_crop.then_some(-9.0),
            };
            let name = format!("{mode:?} at {coordinates:?} to {dims:?}");
            all.extend(Case::of(&name, &Op::Resize(of.clone()), &[&x], 1));
            all.extend(Case::of(&format!("{name} of bytes"), &Op::Resize(of), &[&bytes], 1));
        }
    }
    for (dtype, axis) in [(Dtype::I8, None), (Dtype::U8, Some(1)), (Dtype::I32, None), (Dtype::U16, Some(0))] {
        let x = values(Dtype::F32, &[30, 40], "quantised");
        let len: Vec<usize> = axis.map(|axis| [30, 40][axis]).into_iter().collect();
        let scale = Tensor::of(&len, &vec![0.37_f32; len.iter().product()]);
        let zero = signed(dtype, &len, "zero");
        all.extend(Case::of(
            &format!("quantization to {dtype}"),
            &Op::Quantize { dtype, axis },
            &[&x, &scale, &zero],
            1,
        ));
        let x = values(dtype, &[30, 40], "quantised");
        all.extend(Case::of(&format!("dequantization of {dtype}"), &Op::Dequantize { axis }, &[&x, &scale, &zero], 1));
    }
    all
}

/// Values with no elements, with one element, and without axes.
fn small() -> Vec<Case> {
    let mut all = Vec::new();
    for dims in [&[0, 5][..], &[], &[1], &[1, 1, 1], &[2, 0]] {
        let x = signed(Dtype::F32, dims, "small");
        all.extend(Case::of(&format!("sum of {dims:?} and itself"), &Op::Map(Expr::arg(0) + Expr::arg(0)), &[&x], 1));
        let axes: Vec<usize> = (0..dims.len()).collect();
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max] {
            all.extend(Case::of(&format!("{op:?} of {dims:?}"), &reduce(op, &axes), &[&x], 1));
        }
    }
    let x = signed(Dtype::I16, &[3, 0, 4], "small");
    for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max] {
        all.extend(Case::of(&format!("{op:?} of nothing"), &reduce(op, &[1]), &[&x], 1));
    }
    let [none, other] = [signed(Dtype::F32, &[4, 0], "none"), signed(Dtype::F32, &[0, 6], "none")];
    all.extend(Case::of("product of nothing", &Op::Contract(Contract::matmul(2, 2)), &[&none, &other], 1));
    let [row, column] = [signed(Dtype::F32, &[1, 50], "row"), signed(Dtype::F32, &[50, 1], "column")];
    all.extend(Case::of("scalar product", &Op::Contract(Contract::matmul(2, 2)), &[&row, &column], 1));
    all
}

/// Operations between the convolutions of networks of images: means of activations along outer axes, activations of
/// images side by side, softmax of short rows out of several values.
fn between_convolutions() -> Vec<Case> {
    let mut all = Vec::new();
    let swish = Expr::arg(0) / (Expr::float(Dtype::F32, 1.0) + (-Expr::arg(0)).unary(Unary::Exp));
    let fuse = |consumer: &Case, operand: usize, producer: &Case| {
        let of = inline(&consumer.of, operand, &producer.of).expect("each function is computed once");
        let operands = [&consumer.operands[..], &producer.operands].concat();
        Case { name: format!("{} of {}", consumer.name, producer.name), of, operands, ..consumer.clone() }
    };
    let one = |name: &str, op: Op, inputs: &[&Tensor]| Case::of(name, &op, inputs, 1).remove(0);
    for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32] {
        let swish = || match dtype {
            Dtype::F32 => Op::Map(swish.clone()),
            _ => {
                let x = Expr::arg(0).cast(Dtype::F32);
                let under = Expr::float(Dtype::F32, 1.0) + (-x.clone()).unary(Unary::Exp);
                Op::Map((x / under).cast(dtype))
            }
        };
        for dims in [[2, 784, 24], [3, 97, 40], [1, 12_544, 32], [2, 50, 17], [5, 64, 888], [1, 3000, 6], [40, 49, 264]]
        {
            let x = signed(dtype, &dims, "image");
            let activated = one(&format!("swish of {dtype} {dims:?}"), swish(), &[&x]);
            let mean = one("mean", reduce(ReduceOp::Mean, &[1]), &[&activated.expected()]);
            all.push(fuse(&mean, 0, &activated));
            all.push(one(&format!("mean of {dtype} {dims:?}"), reduce(ReduceOp::Mean, &[1]), &[&x]));
        }
        for parts in [[16, 32, 8], [9, 7, 24]] {
            let images = parts.map(|channels| signed(dtype, &[2, 301, channels], &format!("part {channels}")));
            let joined = one(&format!("{parts:?} of {dtype} side by side"), Op::Concat(2), &images.each_ref());
            let activated = one("swish", swish(), &[&joined.expected()]);
            all.push(fuse(&activated, 0, &joined));
        }
        let images = [300, 77, 20].map(|pixels| signed(dtype, &[9, pixels, 16], &format!("image {pixels}")));
        let joined = one(&format!("{dtype} behind each other"), Op::Concat(1), &images.each_ref());
        let softmax = one("softmax", Op::Softmax { axis: 2, log: false }, &[&joined.expected()]);
        all.push(fuse(&softmax, 0, &joined));
    }
    for columns in [16, 17, 49, 64, 100] {
        let x = signed(Dtype::F16, &[20_000, columns], "short rows");
        all.push(one(&format!("softmax of rows of {columns}"), Op::Softmax { axis: 1, log: false }, &[&x]));
    }
    // With these numbers of rows, 2, 4 and 8 lanes of a warp share a row; the last block has fewer rows, and the last
    // lanes fewer points.
    for (rows, columns) in [(140_001, 16), (70_001, 20), (35_001, 40)] {
        let x = signed(Dtype::F16, &[rows, columns], "many short rows");
        all.push(one(&format!("softmax of {rows} rows of {columns}"), Op::Softmax { axis: 1, log: false }, &[&x]));
    }
    all
}

/// Sums of products over axes that neither factor depends on.
fn products_of_what_no_axis_changes() -> Case {
    let x = signed(Dtype::F32, &[5, 24], "factors");
    let mut b = LoopBuilder::new(std::slice::from_ref(x.value_type()), &x.value_type().dims);
    let point = b.point();
    let sum = b.reduce(Monoid::Sum, &[3, 7], |b, _| {
        let factor = b.load(0, &point);
        b.binary(Binary::Mul, factor, factor)
    });
    let (of, to) = (b.finish(sum), x.value_type().clone());
    Case { name: "products that no axis changes".into(), of, operands: vec![x], to, scale: 1.0 }
}

/// Pairs of operations that are fused into one loop.
fn fused() -> Vec<Case> {
    let x = signed(Dtype::F32, &[4, 40, 48], "fused");
    let firsts = [
        Op::Map(Expr::arg(0).unary(Unary::Exp)),
        Op::Map(Expr::arg(0) * Expr::arg(0) + Expr::Axis(1).cast(Dtype::F32)),
        Op::Transpose(vec![0, 2, 1]),
        Op::Slice(Slice { start: vec![0, 7, 1], step: vec![1, -1, 1], dims: vec![4, 5, 8] }),
        Op::Pad(Pad { before: vec![0, 1, 0], after: vec![1, 0, 2], mode: PadMode::Constant(Number::Float(0.5)) }),
        Op::Softmax { axis: 2, log: false },
        Op::Norm(Norm { axis: 2, eps: 1e-3, centred: true }),
        Op::Reduce(Reduce { op: ReduceOp::Sum, axes: vec![1], keep: true }),
        reduce(ReduceOp::Mean, &[2]),
        Op::Contract(Contract { left: vec![0, 1, 3], right: vec![0, 2, 3], result: vec![0, 1, 2] }),
    ];
    let mut all = Vec::new();
    for (first, second) in firsts.iter().flat_map(|first| firsts.iter().map(move |second| (first, second))) {
        let arity = |op: &Op| if matches!(op, Op::Contract(_)) { 2 } else { 1 };
        let lowered = |op: &Op, of: &ValueType| {
            let inputs = vec![Some(of); arity(op)];
            let to = op.infer(&inputs, 1).ok()?.remove(0);
            match lower(op, &inputs, std::slice::from_ref(&to)) {
                Lowered::Loops(mut loops) => Some((loops.remove(0), to)),
                Lowered::ByHand => None,
            }
        };
        let Some((producer, between)) = lowered(first, x.value_type()) else { continue };
        let Some((consumer, to)) = lowered(second, &between) else { continue };
        let Some(of) = inline(&consumer, 0, &producer) else { continue };
        let unused = trefoil::loops::run(&producer, &vec![&x; arity(first)], between).expect("it fits");
        let operands = [vec![unused; arity(second)], vec![x.clone(); arity(first)]].concat();
        // Numbers are up to 48, the length of an axis; sums are of products of one number, or of a few after a softmax
        // or a norm.
        all.push(Case { name: format!("{first:?} in {second:?}"), of, operands, to, scale: 64.0 });
    }
    all
}
