//! `trefoil check`: runs the same rows on the CPU and on another device, and says where the results differ.

use std::io::{self, Write};

use anyhow::Result;
use clap::Args;
use trefoil::model::Model;
use trefoil::plan::Plan;
use trefoil::{Device, Dtype, OutputKind, RowPort, Target};

use crate::cli::{self, Kernels, PrecisionArg};
use crate::feed::Feed;
use crate::ports::{Inputs, Results, numbers, short, stream};
use crate::search::{self, Cut};
use crate::table::Column::{Figure, Text, Word};
use crate::table::Table;
use crate::{Outcome, out, report, setup, stop};

/// Arguments of `check`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  trefoil check network.onnx --rows 8
  trefoil check bert.onnx --size sequence=128 --input input_ids=ids.npy --tolerance 1e-2

A number may differ from the CPU's by the tolerance times the largest number that the CPU gives for its port in all rows. \
The default tolerance depends on the type: 1e-9 for f64, 1e-2 for f16, 5e-2 for bf16, 1e-3 for f32, and 0 for integers and \
bools; for f32 it is that of f16 or bf16 if the device's plan has values in that type, as for layers on a GPU. NaN and \
infinities must be in the same places. The CPU computes in f32, whatever --precision is for the device.

If a number differs by more (exit code 2), the model is cut at one node after the other, by bisection, and the command \
names the first node whose own value differs by more.")]
pub struct CheckArgs {
    #[command(flatten)]
    feed: Feed,
    /// The device that is compared with the CPU: auto (the first GPU) or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Target,
    /// Largest difference of a number that is allowed, as a share of the largest number of its port [default: by type]
    #[arg(long, value_name = "PART", value_parser = tolerance)]
    tolerance: Option<f64>,
    #[command(flatten)]
    pub kernels: Kernels,
}

pub fn run(args: &CheckArgs) -> Result<Outcome> {
    if args.feed.at.has_several_dims() {
        return Err(cli::wrong(&["check"], "--size: give one size to check at".into()).into());
    }
    let (model, path) = args.feed.open()?;
    let device = setup::open_device(args.device)?;
    if setup::is_cpu(&device) {
        let text = "error: nothing to compare the CPU with: `trefoil doctor` says which GPUs are there";
        writeln!(io::stderr(), "{text}")?;
        return Ok(Outcome::NothingDone);
    }
    let cpu = Device::open(Target::Cpu)?;
    let on_cpu = Kernels { precision: PrecisionArg::F32, ..args.kernels };
    let compute = |device: &Device, kernels| -> Result<(Inputs, Results, Vec<Plan>)> {
        let (engine, mut all) = args.feed.engine(&model, device, OutputKind::Logits, kernels)?;
        let rows = all.swap_remove(0);
        let mut results = Results::of(engine.output());
        stream(&engine, &rows, |output| results.add(output))?;
        Ok((rows.1, results, engine.plans().to_vec()))
    };
    let ((inputs, expected, _), (_, found, plans)) = (compute(&cpu, on_cpu)?, compute(&device, args.kernels)?);
    let mut out = out::stdout();
    writeln!(out, "model   {} from {}", model.name(), report::path(&path))?;
    writeln!(out, "device  {}", setup::describe(device.info()))?;
    for line in inputs.lines() {
        writeln!(out, "input   {}", report::message(&line))?;
    }
    writeln!(out, "rows    {}\n", inputs.rows())?;
    let limit = Limit { tolerance: args.tolerance, of_f32: of_f32(&plans) };
    let differences = limit.compare(&expected, &found);
    print(&differences)?;
    let Some(worst) = differences.iter().find(|difference| difference.is_beyond()) else {
        return Ok(Outcome::AllGood);
    };
    let row = worst.at[0];
    let differing: Vec<&str> = differences.iter().filter(|one| one.is_beyond()).map(|one| &*one.port.name).collect();
    name_first_node(&model, &differing, |cut| {
        stop::check()?;
        let one = |device, kernels| search::one_row(cut, device, &inputs, row, kernels);
        let (expected, found) = (one(&cpu, on_cpu)?, one(&device, args.kernels)?);
        Ok(limit.compare(&expected, &found).into_iter().find(Difference::is_beyond))
    })?;
    Ok(Outcome::SomeFailed)
}

/// Prints the name of the first node of a model whose value differs.
fn name_first_node(
    model: &Model,
    outputs: &[&str],
    mut differs: impl FnMut(&Model) -> Result<Option<Difference>>,
) -> Result<()> {
    let mut out = out::stdout();
    let said = match search::first(&search::cuts(model, outputs)?, |cut| differs(&cut.model(model)?))? {
        Some((Cut { name, kind, .. }, found)) => {
            format!("first node that differs: `{name}` ({kind}), by {}, {}", short(found.absolute), found.place())
        }
        None => "no node differs if the model is cut behind it: the difference is in nodes that are computed together"
            .into(),
    };
    writeln!(out, "\n{}", report::message(&said))?;
    Ok(())
}

/// The allowed difference of results.
struct Limit {
    /// The limit as a part of the largest number; `None` for limits by type.
    tolerance: Option<f64>,
    /// The limit of f32 where limits are by type.
    of_f32: f64,
}

/// The limit of f32: that of the type with the fewest bits among the values of the plans.
fn of_f32(plans: &[Plan]) -> f64 {
    let types = plans.iter().flat_map(|plan| &plan.tensors).map(|tensor| tensor.dtype);
    types.filter(|dtype| dtype.is_float() && *dtype != Dtype::F64).map(by_type).fold(OF_F32, f64::max)
}

/// The limit of f32 where no value is of a type with fewer bits.
const OF_F32: f64 = 1e-3;

/// The limit of a type, as a part of the largest number.
const fn by_type(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F64 => 1e-9,
        Dtype::F16 => 1e-2,
        Dtype::F32 => OF_F32,
        Dtype::Bf16 => 5e-2,
        _ => 0.0,
    }
}

/// The place where the results of a port differ the most.
struct Difference {
    port: RowPort,
    /// The absolute difference; NaN if it has no value, as of infinity and infinity with another sign or NaN.
    absolute: f64,
    /// The difference as a part of the largest number of the port.
    relative: f64,
    tolerance: f64,
    /// The row, then the index along each axis.
    at: Vec<usize>,
    /// The number of the CPU at that place, and that of the other device.
    numbers: [f64; 2],
}

impl Limit {
    fn compare(&self, expected: &Results, found: &Results) -> Vec<Difference> {
        let both = expected.ports.iter().zip(&found.ports);
        both.map(|((port, expected), (_, found))| Difference::of(port, [expected, found], self.of(port.dtype)))
            .collect()
    }

    fn of(&self, dtype: Dtype) -> f64 {
        self.tolerance.unwrap_or_else(|| if dtype == Dtype::F32 { self.of_f32 } else { by_type(dtype) })
    }
}

impl Difference {
    fn of(port: &RowPort, [expected, found]: [&[u8]; 2], tolerance: f64) -> Self {
        let all = |bytes| numbers(port.dtype, bytes);
        let largest = all(expected).filter(|number| number.is_finite()).map(f64::abs).fold(0.0, f64::max);
        let apart = |(a, b): (f64, f64)| if a == b || a.is_nan() && b.is_nan() { 0.0 } else { (a - b).abs() };
        // An infinite difference, or one that is NaN, counts as the largest.
        let order = |number: f64| if number.is_nan() { f64::INFINITY } else { number };
        let (mut index, mut most) = (0, 0.0);
        for (place, apart) in all(expected).zip(all(found)).map(apart).enumerate() {
            if order(apart) > order(most) {
                (index, most) = (place, apart);
            }
        }
        let at = |bytes| all(bytes).nth(index).unwrap_or(0.0);
        Self {
            absolute: most,
            relative: if most == 0.0 { 0.0 } else { most / largest },
            tolerance,
            at: place(port, index),
            numbers: [at(expected), at(found)],
            port: port.clone(),
        }
    }

    /// Whether the difference is beyond its limit; NaN is.
    fn is_beyond(&self) -> bool {
        self.relative.is_nan() || self.relative > self.tolerance
    }

    /// Describes the place and both numbers.
    fn place(&self) -> String {
        let [expected, found] = self.numbers.map(short);
        let at: Vec<String> = self.at.iter().map(usize::to_string).collect();
        format!("at [{}]: {found}, on the CPU {expected}", at.join(","))
    }
}

/// The row, then the index along each axis, of an element.
fn place(port: &RowPort, mut index: usize) -> Vec<usize> {
    let mut at = vec![0; port.dims.len() + 1];
    for (to, &dim) in at[1..].iter_mut().zip(&port.dims).rev() {
        (*to, index) = (index % dim, index / dim);
    }
    at[0] = index;
    at
}

fn print(differences: &[Difference]) -> Result<()> {
    let mut out = out::stdout();
    let columns = [Text("output"), Figure("absolute"), Figure("relative"), Figure("tolerance"), Word("")];
    let mut table = Table::new(&columns);
    for one in differences {
        let [absolute, relative, tolerance] = [one.absolute, one.relative, one.tolerance].map(short);
        let said = if one.is_beyond() { "beyond it" } else { "ok" };
        table.row([one.port.name.to_string(), absolute, relative, tolerance, said.to_owned()]);
        if one.absolute != 0.0 {
            table.line(&format!("{} {}", one.port.dtype, one.place()));
        }
    }
    Ok(table.print(&mut out)?)
}

/// Parses a part of the largest number, from 0 to 1000.
pub fn tolerance(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|part| (0.0..=1e3).contains(part));
    number.ok_or_else(|| "expected a number from 0 to 1000".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil::plan::{self, Choices, Limits, Request};
    use trefoil::{Engine, InputFormat, Precision, RowSpec};

    fn difference(dims: &[usize], expected: &[f32], found: &[f32]) -> Difference {
        let spec = RowSpec::new([("x", Dtype::F32, dims.to_vec())]);
        Difference::of(&spec.ports()[0], [expected, found].map(bytemuck::cast_slice), 1e-3)
    }

    #[test]
    fn the_largest_difference_is_found_and_measured_by_the_largest_number() {
        let expected = [0.0, 1.0, -4.0, 2.0, 0.0, 0.0, 0.0, 0.5];
        let mut found = expected;
        (found[1], found[6]) = (1.001, 0.004);
        let one = difference(&[2, 2], &expected, &found);
        assert_eq!((&one.at[..], one.numbers[0]), (&[1, 1, 0][..], 0.0));
        assert!((one.absolute - 0.004).abs() < 1e-9 && (one.relative - 1e-3).abs() < 1e-9);
        found[6] = 0.005;
        assert!(difference(&[2, 2], &expected, &found).is_beyond());
        assert!(!difference(&[2, 2], &expected, &expected).is_beyond());
    }

    #[test]
    fn what_is_not_finite_has_to_be_the_same() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        assert!(!difference(&[3], &[nan, inf, 1.0], &[nan, inf, 1.0]).is_beyond());
        for found in [[nan, 5.0, 1.0], [nan, -inf, 1.0], [0.0, inf, 1.0], [nan, inf, nan]] {
            assert!(difference(&[3], &[nan, inf, 1.0], &found).is_beyond(), "{found:?}");
        }
        assert!(difference(&[1], &[0.0], &[1e-30]).is_beyond());
    }

    /// Layers in f16 give results in f32 that have the precision of f16.
    #[test]
    fn the_tolerance_is_of_what_the_plan_rounds_to() {
        let model = Model::open("weights/convnet28").unwrap();
        let plan_on = |limits: Limits| {
            let request = Request {
                limits: &limits,
                batch: 1,
                input: InputFormat::U8Nhwc,
                preprocessing: model.preprocessing().unwrap(),
                output: OutputKind::Logits,
                choices: &Choices::new(),
            };
            plan::plan(model.image_network().unwrap(), &request).unwrap()
        };
        let of_f32_on = |limits| of_f32(&[plan_on(limits)]);
        assert_eq!([Limits::h200(), Limits::a100(), Limits::cpu(2)].map(of_f32_on), [1e-2, 1e-2, 1e-3]);
        let cpu = Device::open(Target::Cpu).unwrap();
        let engine = Engine::builder(&model).on(&cpu).precision(Precision::Bf16).build().unwrap();
        assert_eq!(of_f32(engine.plans()), 5e-2);
        let of = |tolerance, dtype| Limit { tolerance, of_f32: 5e-2 }.of(dtype);
        assert_eq!([of(None, Dtype::F32), of(None, Dtype::F16), of(Some(1e-4), Dtype::F32)], [5e-2, 1e-2, 1e-4]);
    }
}
