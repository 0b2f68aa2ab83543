//! A plan as a table: what runs, how, how much work it is, and where its result lies.

use std::fmt;

use super::{Kernel, Place, Plan, Step, StepOp, Tensor};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan for {}, batch {}, input {}, output {:?}", self.limits, self.batch, self.input, self.output)?;
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
            let tensor = &self.tensors[step.output.0];
            writeln!(
                f,
                "{index:>3}  {:<28} {label:<wide$} {:<27} {:>15} {:>10.2} {:>10.1}  {:<12}{}",
                step.name,
                self.kernel_name(step.kernel, &step.op),
                tensor.shape.to_string(),
                step.flops as f64 / 1e6,
                step.bytes as f64 / 1024.0,
                place(tensor),
                self.lane_of(step)
            )?;
            if let (StepOp::Chain { next, .. }, Some(also)) = (&step.op, step.also) {
                // The second result has a row of its own, with what is not the step's.
                let (tensor, name) = (&self.tensors[also.0], format!("> {}", next.name));
                let (shape, blank) = (tensor.shape.to_string(), wide + 28);
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
        Place::Input => "input".into(),
        Place::Output => "output".into(),
        Place::Arena(offset) => format!("{offset:#x}"),
    }
}

impl StepOp {
    /// A short name of the operation; `inputs` tells a fused residual.
    pub fn label(&self, inputs: usize) -> String {
        match self {
            Self::Normalize { .. } => "normalize".into(),
            Self::Stem(stem) => {
                let [r, s] = stem.conv.window.size;
                let max = if stem.pool.is_some() { "+max" } else { "" };
                format!("stem{r}x{s}{}{max}", suffix(stem.conv.activation))
            }
            Self::Conv(conv) => {
                let [r, s] = conv.window.size;
                let residual = if inputs > 1 { "+res" } else { "" };
                format!("conv{r}x{s}{residual}{}", suffix(conv.activation))
            }
            Self::ConvSum { conv, joined } => {
                let ([r, s], [joined_r, joined_s]) = (conv.window.size, joined.conv.window.size);
                format!("conv{r}x{s}+{joined_r}x{joined_s}{}", suffix(conv.activation))
            }
            Self::Chain { conv, joined, next } => {
                let first = match joined {
                    Some(joined) => Self::ConvSum { conv: conv.clone(), joined: joined.clone() },
                    None => Self::Conv(conv.clone()),
                };
                format!("{}>1x1{}", first.label(inputs), suffix(next.conv.activation))
            }
            Self::Depthwise(conv) => {
                let [r, s] = conv.window.size;
                format!("dw{r}x{s}{}", suffix(conv.activation))
            }
            Self::ExpandDepthwise { conv, .. } => {
                let [r, s] = conv.window.size;
                format!("1x1+dw{r}x{s}{}", suffix(conv.activation))
            }
            Self::MaxPool(_) => "max-pool".into(),
            Self::AvgPool(_) => "avg-pool".into(),
            Self::GlobalAvgPool => "global-pool".into(),
            Self::Linear(_) => "linear".into(),
            Self::Add(activation) => format!("{}{}", if inputs > 1 { "add" } else { "act" }, suffix(*activation)),
            Self::Tail(tail) => format!("mean+fc+{}", tail.rows()),
            Self::Emit(output) => format!("{output:?}").to_lowercase(),
        }
    }
}

fn suffix(activation: crate::tensor::Activation) -> String {
    match activation {
        crate::tensor::Activation::None => String::new(),
        other => format!("+{other}"),
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
        let stem = match op {
            StepOp::Normalize { .. } => "normalize",
            StepOp::Stem(_) => "stem",
            StepOp::Conv(_) | StepOp::ConvSum { .. } => "conv2d_fprop",
            StepOp::Chain { .. } => "conv2d_chain",
            StepOp::Depthwise(_) | StepOp::ExpandDepthwise { .. } => "conv2d_depthwise",
            StepOp::MaxPool(_) | StepOp::AvgPool(_) => "pool2d",
            StepOp::GlobalAvgPool => "global_avg_pool",
            StepOp::Linear(_) => "linear",
            StepOp::Add(_) => "add",
            StepOp::Tail(_) => "tail",
            StepOp::Emit(_) => "emit",
        };
        match kernel {
            Kernel::Cpu => format!("cpu {stem}"),
            Kernel::Sm80 => format!("sm80 {stem}"),
            Kernel::Sm80Gemm(tile) => format!("sm80 {stem} {tile}"),
            Kernel::Sm90Conv { tile, cluster: 1 } => format!("sm90 {stem} {tile}"),
            Kernel::Sm90Conv { tile, cluster } => format!("sm90 {stem} {tile}/{cluster}"),
            Kernel::Joined => format!("joined {stem}"),
            Kernel::Sm90Stem(tile) => format!("sm90 {stem} {tile}"),
            Kernel::Sm90Halo => format!("sm90 {stem} halo"),
            Kernel::Sm90Chain(_)
            | Kernel::Sm90Depthwise(_)
            | Kernel::Sm90Expand(_)
            | Kernel::Sm90Linear(_)
            | Kernel::Sm90Tail(_) => kernel.to_string(),
        }
    }
}
