//! All values of a model, as outputs of models with the same weights.

use super::{Model, Op, Values};
use crate::error::Error;
use crate::graph::{Graph, Port};

/// Some values of a model, as outputs of another model.
pub(crate) struct Shown {
    /// The model that has these outputs.
    pub model: Model,
    /// For each output, the name of the node that writes it and the kind of its operation.
    pub nodes: Vec<(String, &'static str)>,
}

impl Model {
    /// The model of one row whose outputs are these values of its [graph](Self::graph) for one row. A state is an
    /// input of it.
    ///
    /// ```
    /// use trefoil::{Device, Engine, Target, graph::Port, model::Model};
    /// # use trefoil::{Dtype, graph::{Expr, GraphBuilder}, model::Weights};
    /// # let model = Model::of_graphs(Weights::from_tensors([("one", vec![1], vec![1.0])])?, |rows| {
    /// #     let mut g = GraphBuilder::new();
    /// #     let x = g.input("x", Dtype::F32, &[rows, 3]);
    /// #     let square = g.map("square", Expr::arg(0) * Expr::arg(0), &[x]);
    /// #     let sum = g.map("sum", Expr::arg(0) + Expr::arg(1), &[square, x]);
    /// #     g.output("sum", sum);
    /// #     g.finish()
    /// # })?;
    /// let graph = model.graph(1)?;
    /// let value = graph.nodes[graph.find("square").unwrap().0].outputs[0];
    /// let cut = model.showing(vec![Port { name: "square".into(), value }])?;
    /// let engine = Engine::builder(&cut).on(&Device::open(Target::Cpu)?).build()?;
    /// assert_eq!(engine.output().to_string(), "`square` of f32[1,3]");
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a network of images; [`Error::Graph`] if a row would be larger than memory can be.
    pub fn showing(&self, outputs: Vec<Port>) -> Result<Self, Error> {
        let of = self.values()?;
        let graph = Graph { outputs, ..of.graph(1)? };
        let mut values = Values::fixed(graph)?;
        values.in_f32.clone_from(&of.in_f32);
        Self::of_values(values, self.weights().clone())
    }

    /// Models whose outputs together are all values of this model that are floats, in the order of their computation.
    /// For a model of values, each has outputs of up to `most_bytes` bytes, or a single larger one.
    pub(crate) fn shown(&self, most_bytes: usize) -> Result<Vec<Shown>, Error> {
        if let Ok(graph) = self.image_network() {
            let computed = graph.nodes[..=graph.output.0].iter().filter(|node| node.op != Op::Input);
            return computed
                .map(|node| {
                    Ok(Shown { model: self.features_at(&node.name)?, nodes: vec![(node.name.clone(), node.op.kind())] })
                })
                .collect();
        }
        let graph = self.graph(1)?;
        let (mut all, mut ports, mut nodes, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (node, value) in graph.nodes.iter().flat_map(|node| node.outputs.iter().map(move |&value| (node, value))) {
            let of = graph.value(value);
            if !of.dtype.is_float() {
                continue;
            }
            if bytes + of.bytes() > most_bytes && !ports.is_empty() {
                let (ports, nodes) = (std::mem::take(&mut ports), std::mem::take(&mut nodes));
                all.push(Shown { model: self.showing(ports)?, nodes });
                bytes = 0;
            }
            bytes += of.bytes();
            ports.push(Port { name: format!("{}:{}", node.name, value.0), value });
            nodes.push((node.name.clone(), node.op.kind()));
        }
        if !ports.is_empty() {
            all.push(Shown { model: self.showing(ports)?, nodes });
        }
        Ok(all)
    }
}
