//! The search for values of a row with numbers that are NaN or infinite.

use super::EngineBuilder;
use super::builder::{Member, Options};
use crate::device::Device;
use crate::error::Error;
use crate::exec;
use crate::plan::{Plan, StepOp};
use crate::tensor::{Dtype, OutputKind, Size};

/// A value with numbers that are NaN or infinite.
///
/// ```no_run
/// # use trefoil::{Engine, model::Model};
/// # let (model, row) = (Model::open("network.onnx")?, vec![0; 4]);
/// if let Some(first) = Engine::builder(&model).not_finite(&row)?.first() {
///     println!("{first}"); // `conv1` (conv) as conv3x3: f32[64,112,112], not finite: 12 of 802816, ...
/// }
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct NotFinite {
    /// The node that writes it.
    pub node: String,
    /// The operation of that node.
    pub kind: &'static str,
    /// The plan's step that computes the node.
    pub step: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// The value's dimensions.
    pub dims: Vec<usize>,
    /// How many of its numbers are not finite.
    pub count: usize,
    /// The first number that is not finite: its index among all numbers of the value, and the number itself.
    pub first: (usize, f64),
}

/// The most bytes of values that one engine hands out.
const MOST_BYTES: usize = 256 << 20;

impl EngineBuilder<'_> {
    /// Finds the values with NaN or infinity that an input row leads to, in the order of computation: the first one is
    /// where the problem begins. `row` is the bytes of an engine's input row. Engines that hand out some of the values
    /// at a time compute every value, on the builder's device and in its precision, at the sizes that the model was
    /// opened at. So nodes that one kernel would compute together are computed separately.
    ///
    /// # Errors
    /// As for [`EngineBuilder::build`]; [`Error::Option`] for a row of another length; [`Error::Unsupported`] for several
    /// models, and for one with state.
    pub fn not_finite(self, row: &[u8]) -> Result<Vec<NotFinite>, Error> {
        let [Member { model, .. }] = self.models[..] else {
            return Err(Error::Unsupported {
                what: "looking for values that are not finite in several models".into(),
                instead: "look in one after the other".into(),
            });
        };
        model.refuse_states("looking for values that are not finite in")?;
        let device = self.device_or_default()?;
        let mut all = Vec::new();
        for shown in model.shown(MOST_BYTES)? {
            let models = vec![Member { model: &shown.model, after: None }];
            let engine = EngineBuilder { models, options: self.options.for_one_row(&device) }.build()?;
            let mut batch = engine.acquire()?;
            engine.input().check(row)?;
            batch.row_mut(0).copy_from_slice(row);
            let output = batch.submit(1)?.wait()?;
            for (port, (node, kind)) in output.spec().ports().iter().zip(&shown.nodes) {
                if let Some((count, first)) = exec::not_finite(port.dtype, &output.row(0)[port.range()]) {
                    let (dtype, dims, step) = (port.dtype, port.dims.clone(), step_of(&engine.plans()[0], node));
                    all.push(NotFinite { node: node.clone(), kind, step, dtype, dims, count, first });
                }
            }
        }
        Ok(all)
    }
}

impl Options {
    /// These options for one row at a time on a device, with features as the output.
    fn for_one_row(&self, device: &Device) -> Self {
        let one = Some(1);
        Self {
            device: Some(device.clone()),
            sizes: Some(vec![Size::new(1)]),
            slots: one,
            staging: one,
            results: one,
            compute_streams: 1,
            output: OutputKind::Features,
            average: false,
            ..self.clone()
        }
    }
}

/// The label of the step that computes a node.
fn step_of(plan: &Plan, node: &str) -> String {
    let computes = |op: &StepOp| matches!(op, StepOp::Loop(of) if of.nodes.iter().any(|name| name == node));
    let step = plan.steps.iter().find(|step| step.name == node || computes(&step.op));
    step.map_or_else(|| node.to_owned(), |step| step.op.label(step.inputs.len()))
}

impl std::fmt::Display for NotFinite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { node, kind, step, dtype, dims, count, first: (index, number) } = self;
        let all: usize = dims.iter().product();
        write!(f, "`{node}` ({kind}) as {step}: {dtype}{dims:?}, not finite: {count} of {all}, ")?;
        write!(f, "the first is {number} at {index}")
    }
}
