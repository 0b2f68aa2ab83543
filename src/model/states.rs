//! Models with state: values of one batch that the next batch reads.

use super::{Model, Network};
use crate::error::Error;
use crate::tensor::RowPort;

impl Model {
    /// Makes the input `input` a state, which stays on the device: its value is the value of the output `output` in the
    /// previous batch. Requests neither write this input nor read this output. So recurrent networks continue a
    /// sequence, and networks for audio a stream.
    ///
    /// Each row of a batch continues with the state of the same row. Therefore a batch must have as many rows as one of
    /// the engine's sizes, and all batches must come from one caller and go to one device: the build of a
    /// [`Batcher`](crate::Batcher) or a [`Fleet`](crate::Fleet) fails. Batches are computed one after the other, on one
    /// compute stream; copies still overlap. Each engine has a state of its own, which is zeros at first, see
    /// [`Engine::reset_states`](crate::Engine::reset_states), [`Engine::read_state`](crate::Engine::read_state) and
    /// [`Engine::write_state`](crate::Engine::write_state).
    ///
    /// ```
    /// use trefoil::{Device, Dtype, Engine, Target, graph::{Expr, GraphBuilder}, model::{Model, Weights}};
    /// let model = Model::of_graphs(Weights::from_tensors::<String>([])?, |rows| {
    ///     let mut g = GraphBuilder::new();
    ///     let [x, before] = ["x", "before"].map(|name| g.input(name, Dtype::F32, &[rows, 1]));
    ///     let sum = g.map("add", Expr::arg(0) + Expr::arg(1), &[x, before]);
    ///     g.output("sum", sum);
    ///     g.output("after", sum);
    ///     g.finish()
    /// })?;
    /// let model = model.with_state("before", "after")?;
    /// let engine = Engine::builder(&model).on(&Device::open(Target::Cpu)?).build()?;
    /// for (x, sum) in [(1.0, 1.0), (2.0, 3.0), (4.0, 7.0)] {
    ///     let mut batch = engine.acquire()?;
    ///     batch.port_mut::<f32>(0, "x")?.fill(x);
    ///     assert_eq!(batch.submit(1)?.wait()?.port::<f32>(0, "sum")?, [sum]);
    /// }
    /// assert_eq!(engine.read_state::<f32>("before")?, [7.0]);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] for an input or an output that the model does not have, or that is its only one; for an input
    /// and an output of different types or dimensions; for an input that rows may [pad](Model::padded).
    /// [`Error::Unsupported`] for a network of images.
    pub fn with_state(&self, input: &str, output: &str) -> Result<Self, Error> {
        match self.network() {
            Network::Values(values) => {
                Ok(self.with_values(values.with_state(input, output)?.into(), self.weights().clone()))
            }
            Network::Images(_) => Err(Error::Unsupported {
                what: format!("`{}`, a network of images, with a state", self.name()),
                instead: "build it as a graph of values".into(),
            }),
        }
    }

    /// An error for a model with states, where rows have to be everything that the model reads.
    pub(crate) fn refuse_states(&self, what: &str) -> Result<(), Error> {
        match self.states() {
            [] => Ok(()),
            _ => Err(Error::Unsupported {
                what: format!("{what} a model with state"),
                instead: "take the model before `with_state`, whose rows have the state".into(),
            }),
        }
    }

    /// The states: for each, the port of a row that has nothing else.
    pub(crate) fn states(&self) -> &[RowPort] {
        match self.network() {
            Network::Values(values) => values.states(),
            Network::Images(_) => &[],
        }
    }
}
