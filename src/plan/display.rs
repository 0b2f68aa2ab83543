//! A plan as a table of its steps, with kernels, work and the places of results.

use std::fmt;
use std::iter;

use super::{Kernel, Place, Plan, Step, StepOp, Tensor};

/// The texts that [`Plan`] prints, for programs that lay out a table themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanTable {
    /// The line above the table: the hardware, the batch and the formats of the rows.
    pub title: String,
    /// The heads of the columns. The last one is empty if there is a single lane.
    pub heads: [&'static str; 9],
    /// A row for each step, and one for the second result of a chain.
    pub rows: Vec<[String; 9]>,
    /// The line below the table: the total work and memory.
    pub totals: String,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PlanTable { title, heads, rows, totals } = self.table();
        let wide = rows.iter().map(|row| row[2].len()).fold(16, usize::max);
        writeln!(f, "{title}")?;
        for [index, step, op, kernel, output, flops, bytes, place, lane] in
            iter::once(&heads.map(str::to_owned)).chain(&rows)
        {
            let line = format!(
                "{index:>3}  {step:<28} {op:<wide$} {kernel:<27} {output:>15} {flops:>10} {bytes:>10}  {place:<12} {lane}"
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        write!(f, "{totals}")
    }
}

impl Plan {
    /// The plan as texts.
    pub fn table(&self) -> PlanTable {
        let title =
            format!("plan for {}, batch {}, input {}, output {}", self.limits, self.batch, self.input, self.output);
        let has_lanes = self.lanes() > 1;
        let lane = if has_lanes { "lane" } else { "" };
        let heads = ["#", "step", "operation", "kernel", "output", "MFLOP", "KiB", "offset", lane];
        let rows = self.steps.iter().enumerate().flat_map(|(index, step)| self.rows(index, step, has_lanes)).collect();
        let total: u64 = self.steps.iter().map(|s| s.flops).sum();
        let bytes: u64 = self.steps.iter().map(|s| s.bytes).sum();
        let mib = |b: usize| b as f64 / (1 << 20) as f64;
        let totals = format!(
            "{} steps, {:.3} GFLOP and {:.1} MiB moved a run; arena {:.2} MiB ({:.2} MiB without reuse)",
            self.steps.len(),
            total as f64 / 1e9,
            mib(bytes as usize),
            mib(self.arena_bytes),
            mib(self.arena_bytes_without_reuse)
        );
        PlanTable { title, heads, rows, totals }
    }

    /// The row of a step. A chain has another row for its second result, with its name, dimensions and place only.
    fn rows(&self, index: usize, step: &Step, has_lanes: bool) -> Vec<[String; 9]> {
        let tensor = &self.tensors[step.outputs[0].0];
        let mut rows = vec![[
            index.to_string(),
            step.name.clone(),
            step.op.label(step.inputs.len()),
            self.kernel_name(step.kernel, &step.op),
            tensor.dims(),
            format!("{:.2}", step.flops as f64 / 1e6),
            format!("{:.1}", step.bytes as f64 / 1024.0),
            place(tensor),
            if has_lanes { lane_of(step) } else { String::new() },
        ]];
        if let (StepOp::Chain { next, .. }, [_, also]) = (&step.op, &step.outputs[..]) {
            let mut row = [const { String::new() }; 9];
            let tensor = &self.tensors[also.0];
            (row[1], row[4], row[7]) = (format!("> {}", next.name), tensor.dims(), place(tensor));
            rows.push(row);
        }
        rows
    }
}

/// The place of a tensor as text.
fn place(tensor: &Tensor) -> String {
    match tensor.place {
        Place::Input(0) => "input".into(),
        Place::Input(offset) => format!("input+{offset:#x}"),
        Place::Output(0) => "output".into(),
        Place::Output(offset) => format!("output+{offset:#x}"),
        Place::Constant(number) => format!("constant {number}"),
        Place::State(number) => format!("state {number}"),
        Place::Arena(offset) => format!("{offset:#x}"),
    }
}

impl Tensor {
    /// Dimensions as text: of one row of an image, or of a whole value.
    pub fn dims(&self) -> String {
        self.value.as_ref().map_or_else(|| self.shape.to_string(), ToString::to_string)
    }
}

impl Plan {
    /// A short name of a kernel.
    pub(crate) fn kernel_name(&self, kernel: Kernel, op: &StepOp) -> String {
        kernel.title(op.stem())
    }
}

/// The lane of a step and the steps that it waits for as text.
fn lane_of(Step { lane, after, .. }: &Step) -> String {
    let after: Vec<String> = after.iter().map(usize::to_string).collect();
    match &after[..] {
        [] => lane.to_string(),
        _ => format!("{lane} after {}", after.join(", ")),
    }
}
