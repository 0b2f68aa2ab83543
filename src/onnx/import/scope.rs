//! Which names are there where a node stands, and the nodes one after the other.

use std::collections::{HashMap, HashSet};

use super::call::Call;
use super::context::{Context, Item, Outcome};
use crate::error::Problem;
use crate::onnx::operators;
use crate::onnx::{AttributeValue, Function, Graph, Node, Opsets};

/// What holds for a graph and its bodies, or for one call of a function.
pub(in crate::onnx) struct Frame<'m> {
    pub opsets: &'m Opsets,
    /// Attributes that a function was called with.
    pub attributes: HashMap<&'m str, &'m AttributeValue>,
    /// Calls of functions around it.
    pub depth: usize,
}

/// The names of a graph, and those of the graphs around it.
pub(in crate::onnx) struct Scope<'s, 'm> {
    pub names: HashMap<&'m str, Item>,
    pub outer: Option<&'s Scope<'s, 'm>>,
    pub frame: &'s Frame<'m>,
}

/// Most functions that call one another, and bodies within bodies.
const DEPTH: usize = 32;

impl<'m> Scope<'_, 'm> {
    pub fn find(&self, name: &str) -> Option<&Item> {
        self.names.get(name).or_else(|| self.outer?.find(name))
    }

    fn depth(&self) -> usize {
        self.frame.depth + std::iter::successors(self.outer, |scope| scope.outer).count()
    }

    /// The nodes of a graph, each after those that it reads from.
    pub fn run(&mut self, cx: &mut Context<'m>, nodes: &'m [Node]) {
        for index in self.order(cx, nodes) {
            self.node(cx, &nodes[index]);
        }
    }

    /// Indices of nodes in an order in which each has its inputs; those in cycles are problems and left out.
    fn order(&self, cx: &mut Context<'m>, nodes: &'m [Node]) -> Vec<usize> {
        let writes = |index: usize| nodes[index].outputs.iter().map(String::as_str).filter(|name| !name.is_empty());
        let uses: Vec<HashSet<&str>> = nodes.iter().map(uses).collect();
        let mut missing: HashMap<&str, usize> = HashMap::new();
        (0..nodes.len()).flat_map(writes).for_each(|name| *missing.entry(name).or_default() += 1);
        let (mut order, mut left) = (Vec::with_capacity(nodes.len()), (0..nodes.len()).collect::<Vec<_>>());
        while !left.is_empty() {
            let before = left.len();
            left.retain(|&index| {
                let waits = uses[index].iter().any(|name| missing.get(name).is_some_and(|&count| count > 0));
                if !waits {
                    writes(index).for_each(|name| *missing.get_mut(name).expect("it was counted") -= 1);
                    order.push(index);
                }
                waits
            });
            if left.len() == before {
                left.iter().for_each(|&index| {
                    self.problem(cx, &nodes[index], &[], "reads what depends on it: the graph has a cycle".into());
                });
                break;
            }
        }
        order
    }

    fn node(&mut self, cx: &mut Context<'m>, node: &'m Node) {
        let outer = std::mem::take(&mut cx.path);
        cx.path = if outer.is_empty() { name_of(node).to_owned() } else { format!("{outer}/{}", name_of(node)) };
        let written = self.written(cx, node);
        cx.path = outer;
        let mut written = written.unwrap_or_default().into_iter();
        for name in &node.outputs {
            let item = written.next().unwrap_or(Item::Broken);
            if !name.is_empty() && self.names.insert(name, item).is_some() {
                self.problem(cx, node, &[], format!("writes `{name}`, which is written already"));
            }
        }
    }

    /// What a node writes; nothing if it is a problem.
    fn written(&self, cx: &mut Context<'m>, node: &'m Node) -> Option<Vec<Item>> {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for name in &node.inputs {
            match self.find(name) {
                Some(Item::Broken) => return None,
                Some(item) => inputs.push(Some(item.clone())),
                None if name.is_empty() => inputs.push(None),
                None => {
                    self.problem(cx, node, &[], format!("reads `{name}`, which nothing writes"));
                    return None;
                }
            }
        }
        let result = self.import(cx, node, &inputs);
        result.map_err(|reason| self.problem(cx, node, &inputs, reason)).ok()
    }

    fn import(&self, cx: &mut Context<'m>, node: &'m Node, inputs: &[Option<Item>]) -> Outcome<Vec<Item>> {
        if self.depth() > DEPTH {
            return Err(format!("more than {DEPTH} functions and bodies are within one another"));
        }
        if let Some(function) =
            cx.functions.get(&[&node.domain, &node.op_type, &node.overload].map(|s| s.as_str())).copied()
        {
            return self.inline(cx, node, function, inputs);
        }
        let Some(version) = self.frame.opsets.version(&node.domain) else {
            return Err(format!("the model does not say which version of the domain `{}` it uses", node.domain));
        };
        let operator = operators::find(&node.domain, &node.op_type, version)?;
        let mut call = Call { cx, node, version, inputs: inputs.to_vec(), scope: self };
        operator.import(&mut call)
    }

    /// The nodes of a function.
    fn inline(
        &self,
        cx: &mut Context<'m>,
        node: &'m Node,
        function: &'m Function,
        inputs: &[Option<Item>],
    ) -> Outcome<Vec<Item>> {
        let given = |name: &str| node.attribute(name).and_then(|value| self.resolve(value));
        let defaults = function.defaults.iter().map(|default| (default.name.as_str(), Some(&default.value)));
        let declared = function.attributes.iter().map(|name| (name.as_str(), None));
        let attributes = declared.chain(defaults);
        let attributes = attributes.filter_map(|(name, default)| Some((name, given(name).or(default)?))).collect();
        let frame = Frame { opsets: &function.opsets, attributes, depth: self.depth() + 1 };
        let missing = || Some(Item::Nothing);
        let inputs = inputs.iter().cloned().chain(std::iter::repeat(None)).map(|item| item.or_else(missing));
        let names = function.inputs.iter().map(String::as_str).zip(inputs.flatten()).collect();
        let mut scope = Scope { names, outer: None, frame: &frame };
        scope.run(cx, &function.nodes);
        let output =
            |name: &String| scope.find(name).cloned().ok_or_else(|| format!("its output `{name}` is not written"));
        function.outputs.iter().map(output).collect()
    }

    /// What a body gives for these inputs.
    pub fn body(&self, cx: &mut Context<'m>, graph: &'m Graph, inputs: Vec<Item>) -> Outcome<Vec<Item>> {
        if inputs.len() != graph.inputs.len() {
            return Err(format!("its body has {} inputs: expected {}", graph.inputs.len(), inputs.len()));
        }
        let names = graph.inputs.iter().map(|input| input.name.as_str()).zip(inputs).collect();
        let mut scope = Scope { names, outer: Some(self), frame: self.frame };
        for initializer in &graph.initializers {
            let value = cx.tensor(initializer)?;
            scope.names.insert(&initializer.name, value.into());
        }
        scope.run(cx, &graph.nodes);
        let output =
            |name: &str| scope.find(name).cloned().ok_or_else(|| format!("its body's `{name}` is not written"));
        graph.outputs.iter().map(|value| output(&value.name)).collect()
    }

    /// An attribute's value, by way of the function's call if it refers to that.
    pub fn resolve(&self, value: &'m AttributeValue) -> Option<&'m AttributeValue> {
        match value {
            AttributeValue::Reference(name) => self.frame.attributes.get(name.as_str()).copied(),
            value => Some(value),
        }
    }

    fn problem(&self, cx: &mut Context<'m>, node: &Node, inputs: &[Option<Item>], reason: String) {
        let describe = |item: &Option<Item>| match item {
            Some(Item::Tensor(value)) => match cx.stored.get(value) {
                Some(stored) => format!("{stored}{:?}", cx.dims(*value)),
                None => cx.of(*value).to_string(),
            },
            Some(Item::Sequence(of)) => format!("a sequence of {}", of.len()),
            Some(Item::Nothing | Item::Broken) | None => "nothing".into(),
        };
        let operands: Vec<String> = inputs.iter().map(describe).collect();
        cx.problems.push(Problem {
            node: if cx.path.is_empty() { name_of(node).to_owned() } else { cx.path.clone() },
            domain: node.domain.clone(),
            operator: node.op_type.clone(),
            version: self.frame.opsets.version(&node.domain).unwrap_or(0),
            operands: if operands.is_empty() { "nothing".into() } else { operands.join(", ") },
            reason,
        });
    }
}

/// A node's name, or that of its first output.
fn name_of(node: &Node) -> &str {
    match &node.name[..] {
        "" => node.outputs.iter().find(|name| !name.is_empty()).map_or(&node.op_type, |name| name),
        name => name,
    }
}

/// The names that a node reads, and its bodies read from around them.
fn uses(node: &Node) -> HashSet<&str> {
    let mut names: HashSet<&str> = node.inputs.iter().map(String::as_str).collect();
    for attribute in &node.attributes {
        if let AttributeValue::Graph(body) = &attribute.value {
            let inside = body.nodes.iter().flat_map(uses).chain(body.outputs.iter().map(|value| value.name.as_str()));
            let mut inside: HashSet<&str> = inside.collect();
            let inputs = body.inputs.iter().map(|input| &input.name);
            let constants = body.initializers.iter().map(|tensor| &tensor.name);
            let written = body.nodes.iter().flat_map(|node| &node.outputs);
            for own in inputs.chain(constants).chain(written) {
                inside.remove(own.as_str());
            }
            names.extend(inside);
        }
    }
    names.remove("");
    names
}
