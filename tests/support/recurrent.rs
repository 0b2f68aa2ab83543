//! Recurrent layers by plain loops in f64, with the error that a kernel of f16 or bf16 may have, and problems for it, each
//! a network of values.

use half::{bf16, f16};
use trefoil::graph::{Binary, Expr, Graph, GraphBuilder, Op, Recurrent, RecurrentCell, Unary, ValueId};
use trefoil::model::{Model, Weights};
use trefoil::plan::{Choices, Kernel, Limits, RecurrentKind, RecurrentTile};
use trefoil::{Device, Dtype, Engine, Error, Precision, Shape};

use super::convolution::number;
use super::halves::Half;
use super::random::Random;
use super::tolerance::{Expected, Growth, Storage, U32};

/// The directions of a layer, as whether each begins with the last step.
const FORWARD: &[bool] = &[false];
const REVERSE: &[bool] = &[true];
const BOTH: &[bool] = &[false, true];

/// Random inputs of a layer.
#[derive(Clone, Debug)]
pub struct Problem {
    precision: Precision,
    cell: RecurrentKind,
    backwards: &'static [bool],
    steps: usize,
    rows: usize,
    hidden: usize,
    /// Whether the layer reads its first states.
    has_first: bool,
    /// The kernel's tile; the planner chooses one if there is none.
    tile: Option<RecurrentTile>,
}

/// All problems in f16 or bf16.
pub fn all(precision: Precision) -> Vec<Problem> {
    use RecurrentKind::{Gru, Lstm, RnnRelu, RnnTanh};
    let of = |cell, backwards, [steps, rows, hidden]: [usize; 3], has_first| Problem {
        precision,
        cell,
        backwards,
        steps,
        rows,
        hidden,
        has_first,
        tile: None,
    };
    let mut all = Vec::new();
    let directions = [FORWARD, REVERSE, BOTH];
    // Every hidden size with every cell, and with each number of sequences, of steps and of directions.
    for (number, hidden) in [8, 24, 64, 128, 256, 512].into_iter().enumerate() {
        for (kind, cell) in [Lstm, Gru, RnnTanh, RnnRelu].into_iter().enumerate() {
            for (index, rows) in [1, 3, 32].into_iter().enumerate() {
                let turn = number + kind + index;
                let steps = [2, 7, 50][turn % 3];
                let steps = if hidden * rows > 128 * 32 { steps.min(7) } else { steps };
                all.push(of(cell, directions[(turn / 3 + index) % 3], [steps, rows, hidden], turn % 2 == 0));
            }
        }
    }
    all.extend([8, 24, 64].map(|hidden| of(Lstm, FORWARD, [1, 3, hidden], true)));
    all.push(of(Gru, BOTH, [1, 2, 16], false));
    // Long sequences; units that no number of parts divides; more sequences than run at the same time.
    all.extend([of(Lstm, BOTH, [300, 1, 40], false), of(Gru, FORWARD, [257, 5, 72], true)]);
    all.extend([of(Lstm, FORWARD, [5, 9, 200], true), of(RnnTanh, BOTH, [5, 17, 1000], true)]);
    all.extend([of(Lstm, FORWARD, [3, 300, 128], false), of(Gru, BOTH, [4, 129, 488], true)]);
    // Every tile of some layers.
    for problem in [
        of(Lstm, BOTH, [6, 19, 104], true),
        of(Gru, FORWARD, [7, 33, 136], true),
        of(RnnRelu, REVERSE, [5, 11, 248], false),
        of(Lstm, FORWARD, [9, 1, 64], false),
    ] {
        let tiles = problem.tiles().into_iter().map(|tile| Problem { tile: Some(tile), ..problem.clone() });
        all.extend(tiles);
    }
    all.into_iter().map(Problem::in_kernel).collect()
}

/// Operands of a problem, and what is made of them.
struct Operands {
    /// For each sequence, `[steps, directions x gates x hidden]`.
    inputs: Vec<Vec<f32>>,
    weights: Vec<f32>,
    bias: Vec<f32>,
    /// For each sequence, h and c, each `[directions, hidden]`.
    first: Vec<[Vec<f32>; 2]>,
}

/// A value with the error that it may have.
#[derive(Clone, Copy, Debug, Default)]
struct Near {
    value: f64,
    error: f64,
}

impl Problem {
    /// Number of values of the result.
    pub fn values(&self) -> usize {
        self.steps * self.rows * self.backwards.len() * self.hidden
    }

    fn gates(&self) -> usize {
        match self.cell {
            RecurrentKind::Lstm => 4,
            RecurrentKind::Gru => 3,
            RecurrentKind::RnnTanh | RecurrentKind::RnnRelu => 1,
        }
    }

    /// The tiles that the kernel has for the layer, found as a program finds them: by the choices that a plan takes.
    fn tiles(&self) -> Vec<RecurrentTile> {
        let all = [8, 16, 32].into_iter().flat_map(|rows| (1..=16).map(move |blocks| RecurrentTile { blocks, rows }));
        let has = |tile: &RecurrentTile| {
            let problem = Self { tile: Some(*tile), ..self.clone() };
            let operands = problem.operands::<f16>();
            let model = problem.model(&operands).expect("a layer");
            problem.builder(&model).plans_for(&Limits::h200()).is_ok()
        };
        all.filter(has).collect()
    }

    /// Whether the plan for an H200 has the kernel.
    pub fn is_in_kernel(&self) -> bool {
        let operands = self.operands::<f16>();
        let model = self.model(&operands).expect("a layer");
        let plans = self.builder(&model).plans_for(&Limits::h200()).expect("a plan");
        plans[0].steps.iter().any(|step| matches!(step.kernel, Kernel::Sm90Recurrent(_)))
    }

    /// The problem with a tile if the planner would leave it unrolled: one or two steps may take less time without the
    /// kernel, but round otherwise.
    fn in_kernel(self) -> Self {
        match self.steps > 2 || self.is_in_kernel() {
            true => self,
            false => Self { tile: self.tiles().first().copied(), ..self },
        }
    }

    fn builder<'a>(&self, model: &'a Model) -> trefoil::EngineBuilder<'a> {
        let engine = Engine::builder(model).precision(self.precision).batch_sizes(&[self.rows]);
        match self.tile {
            Some(tile) => engine.choices(Choices::from([("layer".into(), Kernel::Sm90Recurrent(tile))])),
            None => engine,
        }
    }

    fn model(&self, operands: &Operands) -> Result<Model, Error> {
        let rows = self.backwards.len() * self.gates() * self.hidden;
        let tensors = [
            ("weights", vec![rows, self.hidden], operands.weights.clone()),
            ("bias", vec![self.backwards.len(), self.hidden], operands.bias.clone()),
        ];
        let own = self.clone();
        Model::of_graphs(Weights::from_tensors(tensors)?, move |rows| own.graph(rows))
    }

    /// Whether a CPU has time for the problem, which may not choose a kernel's tile.
    pub fn is_for_cpus(&self) -> bool {
        self.tile.is_none() && self.values() * self.gates() * self.hidden < 4_000_000
    }

    /// Runs the problem on a device, on compute capability 9.0 with its kernel, and compares.
    pub fn run(&self, device: &Device) -> Result<(), String> {
        match self.precision {
            Precision::Bf16 => self.run_of::<bf16>(device),
            _ => self.run_of::<f16>(device),
        }
    }

    fn run_of<T: Half>(&self, device: &Device) -> Result<(), String> {
        let told = |error: Error| error.to_string();
        let operands = self.operands::<T>();
        let model = self.model(&operands).map_err(told)?;
        let engine = self.builder(&model).on(device).check(true).build().map_err(told)?;
        let plan = &engine.plans()[0];
        let is_chosen = |kernel| match (kernel, self.tile) {
            (Kernel::Sm90Recurrent(tile), Some(chosen)) => tile == chosen,
            (kernel, _) => matches!(kernel, Kernel::Sm90Recurrent(_)),
        };
        let has_kernel = plan.limits.compute_capability == [9, 0];
        if has_kernel && !plan.steps.iter().any(|step| is_chosen(step.kernel)) {
            return Err(format!("the kernel is not in the plan:\n{plan}"));
        }
        let mut batch = engine.acquire().map_err(told)?;
        for row in 0..self.rows {
            batch.port_mut::<f32>(row, "x").map_err(told)?.copy_from_slice(&operands.inputs[row]);
            if self.has_first {
                for (name, first) in self.states().into_iter().zip(&operands.first[row]) {
                    batch.port_mut::<f32>(row, name).map_err(told)?.copy_from_slice(first);
                }
            }
        }
        let output = batch.submit(self.rows).and_then(|ticket| ticket.wait()).map_err(told)?;
        for row in 0..self.rows {
            let [y, last @ ..] = self.expected::<T>(row, &operands);
            let ports = ["y", "h.last", "c.last"].into_iter().zip([y].into_iter().chain(last));
            for (name, expected) in ports.take(1 + self.states().len()) {
                let actual = output.port::<f32>(row, name).map_err(told)?;
                expected.check(Growth::Worst, actual).map_err(|error| format!("row {row}, {name}: {error}"))?;
            }
        }
        Ok(())
    }

    /// The names of the states.
    fn states(&self) -> Vec<&'static str> {
        if self.cell == RecurrentKind::Lstm { vec!["h", "c"] } else { vec!["h"] }
    }

    /// Inputs, weights and h are values of the type; so their conversion is exact. A few weights of each sum are large, so
    /// that what the state adds to a gate is much more than roundings are.
    fn operands<T: Half>(&self) -> Operands {
        let mut random = Random::new(&format!("{:?} {:?} {} {}", self.cell, self.backwards, self.hidden, self.rows));
        let (directions, gates, hidden) = (self.backwards.len(), self.gates(), self.hidden);
        let rounded = |values: Vec<f32>| values.into_iter().map(|value| T::of(value.into()).value() as f32).collect();
        let mut weights = random.singles(directions * gates * hidden * hidden, 0.3 / hidden as f64);
        for line in weights.chunks_mut(hidden) {
            for (place, size) in random.singles(8, 1.0).into_iter().zip(random.singles(8, 0.15)) {
                line[((place + 1.0) / 2.0 * hidden as f32) as usize % hidden] = size;
            }
        }
        let inputs = (0..self.rows).map(|_| rounded(random.singles(self.steps * directions * gates * hidden, 2.0)));
        let inputs = inputs.collect();
        let first = (0..self.rows).map(|_| [0, 1].map(|_| rounded(random.singles(directions * hidden, 1.0)))).collect();
        Operands { inputs, weights: rounded(weights), bias: random.singles(directions * hidden, 1.0), first }
    }

    fn graph(&self, rows: usize) -> Result<Graph, Error> {
        let mut g = GraphBuilder::new();
        let (directions, hidden) = (self.backwards.len(), self.hidden);
        let columns = directions * self.gates() * hidden;
        let x = g.input("x", Dtype::F32, &[self.steps, rows, columns]);
        let weights = g.weight("weights", Dtype::F32, &[columns, hidden]);
        let sigmoid = number(1.0) / (number(1.0) + (-Expr::arg(0)).unary(Unary::Exp));
        let (tanh, relu) = (Expr::arg(0).unary(Unary::Tanh), Expr::arg(0).binary(Binary::Max, number(0.0)));
        let (cell, activations) = match self.cell {
            RecurrentKind::Lstm => (RecurrentCell::Lstm { coupled: false }, vec![sigmoid, tanh.clone(), tanh]),
            RecurrentKind::Gru => (RecurrentCell::Gru { reset_after: true }, vec![sigmoid, tanh]),
            RecurrentKind::RnnTanh => (RecurrentCell::Rnn, vec![tanh]),
            RecurrentKind::RnnRelu => (RecurrentCell::Rnn, vec![relu]),
        };
        let has_bias = self.cell == RecurrentKind::Gru;
        let bias = has_bias.then(|| g.weight("bias", Dtype::F32, &[directions, hidden]));
        let mut operands: Vec<Option<ValueId>> = vec![Some(x), Some(weights), bias];
        if self.has_first {
            operands
                .extend(self.states().iter().map(|name| Some(g.input(name, Dtype::F32, &[directions, rows, hidden]))));
        }
        let of = Recurrent { cell, backwards: self.backwards.to_vec(), activations: vec![activations; directions] };
        let results = g.node_with("layer", Op::Recurrent(of), &operands, 1 + self.states().len());
        results.iter().zip(["y", "h.last", "c.last"]).for_each(|(&value, name)| g.output(name, value));
        g.finish()
    }

    /// What is expected of a sequence: what is shown, the last h, and the last c.
    fn expected<T: Half>(&self, row: usize, operands: &Operands) -> [Expected; 3] {
        let (directions, gates, hidden) = (self.backwards.len(), self.gates(), self.hidden);
        let exact = |value: f32| Near { value: value.into(), error: 0.0 };
        let mut y = vec![Near::default(); self.steps * directions * hidden];
        let mut last = [vec![Near::default(); directions * hidden], vec![Near::default(); directions * hidden]];
        for (direction, &is_backwards) in self.backwards.iter().enumerate() {
            let first = |state: usize| -> Vec<Near> {
                let all = operands.first[row][state][direction * hidden..][..hidden].iter();
                all.map(|&value| if self.has_first { exact(value) } else { Near::default() }).collect()
            };
            // As products read h, as a GRU keeps it, and c.
            let (mut h, mut own, mut c) = (first(0), first(0), first(1));
            for step in 0..self.steps {
                let time = if is_backwards { self.steps - 1 - step } else { step };
                let before = h.clone();
                for unit in 0..hidden {
                    let line = (time * directions + direction) * gates;
                    let x = |gate: usize| exact(operands.inputs[row][(line + gate) * hidden + unit]);
                    let product = |gate: usize| {
                        let at = ((direction * gates + gate) * hidden + unit) * hidden;
                        dot(&operands.weights[at..at + hidden], &before)
                    };
                    let sum = |gate: usize| x(gate).plus(product(gate));
                    match self.cell {
                        RecurrentKind::Lstm => {
                            let [i, o, f] = [0, 1, 2].map(|gate| sum(gate).sigmoid());
                            c[unit] = f.times(c[unit]).plus(i.times(sum(3).tanh()));
                            own[unit] = o.times(c[unit].tanh());
                        }
                        RecurrentKind::Gru => {
                            let [z, r] = [0, 1].map(|gate| sum(gate).sigmoid());
                            let bias = exact(operands.bias[direction * hidden + unit]);
                            let fresh = x(2).plus(r.times(product(2).plus(bias))).tanh();
                            own[unit] = mixed(z, own[unit], fresh);
                        }
                        RecurrentKind::RnnTanh => own[unit] = sum(0).tanh(),
                        RecurrentKind::RnnRelu => own[unit] = sum(0).relu(),
                    }
                    let Near { value, error } = own[unit];
                    h[unit] = Near { value, error: T::ROUNDING.rounded(value, error) };
                    y[(time * directions + direction) * hidden + unit] = h[unit];
                }
            }
            last[0][direction * hidden..][..hidden].copy_from_slice(&h);
            last[1][direction * hidden..][..hidden].copy_from_slice(&c);
        }
        let as_expected = |all: &[Near], rows: usize| Expected {
            shape: Shape::new(1, rows, all.len() / rows),
            values: all.iter().map(|near| near.value).collect(),
            errors: all.iter().map(|near| near.error).collect(),
        };
        [as_expected(&y, self.steps), as_expected(&last[0], directions), as_expected(&last[1], directions)]
    }
}

/// The sum of products, which tensor cores make.
fn dot(weights: &[f32], h: &[Near]) -> Near {
    let (mut sum, mut error, mut magnitude) = (0.0, 0.0, 0.0);
    for (&weight, h) in weights.iter().zip(h) {
        let weight = f64::from(weight);
        sum += weight * h.value;
        error += weight.abs() * h.error;
        magnitude += weight.abs() * (h.value.abs() + h.error);
    }
    // Parts of the columns are added at the end.
    Near { value: sum, error: error + Growth::Worst.sum(Storage::F16, weights.len() + 16, magnitude) }
}

/// z h + (1 - z) n, in three operations of f32.
fn mixed(z: Near, h: Near, n: Near) -> Near {
    let value = z.value * h.value + (1.0 - z.value) * n.value;
    let apart = (h.value - n.value).abs() + h.error + n.error;
    let moved = z.error * apart + z.value * h.error + (1.0 - z.value) * n.error + z.error * (h.error + n.error);
    let magnitude = h.value.abs() + h.error + 2.0 * (n.value.abs() + n.error);
    Near { value, error: moved + 3.0 * U32 * magnitude }
}

impl Near {
    fn plus(self, other: Self) -> Self {
        let (value, error) = (self.value + other.value, self.error + other.error);
        Self { value, error: error + U32 * (value.abs() + error) }
    }

    fn times(self, other: Self) -> Self {
        let value = self.value * other.value;
        let error = self.error * other.value.abs() + other.error * self.value.abs() + self.error * other.error;
        Self { value, error: error + U32 * (value.abs() + error) }
    }

    /// The point within the error that is nearest to 0, where sigmoid and tanh are steepest.
    fn nearest(self) -> f64 {
        (self.value.abs() - self.error).max(0.0)
    }

    /// The kernel's sigmoid is off by 2^-16 of itself, or 2^-30, as its contract says.
    fn sigmoid(self) -> Self {
        let of = |x: f64| 1.0 / (1.0 + (-x).exp());
        let value = of(self.value);
        let steepest = of(self.nearest()) * (1.0 - of(self.nearest()));
        let moved = steepest * self.error;
        Self { value, error: moved + (value + moved) / f64::from(1 << 16) + 1.0 / f64::from(1 << 30) }
    }

    /// The kernel's tanh is off by 2^-20.
    fn tanh(self) -> Self {
        let steepest = 1.0 - self.nearest().tanh().powi(2);
        Self { value: self.value.tanh(), error: steepest * self.error + 1.0 / f64::from(1 << 20) }
    }

    fn relu(self) -> Self {
        Self { value: self.value.max(0.0), error: self.error }
    }
}
