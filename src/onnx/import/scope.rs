//! Looks up names at a node, and imports nodes one after the other.

use std::collections::HashMap;
use std::rc::Rc;

use super::call::Call;
use super::context::{Context, Item, Outcome};
use super::order::NodeOrder;
use crate::error::{Problem, printable};
use crate::onnx::operators;
use crate::onnx::{AttributeValue, Function, GraphProto, NodeProto, Opsets};

/// The surroundings of a graph and its bodies, or of one call of a function.
pub(in crate::onnx) struct Frame<'m> {
    pub opsets: &'m Opsets,
    /// The attributes that a function was called with.
    pub attributes: HashMap<&'m str, &'m AttributeValue>,
    /// The number of calls of functions and bodies around it.
    pub depth: usize,
}

/// The names of a graph, and those of the graphs around it.
pub(in crate::onnx) struct Scope<'s, 'm> {
    pub names: HashMap<&'m str, Item>,
    pub outer: Option<&'s Scope<'s, 'm>>,
    pub frame: &'s Frame<'m>,
}

/// The most problems that are reported: a file may be full of them.
const MOST_PROBLEMS: usize = 1000;

/// The most operands of a node that a problem shows.
const MOST_OPERANDS: usize = 16;

/// The most characters of a node's name, of a node's name with those around it, and of a reason.
const MOST_OF_A_NAME: usize = 300;
const MOST_OF_A_PATH: usize = 1000;
const MOST_OF_A_REASON: usize = 1000;

/// The most functions and bodies that are nested.
const DEPTH: usize = 32;

impl<'m> Scope<'_, 'm> {
    pub fn find(&self, name: &str) -> Option<&Item> {
        self.names.get(name).or_else(|| self.outer?.find(name))
    }

    fn depth(&self) -> usize {
        self.frame.depth + std::iter::successors(self.outer, |scope| scope.outer).count()
    }

    /// Imports the nodes of a graph, each after those that it reads from.
    pub fn run(&mut self, cx: &mut Context<'m>, nodes: &'m [NodeProto]) {
        let order = cx.orders.entry(nodes.as_ptr()).or_insert_with(|| Rc::new(NodeOrder::of(nodes))).clone();
        for &index in &order.cyclic {
            self.problem(cx, &nodes[index], &[], "reads what depends on it: the graph has a cycle".into());
        }
        for &index in &order.sorted {
            if cx.budget.is_spent() {
                return;
            }
            self.node(cx, &nodes[index]);
        }
    }

    fn node(&mut self, cx: &mut Context<'m>, node: &'m NodeProto) {
        let outer = std::mem::take(&mut cx.path);
        cx.path = joined(&outer, node);
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

    /// Imports a node; returns its outputs, or `None` if there is a problem.
    fn written(&self, cx: &mut Context<'m>, node: &'m NodeProto) -> Option<Vec<Item>> {
        let mut inputs = Vec::new();
        for name in &node.inputs {
            match self.find(name) {
                Some(Item::Broken) => return None,
                Some(item) => inputs.push(Some(item.clone())),
                None if name.is_empty() => inputs.push(None),
                None => {
                    self.problem(cx, node, &inputs, format!("reads `{name}`, which nothing writes"));
                    return None;
                }
            }
        }
        let items = inputs.iter().flatten().map(Item::len).sum::<usize>();
        let named = node.inputs.len() + node.outputs.len() + node.attributes.len();
        let result = cx.step(1 + named + items).and_then(|()| self.import(cx, node, &inputs));
        let result = result.and_then(|items| cx.step(items.iter().map(Item::len).sum()).map(|()| items));
        result.map_err(|reason| self.problem(cx, node, &inputs, reason)).ok()
    }

    fn import(&self, cx: &mut Context<'m>, node: &'m NodeProto, inputs: &[Option<Item>]) -> Outcome<Vec<Item>> {
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

    /// Imports the nodes of a function for a call; returns the function's outputs.
    fn inline(
        &self,
        cx: &mut Context<'m>,
        node: &'m NodeProto,
        function: &'m Function,
        inputs: &[Option<Item>],
    ) -> Outcome<Vec<Item>> {
        cx.step(function.inputs.len() + function.outputs.len() + function.attributes.len() + function.defaults.len())?;
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

    /// Imports a body for these inputs; returns its outputs.
    pub fn body(&self, cx: &mut Context<'m>, graph: &'m GraphProto, inputs: Vec<Item>) -> Outcome<Vec<Item>> {
        if inputs.len() != graph.inputs.len() {
            return Err(format!("its body has {} inputs: expected {}", graph.inputs.len(), inputs.len()));
        }
        cx.step(1 + graph.initializers.len() + graph.outputs.len())?;
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

    /// The value of an attribute. A reference is replaced by the attribute of the function's call.
    pub fn resolve(&self, value: &'m AttributeValue) -> Option<&'m AttributeValue> {
        match value {
            AttributeValue::Reference(name) => self.frame.attributes.get(name.as_str()).copied(),
            value => Some(value),
        }
    }

    /// Records a problem of a node, of whose inputs the first ones may be given; with the last problem that is reported,
    /// the import ends.
    fn problem(&self, cx: &mut Context<'m>, node: &NodeProto, inputs: &[Option<Item>], reason: String) {
        if cx.problems.len() == MOST_PROBLEMS || cx.has_ended {
            return;
        }
        cx.has_ended = cx.budget.is_spent();
        let more = node.inputs.len().saturating_sub(MOST_OPERANDS);
        let operands =
            node.inputs.iter().take(MOST_OPERANDS).enumerate().map(|(index, name)| match inputs.get(index) {
                Some(item) => described(cx, item),
                None => format!("`{}`", printable(name, MOST_OF_A_NAME)),
            });
        let operands: Vec<String> = operands.chain((more > 0).then(|| format!("{more} more"))).collect();
        cx.problems.push(Problem {
            node: if cx.path.is_empty() { joined("", node) } else { cx.path.clone() },
            domain: printable(&node.domain, MOST_OF_A_NAME),
            operator: printable(&node.op_type, MOST_OF_A_NAME),
            version: self.frame.opsets.version(&node.domain).unwrap_or(0),
            operands: if operands.is_empty() { "nothing".into() } else { operands.join(", ") },
            reason: match cx.problems.len() + 1 {
                MOST_PROBLEMS => format!("{reason}; only {MOST_PROBLEMS} problems are listed"),
                _ => printable(&reason, MOST_OF_A_REASON),
            },
        });
        if cx.problems.len() == MOST_PROBLEMS {
            cx.budget.spend();
        }
    }
}

fn described(cx: &Context<'_>, item: &Option<Item>) -> String {
    match item {
        Some(Item::Tensor(value)) => match cx.stored.get(value) {
            Some(stored) => format!("{stored}{:?}", cx.dims(*value)),
            None => cx.of(*value).to_string(),
        },
        Some(Item::Sequence(of)) => format!("a sequence of {}", of.len()),
        Some(Item::Nothing | Item::Broken) | None => "nothing".into(),
    }
}

/// The name of a node after those of the nodes around it.
fn joined(outer: &str, node: &NodeProto) -> String {
    let name = printable(name_of(node), MOST_OF_A_NAME);
    if outer.is_empty() { name } else { printable(&format!("{outer}/{name}"), MOST_OF_A_PATH) }
}

/// A node's name, or that of its first output.
fn name_of(node: &NodeProto) -> &str {
    match &node.name[..] {
        "" => node.outputs.iter().find(|name| !name.is_empty()).map_or(&node.op_type, |name| name),
        name => name,
    }
}
