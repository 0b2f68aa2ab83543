//! A plan as a table: what runs, how, how much work it is, and where its result lies.

use std::fmt;

use super::{Kernel, Place, Plan, Step, StepOp, Tensor};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan for {}, batch {}, input {}, output {}", self.limits, self.batch, self.input, self.output)?;
        let labels: Vec<String> = self.steps.iter().map(|step| step.op.label(step.inputs.len())).collect();
        let wide = labels.iter().map(String::len).fold(16, usize::max);
        writeln!(
            f,
            "{:>3}  {:<28} {:<wide$} {:<27} {:>15} {:>10} {:>10}  {:<12}{}",
            "#",
            "step",
            "operation",
            "kernel",
            "output",
            "MFLOP",
            "KiB",
            "offset",
            if self.lanes() > 1 { " lane" } else { "" }
        )?;
        for (index, (step, label)) in self.steps.iter().zip(&labels).enumerate() {
            let tensor = &self.tensors[step.outputs[0].0];
            writeln!(
                f,
                "{index:>3}  {:<28} {label:<wide$} {:<27} {:>15} {:>10.2} {:>10.1}  {:<12}{}",
                step.name,
                self.kernel_name(step.kernel, &step.op),
                tensor.dims(),
                step.flops as f64 / 1e6,
                step.bytes as f64 / 1024.0,
                place(tensor),
                self.lane_of(step)
            )?;
            if let (StepOp::Chain { next, .. }, [_, also]) = (&step.op, &step.outputs[..]) {
                // The second result has a row of its own, with what is not the step's.
                let (tensor, name) = (&self.tensors[also.0], format!("> {}", next.name));
                let (shape, blank) = (tensor.dims(), wide + 28);
                writeln!(f, "     {name:<28} {:blank$} {shape:>15} {:>21}  {}", "", "", place(tensor))?;
            }
        }
        let total: u64 = self.steps.iter().map(|s| s.flops).sum();
        let bytes: u64 = self.steps.iter().map(|s| s.bytes).sum();
        let mib = |b: usize| b as f64 / (1 << 20) as f64;
        write!(
            f,
            "{} steps, {:.3} GFLOP and {:.1} MiB moved a run; arena {:.2} MiB ({:.2} MiB without reuse)",
            self.steps.len(),
            total as f64 / 1e9,
            mib(bytes as usize),
            mib(self.arena_bytes),
            mib(self.arena_bytes_without_reuse)
        )
    }
}

/// Where a tensor lies.
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
    /// Its dimensions as text: of one row of an image, of a whole value.
    pub fn dims(&self) -> String {
        self.value.as_ref().map_or_else(|| self.shape.to_string(), ToString::to_string)
    }
}

impl Plan {
    /// A step's lane and the steps of others that it waits for, where there are several lanes.
    fn lane_of(&self, Step { lane, after, .. }: &Step) -> String {
        let after: Vec<String> = after.iter().map(usize::to_string).collect();
        match (self.lanes(), after.is_empty()) {
            (..=1, _) => String::new(),
            (_, true) => format!(" {lane}"),
            (_, false) => format!(" {lane} after {}", after.join(", ")),
        }
    }

    /// A short name of a kernel.
    pub(crate) fn kernel_name(&self, kernel: Kernel, op: &StepOp) -> String {
        kernel.title(op.stem())
    }
}
