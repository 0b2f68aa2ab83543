//! Finds the first node of a model whose value differs, by cutting the model at one node after the other.

use std::collections::HashSet;

use anyhow::Result;
use trefoil::graph::{Graph, NodeId, Origin, Port, ValueId};
use trefoil::model::{Model, images};
use trefoil::{Device, Engine, OutputKind};

use crate::cli::Kernels;
use crate::ports::{Inputs, Results};
use crate::setup;

/// A place where a model can be cut.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The node's name.
    pub name: String,
    /// The kind of the node's operation.
    pub kind: &'static str,
    /// The values that the node writes, in a graph of values; empty in a network of images.
    outputs: Vec<Port>,
}

impl Cut {
    /// The model whose result is the value that the node writes.
    pub fn model(&self, of: &Model) -> Result<Model> {
        if of.image_network().is_ok() {
            return Ok(of.features_at(&self.name)?);
        }
        Ok(of.showing(self.outputs.clone())?)
    }
}

/// The nodes that these outputs depend on, in an order of computation.
pub fn cuts(model: &Model, outputs: &[&str]) -> Result<Vec<Cut>> {
    if let Ok(graph) = model.image_network() {
        let computed = graph.nodes[..=graph.output.0].iter().filter(|node| node.op != images::Op::Input);
        return Ok(computed
            .map(|node| Cut { name: node.name.clone(), kind: node.op.kind(), outputs: vec![] })
            .collect());
    }
    let graph = model.graph(1)?;
    let needed = needed(&graph, outputs);
    let nodes = graph.nodes.iter().enumerate().filter(|(index, _)| needed.contains(&NodeId(*index)));
    let cut = |(_, node): (usize, &trefoil::graph::Node)| {
        let port = |(index, &value): (usize, &ValueId)| Port { name: format!("{}:{index}", node.name), value };
        let outputs = node.outputs.iter().enumerate().map(port).collect();
        Cut { name: node.name.clone(), kind: node.op.kind(), outputs }
    };
    Ok(nodes.map(cut).collect())
}

/// The nodes that these outputs of a graph depend on.
fn needed(graph: &Graph, outputs: &[&str]) -> HashSet<NodeId> {
    let named = graph.outputs.iter().filter(|port| outputs.contains(&&port.name[..]));
    let mut values: Vec<_> = named.map(|port| port.value).collect();
    let mut nodes = HashSet::new();
    while let Some(value) = values.pop() {
        if let Origin::Node(node, _) = graph.values[value.0].origin
            && nodes.insert(node)
        {
            values.extend(graph.nodes[node.0].inputs.iter().flatten());
        }
    }
    nodes
}

/// Finds the first cut for which `find` returns something, by bisection; `None` if it returns nothing for the last one.
pub fn first<T>(cuts: &[Cut], mut find: impl FnMut(&Cut) -> Result<Option<T>>) -> Result<Option<(&Cut, T)>> {
    let Some(mut found) = cuts.last().map(&mut find).transpose()?.flatten() else { return Ok(None) };
    let (mut low, mut high) = (0, cuts.len() - 1);
    while low < high {
        let middle = low + (high - low) / 2;
        match find(&cuts[middle])? {
            Some(earlier) => (high, found) = (middle, earlier),
            None => low = middle + 1,
        }
    }
    Ok(Some((&cuts[high], found)))
}

/// The results of a cut model for one of the rows, on a device.
pub fn one_row(cut: &Model, device: &Device, inputs: &Inputs, row: usize, kernels: Kernels) -> Result<Results> {
    let builder = Engine::builder(cut).on(device).batch(1).slots(1).staging(1).results(1).output(OutputKind::Features);
    let engine = setup::tuned(builder, kernels).build()?;
    let mut batch = engine.acquire()?;
    inputs.fill(&mut batch, 0, row)?;
    let mut results = Results::of(engine.output());
    results.add(&batch.submit(1)?.wait()?);
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{PrecisionArg, Tune};
    use trefoil::graph::{Binary, Contract, Expr, GraphBuilder, Op};
    use trefoil::model::Weights;
    use trefoil::{Dtype, Target};

    const KERNELS: Kernels = Kernels { tune: Tune::Off, lanes: None, precision: PrecisionArg::Auto };

    /// Two products of tokens, the second with this entry in its matrix, and a branch that is used by neither.
    fn network(entry: f32) -> Model {
        let matrix = |entry: f32| vec![entry, 0.5, -1.0, 2.0];
        let tensors = [("first", 1.0), ("second", entry)].map(|(name, entry)| (name, vec![2, 2], matrix(entry)));
        Model::of_graphs(Weights::from_tensors(tensors).unwrap(), |rows| {
            let mut g = GraphBuilder::new();
            let x = g.input("x", Dtype::F32, &[rows, 3, 2]);
            let [first, second] = ["first", "second"].map(|name| g.weight(name, Dtype::F32, &[2, 2]));
            let apart = g.map("apart", Expr::arg(0) * Expr::arg(0), &[x]);
            let y = g.node("one", Op::Contract(Contract::matmul(3, 2)), &[x, first]);
            let y = g.map("relu", Expr::arg(0).binary(Binary::Max, Expr::float(Dtype::F32, 0.0)), &[y]);
            let y = g.node("two", Op::Contract(Contract::matmul(3, 2)), &[y, second]);
            let y = g.node("turned", Op::Transpose(vec![0, 2, 1]), &[y]);
            let y = g.map("half", Expr::arg(0).cast(Dtype::F16), &[y]);
            g.output("apart", apart);
            g.output("y", y);
            g.finish()
        })
        .unwrap()
    }

    /// A model with another matrix stands for a device that computes one product wrongly.
    #[test]
    fn the_first_node_that_differs_is_named() {
        let (right, wrong, cpu) = (network(1.0), network(1.5), Device::open(Target::Cpu).unwrap());
        let engine = Engine::builder(&right).on(&cpu).build().unwrap();
        let inputs = Inputs::open(engine.input(), &[], 4).unwrap();
        let cuts = cuts(&right, &["y"]).unwrap();
        assert!(cuts.iter().any(|cut| cut.name == "one") && cuts.iter().all(|cut| cut.name != "apart"), "{cuts:?}");
        let differs = |wrong: &Model, cut: &Cut| {
            let [a, b] = [&right, wrong]
                .map(|model| one_row(&cut.model(model).unwrap(), &cpu, &inputs, 2, KERNELS).unwrap().ports.remove(0));
            Ok((a.1 != b.1).then_some(a.0))
        };
        let (cut, port) = first(&cuts, |cut| differs(&wrong, cut)).unwrap().expect("they differ");
        assert_eq!((&cut.name[..], cut.kind, &port.dims[..]), ("two", "contract", &[1, 3, 2][..]));
        assert!(first(&cuts, |cut| differs(&right, cut)).unwrap().is_none());
    }

    /// Networks of images are cut at their nodes, too.
    #[test]
    fn networks_of_images_are_cut() {
        let model = Model::open("weights/convnet28").unwrap();
        let cuts = cuts(&model, &["logits"]).unwrap();
        let cpu = Device::open(Target::Cpu).unwrap();
        let engine = Engine::builder(&model).on(&cpu).build().unwrap();
        let inputs = Inputs::open(engine.input(), &[], 1).unwrap();
        let last = one_row(&cuts[cuts.len() - 1].model(&model).unwrap(), &cpu, &inputs, 0, KERNELS).unwrap();
        assert_eq!(last.ports[0].0.elems(), model.classes());
        let behind = |cut: &Cut| cuts[3..].iter().any(|other| other.name == cut.name);
        let (cut, ()) = first(&cuts, |cut| Ok(behind(cut).then_some(()))).unwrap().expect("the last is behind");
        assert_eq!(cut.name, cuts[3].name);
    }
}
