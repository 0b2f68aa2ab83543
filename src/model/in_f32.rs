//! Nodes of a model of values that are computed in f32 on every device.

use std::collections::BTreeSet;

use super::names::nearest;
use super::{Model, Network, Values};
use crate::error::Error;

impl Model {
    /// The model with exactly these nodes computed in f32 on every device. A GPU computes the layers of a model of
    /// values in f16 or bf16 ([`Precision`](crate::Precision)); nodes whose numbers f16 does not hold, which
    /// [`Model::audit`] finds, are computed by loops in f32 instead, which takes longer.
    ///
    /// ```
    /// # use trefoil::{Dtype, graph::{Contract, GraphBuilder, Op}, model::{Model, Weights}};
    /// # let weights = Weights::from_tensors([("w", vec![2, 2], vec![3e5, 0.0, 0.0, 1.0])])?;
    /// # let model = Model::of_graphs(weights, |rows| {
    /// #     let mut g = GraphBuilder::new();
    /// #     let (x, w) = (g.input("x", Dtype::F32, &[rows, 2]), g.weight("w", Dtype::F32, &[2, 2]));
    /// #     let y = g.node("product", Op::Contract(Contract::matmul(2, 2)), &[x, w]);
    /// #     g.output("y", y);
    /// #     g.finish()
    /// # })?;
    /// let model = model.with_f32(["product"])?;
    /// assert!(model.nodes_in_f32()?.contains("product"));
    /// assert!(model.with_f32(["prodct"]).unwrap_err().to_string().contains("`product`"));
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] for a name that no node of its [graph](Self::graph) has; [`Error::Unsupported`] for a network
    /// of images.
    pub fn with_f32<N: AsRef<str>>(&self, nodes: impl IntoIterator<Item = N>) -> Result<Self, Error> {
        let (mut values, graph) = (Values::clone(self.values()?), self.graph(1)?);
        values.in_f32.clear();
        for name in nodes {
            let name = name.as_ref();
            if graph.find(name).is_none() {
                let near = nearest(name, graph.nodes.iter().map(|node| node.name.as_str()), 3);
                let near = if near.is_empty() { String::new() } else { format!(": {}", near.join(", ")) };
                return Err(Error::option("with_f32", format_args!("`{name}`"), format!("a node's name{near}")));
            }
            values.in_f32.insert(name.to_owned());
        }
        Ok(self.with_values(values.into(), self.weights().clone()))
    }

    /// The names of the nodes that are computed in f32 on every device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a network of images.
    pub fn nodes_in_f32(&self) -> Result<&BTreeSet<String>, Error> {
        Ok(self.values()?.in_f32())
    }

    /// The network of a model of values; an error for a network of images.
    pub(crate) fn values(&self) -> Result<&Values, Error> {
        match self.network() {
            Network::Values(values) => Ok(values),
            Network::Images(_) => Err(Error::Unsupported {
                what: format!("`{}`, a network of images, as a graph of values", self.name()),
                instead: "read its graph of images".into(),
            }),
        }
    }
}
