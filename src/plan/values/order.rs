//! The order of a network's steps and of loops: each loop comes as soon as the network has computed its operands.

use std::collections::HashMap;

use super::layered::Layered;
use crate::graph::ValueId;
use crate::loops::{self, Schedule};
use crate::model;
use crate::plan::context::Match;

/// The order of loops relative to the nodes of the network.
pub(super) struct LoopOrder<'a> {
    of: &'a Layered,
    /// The node of the network that writes each value that loops read from the network.
    pub images: HashMap<ValueId, model::NodeId>,
    /// For each node, the place of the step that writes its value.
    places: HashMap<model::NodeId, model::NodeId>,
}

impl<'a> LoopOrder<'a> {
    pub fn new(of: &'a Layered, network: &model::images::Network, steps: &[Match]) -> Self {
        let places = steps.iter().flat_map(|step| step.writes.iter().map(|&node| (node, step.place))).collect();
        let mut images = HashMap::new();
        for node in &network.nodes {
            if let Some(given) = of.given.get(&node.name) {
                images.extend(given.reads.iter().copied().zip(node.inputs.iter().copied()));
            }
        }
        Self { of, images, places }
    }

    /// For each step of the schedule, the node of the network in whose place all of the step's operands are computed.
    pub fn due(&self, schedule: &Schedule) -> Vec<model::NodeId> {
        let mut of_value: HashMap<ValueId, model::NodeId> = HashMap::new();
        let written = |&node: &model::NodeId| self.places.get(&node).copied().unwrap_or(node);
        of_value.extend(self.images.iter().map(|(&value, node)| (value, written(node))));
        let mut due = Vec::new();
        for step in &schedule.steps {
            let last = step.reads.iter().filter_map(|id| of_value.get(id)).max();
            let last = last.copied().unwrap_or(model::NodeId(0));
            if !self.is_image(step) {
                of_value.extend(step.writes.iter().map(|&id| (id, last)));
            }
            due.push(last);
        }
        due
    }

    /// Whether the network computes a step.
    pub fn is_image(&self, step: &loops::Step) -> bool {
        matches!(step.kernel, loops::Kernel::Apart(node) if self.of.apart.contains(&node))
    }
}
