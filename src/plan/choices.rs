//! Kernels that the program chooses itself.

use std::collections::BTreeMap;

use super::Kernel;

/// Kernels by step name, which overrule the planner's choice.
///
/// ```
/// use trefoil::plan::{Choices, ConvTile, Kernel, Limits, Request, plan};
/// # use trefoil::{InputFormat, OutputKind, model::{Preprocessing, architecture, images::Network}};
/// # let graph = Network::of(&architecture("resnet50", 1000, None)?)?;
/// # let (limits, preprocessing) = (Limits::h200(), &Preprocessing::new(graph.input));
/// # let (batch, input, output) = (32, InputFormat::U8Nhwc, OutputKind::Logits);
/// let kernel = Kernel::Sm80Gemm(ConvTile { m: 128, n: 64 });
/// let choices = Choices::from([("layer2.0.conv2".to_string(), kernel)]);
/// let plan = plan(&graph, &Request { limits: &limits, batch, input, preprocessing, output, choices: &choices })?;
/// assert!(plan.steps.iter().any(|step| step.name == "layer2.0.conv2" && step.kernel == kernel));
/// # Ok::<(), trefoil::Error>(())
/// ```
pub type Choices = BTreeMap<String, Kernel>;
