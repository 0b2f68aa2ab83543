//! Branches side by side: which steps run in which lane, and that in no order of the lanes' steps a step reads a value
//! that is not written yet or already overwritten.

use trefoil::graph::{GraphBuilder, ValueId, Window};
use trefoil::model::images::Network;
use trefoil::model::{Preprocessing, architecture, architectures};
use trefoil::plan::{Choices, Limits, Plan, Request, plan};
use trefoil::{InputFormat, OutputKind, Shape};

fn plan_of(graph: &Network, limits: &Limits, batch: usize) -> Plan {
    let request = Request {
        limits,
        batch,
        input: InputFormat::U8Nhwc,
        preprocessing: &Preprocessing::new(graph.input),
        output: OutputKind::Features,
        choices: &Choices::new(),
    };
    plan(graph, &request).unwrap()
}

fn gpus() -> [Limits; 3] {
    [Limits::h200(), Limits::a100(), Limits::rtx4090()]
}

fn network(architecture_name: &str) -> Network {
    Network::of(&architecture(architecture_name, 1000, None).unwrap()).unwrap()
}

fn googlenet() -> Network {
    network("googlenet")
}

/// Checks a plan, and that it is not safe without any single one of its edges; returns the number of edges.
fn every_edge_is_needed(plan: &Plan, what: &str) -> usize {
    plan.check().unwrap_or_else(|hazard| panic!("{what}: {hazard}\n{plan}"));
    let mut edges = 0;
    for step in 0..plan.steps.len() {
        for edge in 0..plan.steps[step].after.len() {
            let mut without = plan.clone();
            without.steps[step].after.remove(edge);
            assert!(without.check().is_err(), "{what}: step {step} need not wait for its {edge}th\n{plan}");
            edges += 1;
        }
    }
    edges
}

#[test]
fn plans_of_every_architecture_are_safe_and_need_every_edge() {
    for name in architectures() {
        let graph = network(&name);
        let mut edges = 0;
        for limits in gpus() {
            for batch in [1, 32] {
                let planned = plan_of(&graph, &limits, batch);
                let what = format!("{name} on {limits}, batch {batch}");
                edges += every_edge_is_needed(&planned, &what);
                let in_one = planned.clone().with_lanes(false);
                assert_eq!((every_edge_is_needed(&in_one, &what), in_one.lanes()), (0, 1));
                assert_eq!(in_one.with_lanes(true), planned);
            }
        }
        assert!(name != "googlenet" || edges > 500, "{edges} edges");
        assert_eq!(plan_of(&graph, &Limits::cpu(2), 1).with_lanes(true).lanes(), 1, "{name}");
    }
}

/// A graph of random convolutions, sums, maxima and concatenations of earlier values, most of them recent; in the end
/// all values that no node has read are joined.
fn random_graph(seed: u64) -> Network {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % n
    };
    let mut g = GraphBuilder::new();
    let image = g.image("image", Shape::new(7, 9, 8));
    let first = g.conv2d("first", image, 16, Window::square(3, 1, 1));
    let mut values = vec![first];
    for i in 0..10 + below(30) {
        let recent = values.len().min(1 + below(6));
        let mut pick = || values[values.len() - 1 - below(recent)];
        let (name, x, other) = (format!("n{i}"), pick(), pick());
        let y = match below(8) {
            0 => g.max_pool(&name, x, Window::square(3, 1, 1)),
            1 if g.value(x) == g.value(other) => g.add(&name, x, other),
            2 | 3 if x != other => g.concat(&name, &[x, other]),
            4 => g.relu(&name, x),
            kind => g.conv2d(&name, x, 8 * (1 + below(9)), Window::square([1, 3][kind % 2], 1, kind % 2)),
        };
        values.push(y);
    }
    let readers = g.graph().readers();
    let unread: Vec<ValueId> = values.iter().copied().filter(|value| readers[value.0].is_empty()).collect();
    let all = g.concat("all", &unread);
    g.output("y", all);
    Network::of(&g.finish().unwrap()).unwrap()
}

#[test]
fn plans_of_random_graphs_are_safe_and_need_every_edge() {
    let (mut edges, mut most) = (0, 0);
    for seed in 1..=300 {
        let graph = random_graph(seed);
        for limits in [Limits::h200(), Limits::a100()] {
            let plan = plan_of(&graph, &limits, 1);
            edges += every_edge_is_needed(&plan, &format!("seed {seed}"));
            every_edge_is_needed(&plan.clone().with_lanes(false), &format!("seed {seed}, one lane"));
            most = most.max(plan.lanes());
        }
    }
    assert!(edges > 5000 && most > 3, "{edges} edges, {most} lanes");
}

#[test]
fn an_arena_for_one_lane_is_not_safe_for_several() {
    let beside = plan_of(&googlenet(), &Limits::h200(), 1);
    let mut mixed = beside.clone().with_lanes(false);
    assert!(mixed.arena_bytes <= beside.arena_bytes);
    mixed.check().unwrap();
    for (step, of_lanes) in mixed.steps.iter_mut().zip(&beside.steps) {
        (step.lane, step.after) = (of_lanes.lane, of_lanes.after.clone());
    }
    let error = mixed.check().unwrap_err().to_string();
    assert!(error.contains("may have overwritten it"), "{error}");
}

#[test]
fn the_branches_of_a_block_have_a_lane_each() {
    let graph = googlenet();
    assert!(gpus().iter().all(|limits| plan_of(&graph, limits, 1).lanes() == 4));
    let lanes = |limits: &Limits, block: &str| -> Vec<usize> {
        let plan = plan_of(&graph, limits, 1);
        let branch =
            |part: &str| plan.steps.iter().find(|step| step.name == format!("{block}.branch{part}")).unwrap().lane;
        ["1.conv", "2.0.conv", "2.1.conv", "3.0.conv", "3.1.conv", "4.0", "4.1.conv"].map(branch).into()
    };
    for limits in gpus() {
        let of_block = lanes(&limits, "inception4b");
        let [one, two, two_more, three, three_more, four, four_more] = of_block[..] else { panic!("{of_block:?}") };
        assert_eq!((two, two_more), (0, 0), "the longest branch goes on in lane 0: {of_block:?}");
        assert_eq!((three, four), (three_more, four_more), "{of_block:?}");
        let mut others = [one, three, four];
        others.sort_unstable();
        assert_eq!(others, [1, 2, 3], "{of_block:?}");
    }
    // The printed plan names the step that a waiting step waits for.
    let printed = plan_of(&graph, &Limits::h200(), 1).to_string();
    assert!(
        printed.lines().any(|line| line.contains("inception4b.branch2.0.conv") && line.contains(" 0 after ")),
        "{printed}"
    );
}

/// Another kernel may make another branch the longest, but does not change the order of steps: tensors stay at their
/// places.
#[test]
fn places_do_not_depend_on_kernels() {
    let (graph, limits) = (googlenet(), Limits::h200());
    let planned = plan_of(&graph, &limits, 1);
    let mut changed = 0;
    for (index, step) in planned.steps.iter().enumerate() {
        for candidate in planned.candidates(index) {
            let choices = Choices::from([(step.name.clone(), candidate.kernel)]);
            let preprocessing = &Preprocessing::new(graph.input);
            let (input, output) = (InputFormat::U8Nhwc, OutputKind::Features);
            let other =
                plan(&graph, &Request { limits: &limits, batch: 1, input, preprocessing, output, choices: &choices })
                    .unwrap();
            assert_eq!((&other.tensors, other.arena_bytes), (&planned.tensors, planned.arena_bytes));
            changed += usize::from(other.steps.iter().zip(&planned.steps).any(|(a, b)| a.lane != b.lane));
        }
    }
    println!("{changed} candidates change the lanes");
}
