//! How long planning takes: a network of about 2,000 nodes, for an H200, on one thread.
//!
//!     cargo run --release --example planning
//!
//! Blocks are those of ResNet-50 with some branches that join in a concatenation, so that every matching kernel is tried.

use std::time::{Duration, Instant};

use trefoil::model::{Graph, GraphBuilder, NodeId, Preprocessing, Window};
use trefoil::plan::{Choices, Limits, Request, plan};
use trefoil::{Error, InputFormat, OutputKind, Shape};

/// What planning may take.
const LIMIT: Duration = Duration::from_millis(300);

fn main() -> Result<(), Error> {
    let graph = network(134)?;
    let (limits, choices, preprocessing) = (Limits::h200(), Choices::new(), &Preprocessing::new(graph.input));
    for batch in [1, 32] {
        let (input, output) = (InputFormat::U8Nhwc, OutputKind::TopK(5));
        let request = Request { limits: &limits, batch, input, preprocessing, output, choices: &choices };
        let mut times: Vec<Duration> = Vec::new();
        let mut steps = 0;
        for _ in 0..5 {
            let start = Instant::now();
            steps = plan(&graph, &request)?.steps.len();
            times.push(start.elapsed());
        }
        times.sort_unstable();
        println!("{} nodes, batch {batch}: {steps} steps planned in {:.1?} (median of 5)", graph.nodes.len(), times[2]);
        assert!(times[2] < LIMIT, "planning took {:?}: expected below {LIMIT:?}", times[2]);
    }
    Ok(())
}

/// So many blocks of sixteen nodes.
fn network(blocks: usize) -> Result<Graph, Error> {
    let mut g = GraphBuilder::new(Shape::new(224, 224, 3));
    let x = g.conv2d("conv1", g.input(), 64, Window::square(7, 2, 3));
    let x = g.batch_norm("bn1", x, 1e-5);
    let x = g.relu("relu1", x);
    let mut x = g.max_pool("maxpool", x, Window::square(3, 2, 1));
    for block in 0..blocks {
        let stride = if [30, 60, 90].contains(&block) { 2 } else { 1 };
        x = bottleneck(&mut g, &format!("block{block}"), x, stride);
    }
    let x = g.global_avg_pool("avgpool", x);
    let x = g.linear("fc", x, 1000);
    g.finish(x)
}

fn bottleneck(g: &mut GraphBuilder, name: &str, x: NodeId, stride: usize) -> NodeId {
    let mut layer = |part: &str, x, channels, window, relu: bool| {
        let x = g.conv2d(&format!("{name}.conv{part}"), x, channels, window);
        let x = g.batch_norm(&format!("{name}.bn{part}"), x, 1e-5);
        if relu { g.relu(&format!("{name}.relu{part}"), x) } else { x }
    };
    let a = layer("1", x, 64, Window::square(1, 1, 0), true);
    let a = layer("2", a, 64, Window::square(3, stride, 1), true);
    let left = layer("3", a, 128, Window::square(1, 1, 0), false);
    let right = layer("4", a, 128, Window::square(3, 1, 1), false);
    let shortcut = layer("5", x, 256, Window::square(1, stride, 0), false);
    let both = g.concat(&format!("{name}.concat"), &[left, right]);
    let sum = g.add(&format!("{name}.add"), both, shortcut);
    g.relu(&format!("{name}.relu"), sum)
}
