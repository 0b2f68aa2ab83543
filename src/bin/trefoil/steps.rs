//! The steps of a plan, with their predicted and measured times and their rooflines.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;
use trefoil::StepTimes;
use trefoil::plan::{Plan, Rates, StepOp, TensorId};

use crate::table::Column::{Figure, Text, Word};
use crate::table::Table;
use crate::{out, report};

/// A plan with the times of its steps.
#[derive(Serialize)]
pub struct Steps {
    device: String,
    batch: usize,
    /// The rates from which rooflines are computed; `None` for a GPU whose rates are not known.
    rates: Option<RatesUsed>,
    steps: Vec<Row>,
    sum_of_times_us: Option<f64>,
    sum_of_rooflines_us: Option<f64>,
    /// The sum of times over the sum of rooflines.
    ratio: Option<f64>,
    /// Microseconds of a run of the whole graph without marks.
    graph_us: Option<f64>,
    /// The time of the whole graph over the sum of rooflines.
    graph_ratio: Option<f64>,
    /// Microseconds between two marks with nothing in between.
    mark_us: Option<f64>,
}

#[derive(Serialize)]
struct RatesUsed {
    tflops: f64,
    memory_gb_per_second: f64,
    /// The rate of the cache; `None` where it is not known.
    cache_gb_per_second: Option<f64>,
    clock_mhz: f64,
    source: &'static str,
}

/// One step of the plan.
#[derive(Serialize)]
struct Row {
    step: String,
    operation: String,
    kernel: String,
    /// Shape of the step's result.
    output: String,
    /// The second result of a chain.
    also: Option<Also>,
    flops: u64,
    bytes: u64,
    time_us: Option<f64>,
    tflops: Option<f64>,
    gb_per_second: Option<f64>,
    roofline: Option<RooflineUs>,
    /// The measured time over the roofline.
    ratio: Option<f64>,
    /// The time that the tile model predicts.
    predicted_us: Option<f64>,
    candidates: Vec<CandidateUs>,
}

#[derive(Serialize)]
struct Also {
    /// The node that computes this value.
    node: String,
    output: String,
}

#[derive(Serialize)]
struct RooflineUs {
    tensor_us: f64,
    memory_us: f64,
    cache_us: f64,
    launch_us: f64,
    us: f64,
    bound: &'static str,
}

#[derive(Serialize)]
struct CandidateUs {
    kernel: String,
    predicted_us: Option<f64>,
}

impl Steps {
    /// The steps of a plan that was not measured.
    pub fn planned(plan: &Plan) -> Self {
        Self::new(plan, None)
    }

    /// The steps of a measured plan.
    pub fn measured(times: &StepTimes) -> Self {
        Self::new(&times.plan, Some(times))
    }

    fn new(plan: &Plan, times: Option<&StepTimes>) -> Self {
        let rates = Rates::of(&plan.limits);
        let time = |step: usize| times.map(|times| times.steps[step]);
        let steps: Vec<Row> =
            (0..plan.steps.len()).map(|step| Row::new(plan, step, rates.as_ref(), time(step))).collect();
        let sum = |of: fn(&Row) -> Option<f64>| steps.iter().map(of).sum::<Option<f64>>();
        let (sum_of_times_us, sum_of_rooflines_us) =
            (sum(|row| row.time_us), sum(|row| row.roofline.as_ref().map(|f| f.us)));
        Self {
            device: plan.limits.to_string(),
            batch: plan.batch,
            rates: rates.map(|rates| RatesUsed {
                tflops: rates.flops / 1e12,
                memory_gb_per_second: rates.memory_bytes / 1e9,
                cache_gb_per_second: rates.cache_bytes.map(|rate| rate / 1e9),
                clock_mhz: rates.clock_hz / 1e6,
                source: rates.source,
            }),
            ratio: ratio(sum_of_times_us, sum_of_rooflines_us),
            sum_of_times_us,
            sum_of_rooflines_us,
            graph_us: times.map(|times| 1e6 * times.graph),
            graph_ratio: ratio(times.map(|times| 1e6 * times.graph), sum_of_rooflines_us),
            mark_us: times.map(|times| 1e6 * times.mark),
            steps,
        }
    }

    /// Prints the steps as a table.
    pub fn print(&self) -> Result<()> {
        let mut out = out::stdout();
        match &self.rates {
            Some(rates) => {
                let cache = rates.cache_gb_per_second.map(|rate| format!(", {:.1} TB/s of L2", rate / 1e3));
                writeln!(
                    out,
                    "rooflines at {:.0} TFLOP/s, {:.2} TB/s of memory{} ({}), and 2.5 us a launch",
                    rates.tflops,
                    rates.memory_gb_per_second / 1e3,
                    cache.unwrap_or_default(),
                    rates.source
                )?;
            }
            None => writeln!(out, "no rooflines: what {} does in a second is not known here", self.device)?,
        }
        let names = ["step", "operation", "kernel"].map(Text);
        let figures = ["us", "TFLOP/s", "GB/s", "roofline"].map(Figure);
        let of_roofline = [Word("bound"), Figure("ratio"), Figure("predicted")];
        let mut table = Table::new(&[&names[..], &figures, &of_roofline].concat());
        for row in &self.steps {
            let (roofline, bound) =
                row.roofline.as_ref().map_or((None, "-"), |roofline| (Some(roofline.us), roofline.bound));
            table.row([
                row.step.clone(),
                row.operation.clone(),
                row.kernel.clone(),
                figure(row.time_us, 2),
                figure(row.tflops, 1),
                figure(row.gb_per_second, 0),
                figure(roofline, 2),
                bound.to_owned(),
                figure(row.ratio, 2),
                figure(row.predicted_us, 2),
            ]);
        }
        table.print(&mut out)?;
        let sums = [self.sum_of_times_us, self.sum_of_rooflines_us].map(|sum| figure(sum, 1));
        writeln!(out, "sum of times {} us, of rooflines {} us: {}", sums[0], sums[1], figure(self.ratio, 3))?;
        if let (Some(graph), Some(mark)) = (self.graph_us, self.mark_us) {
            writeln!(
                out,
                "times are between events in the graph, {mark:.2} us of each the events' own; without them the graph takes \
                 {graph:.1} us: {}",
                figure(self.graph_ratio, 3)
            )?;
        }
        Ok(())
    }

    /// The candidates of each step that has several.
    pub fn print_candidates(&self) -> Result<()> {
        let mut out = out::stdout();
        for row in self.steps.iter().filter(|row| row.candidates.len() > 1) {
            let one = |candidate: &CandidateUs| match candidate.predicted_us {
                Some(us) => format!("{} {us:.2} us", candidate.kernel),
                None => candidate.kernel.clone(),
            };
            let candidates: Vec<String> = row.candidates.iter().map(one).collect();
            writeln!(out, "{}: {}", report::message(&row.step), candidates.join(", "))?;
        }
        Ok(())
    }
}

impl Row {
    fn new(plan: &Plan, index: usize, rates: Option<&Rates>, seconds: Option<f64>) -> Self {
        let step = &plan.steps[index];
        let roofline = rates.map(|rates| plan.roofline(index, rates)).map(|roofline| RooflineUs {
            tensor_us: 1e6 * roofline.tensor,
            memory_us: 1e6 * roofline.memory,
            cache_us: 1e6 * roofline.cache,
            launch_us: 1e6 * roofline.launch,
            us: 1e6 * roofline.seconds(),
            bound: roofline.bound(),
        });
        let time_us = seconds.map(|seconds| 1e6 * seconds);
        let us = |candidate: &trefoil::plan::Candidate| rates.map(|rates| 1e6 * candidate.seconds(rates));
        let candidates = plan.candidates(index);
        let shape = |id: TensorId| plan.tensors[id.0].dims();
        let also = match (&step.op, &step.outputs[..]) {
            (StepOp::Chain { next, .. }, &[_, id]) => Some(Also { node: next.name.clone(), output: shape(id) }),
            _ => None,
        };
        Self {
            step: step.name.clone(),
            operation: step.op.label(step.inputs.len()),
            kernel: step.kernel.to_string(),
            output: shape(step.outputs[0]),
            also,
            flops: step.flops,
            bytes: step.bytes,
            tflops: seconds.map(|seconds| step.flops as f64 / seconds / 1e12),
            gb_per_second: seconds.map(|seconds| step.bytes as f64 / seconds / 1e9),
            ratio: ratio(time_us, roofline.as_ref().map(|roofline| roofline.us)),
            predicted_us: plan.predicted(index).as_ref().and_then(us),
            candidates: candidates
                .iter()
                .map(|candidate| CandidateUs { kernel: candidate.kernel.to_string(), predicted_us: us(candidate) })
                .collect(),
            time_us,
            roofline,
        }
    }
}

fn ratio(time: Option<f64>, roofline: Option<f64>) -> Option<f64> {
    Some(time? / roofline?)
}

/// A number with this many digits, or a dash for `None`.
fn figure(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil::model::images::Network;
    use trefoil::model::{Preprocessing, architecture};
    use trefoil::plan::{Choices, Limits, Request, plan};
    use trefoil::{InputFormat, OutputKind};

    #[test]
    fn a_chain_has_both_results_in_text_and_json() {
        let graph = Network::of(&architecture("resnet50", 1000, None).unwrap()).unwrap();
        let (limits, choices, preprocessing) = (Limits::h200(), Choices::new(), &Preprocessing::new(graph.input));
        let (batch, input, output) = (128, InputFormat::U8Nhwc, OutputKind::Logits);
        let plan = plan(&graph, &Request { limits: &limits, batch, input, preprocessing, output, choices: &choices });
        let plan = plan.unwrap();
        let json = serde_json::to_value(Steps::planned(&plan)).unwrap();
        let rows = json["steps"].as_array().unwrap();
        let text = plan.to_string();
        let lines: Vec<&str> = text.lines().collect();
        let chains: Vec<_> = plan.steps.iter().zip(rows).filter(|(step, _)| step.outputs.len() > 1).collect();
        assert!(!chains.is_empty(), "{text}");
        for (step, row) in chains {
            let also = &row["also"];
            let (node, output) = (also["node"].as_str().unwrap(), also["output"].as_str().unwrap());
            let first = lines.iter().position(|line| line.contains(&format!("  {} ", step.name))).unwrap();
            let words: Vec<&str> = lines[first + 1].split_whitespace().collect();
            assert_eq!(words[..3], [">", node, output]);
            assert!(words[3].starts_with("0x") && !lines[first].contains(words[3]), "{text}");
            assert!(graph.find(node).is_some() && node != step.name, "{row}");
            assert!(lines[first].contains(row["output"].as_str().unwrap()) && row["output"] != output, "{row}");
        }
        assert!(rows[0]["also"].is_null() && rows[0]["output"] == "56x56x64", "{}", rows[0]);
    }
}
