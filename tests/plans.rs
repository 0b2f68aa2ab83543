//! Plans for GPUs that the machine need not have: arenas without overlaps, shapes that fit, and printed plans kept as
//! text. The file is long because each kernel has tests of where it is chosen.

use std::fs;

use trefoil::graph::{Conv2d, GraphBuilder, ValueId, Window};
use trefoil::model::images::{Network, Op};
use trefoil::model::{Model, Preprocessing, Weights, architecture};
use trefoil::plan::{
    ChainTile, Choices, ConvTile, DepthwiseTile, Kernel, Limits, LinearTile, Place, Plan, Rates, RecurrentKind,
    Request, S8Kernel, S8Tile, Sm90Tile, StepOp, TensorId, plan,
};
use trefoil::{Dtype, Engine, Error, InputFormat, OutputKind, Precision, Shape};

fn plan_of(model: &Model, limits: &Limits, batch: usize, output: OutputKind) -> Result<Plan, Error> {
    let request = Request {
        limits,
        batch,
        input: InputFormat::U8Nhwc,
        preprocessing: model.preprocessing().unwrap(),
        output,
        choices: &Choices::default(),
    };
    plan(model.image_network().unwrap(), &request)
}

fn targets() -> [(&'static str, Limits); 4] {
    [("a100", Limits::a100()), ("rtx4090", Limits::rtx4090()), ("h200", Limits::h200()), ("cpu", Limits::cpu(2))]
}

#[test]
fn tensors_alive_at_the_same_time_share_no_byte() {
    let model = Model::open("weights/efficientnet-lite0").unwrap();
    for (name, limits) in targets() {
        for batch in [1, 3, 32, 256] {
            let plan = plan_of(&model, &limits, batch, OutputKind::Probabilities).unwrap();
            let placed: Vec<_> = plan
                .tensors
                .iter()
                .filter_map(|t| match t.place {
                    Place::Arena(offset) => Some((t, offset)),
                    _ => None,
                })
                .collect();
            assert!(placed.len() > 30, "{name}: only {} tensors in the arena", placed.len());
            for (i, (a, a_offset)) in placed.iter().enumerate() {
                assert_eq!(a_offset % 256, 0);
                assert!(a_offset + a.bytes <= plan.arena_bytes);
                for (b, b_offset) in &placed[i + 1..] {
                    let alive = a.lifetime[0] <= b.lifetime[1] && b.lifetime[0] <= a.lifetime[1];
                    let overlap = *a_offset < b_offset + b.bytes && *b_offset < a_offset + a.bytes;
                    assert!(!(alive && overlap), "{name}, batch {batch}: {a:?} and {b:?} overlap");
                }
            }
            assert!(plan.arena_bytes * 3 < plan.arena_bytes_without_reuse, "{name}: hardly any reuse");
        }
    }
}

#[test]
fn work_grows_with_the_batch() {
    let model = Model::open("weights/efficientnet-lite0").unwrap();
    let flops = |batch| {
        let plan = plan_of(&model, &Limits::h200(), batch, OutputKind::Logits).unwrap();
        plan.steps.iter().map(|s| s.flops).sum::<u64>()
    };
    assert_eq!(flops(8), 8 * flops(1));
    let gflop = flops(1) as f64 / 1e9;
    assert!((0.75..0.85).contains(&gflop), "EfficientNet-Lite0 has about 0.8 GFLOP an image, planned {gflop}");
}

#[test]
fn impossible_requests_are_errors() {
    let model = Model::open("weights/efficientnet-lite0").unwrap();
    let limits = Limits::h200();
    assert!(matches!(plan_of(&model, &limits, 0, OutputKind::Logits), Err(Error::Option { option: "batch", .. })));
    for k in [0, 65, 1001] {
        assert!(matches!(plan_of(&model, &limits, 1, OutputKind::TopK(k)), Err(Error::Option { option: "top-k", .. })));
    }
}

/// The network with `y` as its result.
fn network(mut g: GraphBuilder, y: ValueId) -> Network {
    g.output("y", y);
    Network::of(&g.finish().unwrap()).unwrap()
}

/// The first block of a stage: two convolutions, and one in the shortcut.
fn block() -> Network {
    let mut g = GraphBuilder::new();
    let image = g.image("image", Shape::new(28, 28, 256));
    let x = g.conv2d("before", image, 256, Window::square(1, 1, 0));
    let shortcut = g.conv2d("shortcut", x, 512, Window::square(1, 2, 0));
    let y = g.conv2d("first", x, 128, Window::square(3, 2, 1));
    let y = g.relu("relu", y);
    let y = g.conv2d("last", y, 512, Window::square(1, 1, 0));
    let sum = g.add("add", y, shortcut);
    network(g, sum)
}

fn resnet50() -> Network {
    Network::of(&architecture("resnet50", 1000, None).unwrap()).unwrap()
}

fn plan_of_graph(graph: &Network, limits: &Limits, choices: &[(&str, Kernel)]) -> Result<Plan, Error> {
    let choices: Choices = choices.iter().map(|(name, kernel)| ((*name).to_owned(), *kernel)).collect();
    let request = Request {
        limits,
        batch: 64,
        input: InputFormat::F16Nhwc,
        preprocessing: &Preprocessing::new(graph.input),
        output: OutputKind::Features,
        choices: &choices,
    };
    plan(graph, &request)
}

fn step_names(plan: &Plan) -> Vec<&str> {
    plan.steps.iter().map(|step| &step.name[..]).collect()
}

#[test]
fn a_shortcut_s_convolution_joins_the_one_that_adds_it() {
    let (graph, h200) = (block(), Limits::h200());
    let joined = plan_of_graph(&graph, &h200, &[]).unwrap();
    assert_eq!(step_names(&joined), ["input", "before", "first", "last", "output"]);
    let last = &joined.steps[3];
    assert!(matches!(&last.op, StepOp::ConvSum { joined, .. } if joined.name == "shortcut"));
    // The convolution reads the shortcut's input, which stays alive until then.
    assert_eq!(last.inputs, [joined.steps[2].outputs[0], joined.steps[1].outputs[0]]);
    assert_eq!(joined.tensors[joined.steps[1].outputs[0].0].lifetime, [1, 3]);
    let apart = ["input", "before", "shortcut", "first", "last", "output"];
    for limits in [Limits::a100(), Limits::rtx4090(), Limits::cpu(2)] {
        assert_eq!(step_names(&plan_of_graph(&graph, &limits, &[]).unwrap()), apart);
    }
    let work = |plan: &Plan| plan.steps.iter().map(|step| step.flops).sum::<u64>();
    assert_eq!(work(&joined), work(&plan_of_graph(&graph, &Limits::a100(), &[]).unwrap()));
    let own = graph.cut(graph.find("shortcut").unwrap());
    assert_eq!(step_names(&plan_of_graph(&own, &h200, &[]).unwrap()), ["input", "before", "shortcut", "output"]);
}

#[test]
fn joining_can_be_chosen_and_refused() {
    let (graph, h200) = (block(), Limits::h200());
    let sm90 = Kernel::Sm90Conv { tile: Sm90Tile { channels: 128, pixels: 64 }, cluster: 2 };
    let sm80 = Kernel::Sm80Gemm(ConvTile { m: 64, n: 64 });
    let steps = |choices: &[(&str, Kernel)]| plan_of_graph(&graph, &h200, choices).unwrap().steps.len();
    assert_eq!(steps(&[("shortcut", Kernel::Joined), ("last", sm90)]), 5);
    assert_eq!(steps(&[("shortcut", sm90)]), 6);
    assert_eq!(steps(&[("last", sm80)]), 6);
    let refused = |limits: &Limits, choices: &[(&str, Kernel)]| {
        matches!(plan_of_graph(&graph, limits, choices), Err(Error::Unsupported { .. }))
    };
    assert!(refused(&h200, &[("shortcut", Kernel::Joined), ("last", sm80)]));
    assert!(refused(&h200, &[("first", Kernel::Joined)]));
    assert!(refused(&Limits::a100(), &[("shortcut", Kernel::Joined)]));
}

/// Checks that every candidate can be chosen for its step, and changes that step alone; returns the number of steps
/// with several candidates.
fn candidates_can_be_chosen(planned: &Plan, replan: impl Fn(&Choices) -> Plan) -> usize {
    let mut several = 0;
    for (index, step) in planned.steps.iter().enumerate() {
        let candidates = planned.candidates(index);
        assert!(candidates.len() <= 4 && candidates.is_sorted_by(|a, b| a.clocks <= b.clocks), "{candidates:?}");
        let Some(first) = candidates.first() else { continue };
        assert_eq!((first.kernel, Some(*first)), (step.kernel, planned.predicted(index)), "{}", step.name);
        assert!(candidates.iter().all(|candidate| candidate.clocks <= 1.5 * first.clocks && candidate.clocks > 0.0));
        several += usize::from(candidates.len() > 1);
        for candidate in &candidates[1..] {
            let other = replan(&Choices::from([(step.name.clone(), candidate.kernel)]));
            let mut expected = planned.clone();
            expected.steps[index].kernel = candidate.kernel;
            assert_eq!(other, expected, "{}: {candidate}", step.name);
        }
    }
    several
}

#[test]
fn candidates_are_few_and_each_can_be_chosen() {
    let model = Model::open("weights/efficientnet-lite0").unwrap();
    let mut several = Vec::new();
    for (_, limits) in targets() {
        for batch in [1, 32, 256] {
            let planned = plan_of(&model, &limits, batch, OutputKind::Probabilities).unwrap();
            several.push(candidates_can_be_chosen(&planned, |choices| {
                let (preprocessing, output) = (model.preprocessing().unwrap(), OutputKind::Probabilities);
                let request =
                    Request { limits: &limits, batch, input: InputFormat::U8Nhwc, preprocessing, output, choices };
                plan(model.image_network().unwrap(), &request).unwrap()
            }));
        }
    }
    let (gpus, cpu) = several.split_at(9);
    assert!(gpus.iter().all(|&several| several > 20) && cpu.iter().all(|&several| several == 0), "{several:?}");
    let (graph, h200) = (block(), Limits::h200());
    let joined = plan_of_graph(&graph, &h200, &[]).unwrap();
    let several = candidates_can_be_chosen(&joined, |choices| {
        let choices: Vec<(&str, Kernel)> = choices.iter().map(|(name, kernel)| (&name[..], *kernel)).collect();
        plan_of_graph(&graph, &h200, &choices).unwrap()
    });
    assert_eq!(several, 3);
}

#[test]
fn shapes_of_steps_are_alike_where_nothing_that_counts_differs() {
    let model = Model::open("weights/efficientnet-lite0").unwrap();
    let shapes = |batch| -> Vec<String> {
        let plan = plan_of(&model, &Limits::a100(), batch, OutputKind::Probabilities).unwrap();
        (0..plan.steps.len()).map(|step| plan.shape_of(step)).collect()
    };
    let (one, eight) = (shapes(1), shapes(8));
    assert!(one.iter().zip(&eight).all(|(one, eight)| one != eight));
    let steps = |shape: &str| eight.iter().filter(|other| *other == shape).count();
    // The last two blocks of a stage with three have the same shapes; the first one has another input.
    let [conv, residual] = [
        "conv1x1 1x1/1x1 pad 0,0,0,0: 14x14x112 f16 -> 14x14x672 f16, batch 8",
        "conv1x1+res 1x1/1x1 pad 0,0,0,0: 14x14x672 f16 + 14x14x112 f16 -> 14x14x112 f16, batch 8",
    ];
    assert_eq!((steps(conv), steps(residual)), (0, 2), "{eight:#?}");
    assert_eq!(steps(&conv.replace("conv1x1 ", "conv1x1+relu6 ")), 3, "{eight:#?}");
}

/// Measurements of one type do not apply to another type.
#[test]
fn shapes_of_steps_differ_where_types_do() {
    let model = Model::open("weights/efficientnet-lite0").unwrap();
    let planned = plan_of(&model, &Limits::a100(), 8, OutputKind::Probabilities).unwrap();
    for (index, step) in planned.steps.iter().enumerate() {
        for tensor in step.inputs.iter().chain([&step.outputs[0]]) {
            let mut other = planned.clone();
            let dtype = &mut other.tensors[tensor.0].dtype;
            *dtype = if *dtype == Dtype::F32 { Dtype::F16 } else { Dtype::F32 };
            assert_ne!(planned.shape_of(index), other.shape_of(index), "{}", step.name);
        }
    }
}

#[test]
fn clusters_share_tiles_where_there_are_few() {
    let model = Model::open("weights/efficientnet-lite0").unwrap();
    let shared = |limits: &Limits, batch| {
        let plan = plan_of(&model, limits, batch, OutputKind::Logits).unwrap();
        let split = |kernel| matches!(kernel, Kernel::Sm90Conv { tile: Sm90Tile { channels: 64, .. }, cluster: 2.. });
        plan.steps.iter().filter(|step| split(step.kernel)).count()
    };
    assert!(shared(&Limits::h200(), 1) > 5);
    assert_eq!(shared(&Limits::h200(), 256), 0);
    assert_eq!(shared(&Limits::a100(), 1), 0);
}

#[test]
fn pairs_share_large_tiles_that_would_have_half_of_the_multiprocessors() {
    // 65x65 pixels are 30 tiles of 144, for 132 multiprocessors.
    let kernel = |limits: &Limits, channels: [usize; 2], batch| {
        let mut g = GraphBuilder::new();
        let x = g.image("image", Shape::new(65, 65, 64));
        let x = g.conv2d("before", x, channels[0], Window::square(1, 1, 0));
        let x = g.relu("relu", x);
        let window = Window { pad: vec![[12; 2]; 2], dilation: vec![12; 2], ..Window::square(3, 1, 0) };
        let y = g.conv2d("dilated", x, channels[1], window);
        let graph = network(g, y);
        let request = Request {
            limits,
            batch,
            input: InputFormat::F16Nhwc,
            preprocessing: &Preprocessing::new(graph.input),
            output: OutputKind::Features,
            choices: &Choices::new(),
        };
        let steps = plan(&graph, &request).unwrap().steps;
        steps.iter().find(|step| step.name == "dilated").unwrap().kernel.to_string()
    };
    let h200 = Limits::h200();
    for channels in [256, 2048] {
        assert_eq!(kernel(&h200, [channels, 256], 1), "sm90 128x144/4");
        assert_eq!(kernel(&h200, [channels, 256], 2), "sm90 128x144/2");
    }
    assert_eq!(kernel(&h200, [512, 512], 1), "sm90 128x144/2");
    assert!(!kernel(&Limits { units: 60, ..h200 }, [2048, 256], 1).ends_with("/4"));
}

#[test]
fn windows_of_few_channels_are_computed_from_one_copy_of_their_pixels_where_there_are_many() {
    let graph = resnet50();
    let halo = |limits: &Limits, batch| -> Vec<String> {
        let request = Request {
            limits,
            batch,
            input: InputFormat::U8Nhwc,
            preprocessing: &Preprocessing::new(graph.input),
            output: OutputKind::Logits,
            choices: &Choices::new(),
        };
        let plan = plan(&graph, &request).unwrap();
        let steps = plan.steps.iter().filter(|step| step.kernel == Kernel::Sm90Halo);
        steps.map(|step| step.name.clone()).collect()
    };
    let first_stage = ["layer1.0.conv2", "layer1.1.conv2", "layer1.2.conv2"];
    assert_eq!(halo(&Limits::h200(), 128), first_stage);
    assert_eq!(halo(&Limits::h200(), 32), first_stage);
    assert!(halo(&Limits::h200(), 1).is_empty() && halo(&Limits::a100(), 128).is_empty());
}

#[test]
fn the_kernel_of_windows_of_few_channels_can_be_chosen_and_refused() {
    let mut g = GraphBuilder::new();
    let image = g.image("image", Shape::new(9, 12, 64));
    let a = g.conv2d("a", image, 72, Window::square(3, 1, 1));
    let b = g.conv2d("b", a, 64, Window::square(3, 1, 1));
    let graph = network(g, b);
    let plan = plan_of_graph(&graph, &Limits::h200(), &[("a", Kernel::Sm90Halo)]).unwrap();
    assert_eq!(plan.steps[1].kernel, Kernel::Sm90Halo);
    // The second convolution has 72 channels, and an A100 has no such kernel.
    for (limits, node) in [(Limits::h200(), "b"), (Limits::a100(), "a")] {
        let refused = plan_of_graph(&graph, &limits, &[(node, Kernel::Sm90Halo)]);
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    }
}

/// A 1x1 convolution, a depthwise one of its result, and another 1x1 convolution.
fn inverted() -> Network {
    let mut g = GraphBuilder::new();
    let image = g.image("image", Shape::new(56, 56, 24));
    let expand = g.conv2d("expand", image, 144, Window::square(1, 1, 0));
    let relu = g.relu("relu", expand);
    let conv = Conv2d { groups: 144, ..Conv2d::named("depthwise", 144, Window::square(3, 1, 1)) };
    let depthwise = g.conv2d_with("depthwise", relu, conv);
    let y = g.conv2d("project", depthwise, 24, Window::square(1, 1, 0));
    network(g, y)
}

#[test]
fn a_depthwise_convolution_computes_the_one_in_front_of_it() {
    let (graph, h200) = (inverted(), Limits::h200());
    let together = plan_of_graph(&graph, &h200, &[]).unwrap();
    assert_eq!(step_names(&together), ["input", "depthwise", "project", "output"]);
    let step = &together.steps[1];
    assert!(matches!(step.kernel, Kernel::Sm90Expand(_)));
    assert!(matches!(&step.op, StepOp::ExpandDepthwise { expand, .. } if expand.name == "expand"));
    assert_eq!(step.inputs, [together.steps[0].outputs[0]]);
    let apart = ["input", "expand", "depthwise", "project", "output"];
    let work = |plan: &Plan| plan.steps.iter().map(|step| step.flops).sum::<u64>();
    for limits in [Limits::a100(), Limits::rtx4090(), Limits::cpu(2)] {
        let plan = plan_of_graph(&graph, &limits, &[]).unwrap();
        assert_eq!(step_names(&plan), apart);
        assert_eq!(work(&plan), work(&together));
    }
    // A value that is the result is computed by itself.
    let own = graph.cut(graph.find("relu").unwrap());
    assert_eq!(step_names(&plan_of_graph(&own, &h200, &[]).unwrap()), ["input", "expand", "output"]);
}

#[test]
fn computing_both_can_be_chosen_and_refused() {
    let (graph, h200) = (inverted(), Limits::h200());
    let tile = DepthwiseTile { rows: 4, columns: 14, unit: [2, 7] };
    let (both, one) = (Kernel::Sm90Expand(tile), Kernel::Sm90Depthwise(tile));
    let steps = |choices: &[(&str, Kernel)]| plan_of_graph(&graph, &h200, choices).unwrap().steps.len();
    assert_eq!(steps(&[("depthwise", both)]), 4);
    assert_eq!(steps(&[("depthwise", one)]), 5);
    assert_eq!(steps(&[("depthwise", Kernel::Sm80)]), 5);
    assert_eq!(steps(&[("expand", Kernel::Sm80Gemm(ConvTile { m: 64, n: 64 }))]), 5);
    let refused = |limits: &Limits, choices: &[(&str, Kernel)]| {
        matches!(plan_of_graph(&graph, limits, choices), Err(Error::Unsupported { .. }))
    };
    assert!(refused(&h200, &[("expand", both)]));
    assert!(refused(&h200, &[("depthwise", both), ("expand", Kernel::Sm80Gemm(ConvTile { m: 64, n: 64 }))]));
    assert!(refused(&h200, &[("depthwise", Kernel::Sm90Expand(DepthwiseTile { rows: 3, ..tile }))]));
    assert!(refused(&h200, &[("depthwise", Kernel::Sm90Expand(DepthwiseTile { rows: 120, columns: 120, ..tile }))]));
    assert!(refused(&Limits::a100(), &[("depthwise", both)]) && refused(&Limits::a100(), &[("depthwise", one)]));
}

/// The convolution in the middle could be computed with either of its neighbours.
#[test]
fn a_choice_comes_before_what_would_be_computed_together() {
    let mut g = GraphBuilder::new();
    let image = g.image("image", Shape::new(56, 56, 144));
    let project = g.conv2d("project", image, 24, Window::square(1, 1, 0));
    let expand = g.conv2d("expand", project, 144, Window::square(1, 1, 0));
    let conv = Conv2d { groups: 144, ..Conv2d::named("depthwise", 144, Window::square(3, 1, 1)) };
    let y = g.conv2d_with("depthwise", expand, conv);
    let graph = network(g, y);
    let h200 = Limits::h200();
    let expanded = plan_of_graph(&graph, &h200, &[]).unwrap();
    assert!(matches!(expanded.steps[2].op, StepOp::ExpandDepthwise { .. }));
    let chain = Kernel::Sm90Chain(ChainTile { pixels: 128 });
    let chained = plan_of_graph(&graph, &h200, &[("project", chain)]).unwrap();
    assert_eq!(step_names(&chained), ["input", "project", "depthwise", "output"]);
    assert!(matches!(&chained.steps[1].op, StepOp::Chain { next, .. } if next.name == "expand"));
    assert!(matches!(chained.steps[2].op, StepOp::Depthwise(_)));
    assert_eq!(chained.steps[2].inputs, [chained.steps[1].outputs[1]]);
}

#[test]
fn the_hopper_linear_layer_can_be_chosen_and_refused() {
    let plan_of = |channels: usize, limits: &Limits, tile: LinearTile| {
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::vector(channels));
        let y = g.linear("fc", image, 1000);
        let graph = network(g, y);
        let request = Request {
            limits,
            batch: 64,
            input: InputFormat::F16Nhwc,
            preprocessing: &Preprocessing::new(graph.input),
            output: OutputKind::Logits,
            choices: &Choices::from([("fc".to_owned(), Kernel::Sm90Linear(tile))]),
        };
        plan(&graph, &request)
    };
    let tile = LinearTile { images: 64, blocks: 4 };
    for tile in LinearTile::ALL {
        let plan = plan_of(2048, &Limits::h200(), tile).unwrap();
        assert!(plan.steps.iter().any(|step| step.kernel == Kernel::Sm90Linear(tile)), "{tile}");
    }
    let refused =
        |channels, limits: &Limits, tile| matches!(plan_of(channels, limits, tile), Err(Error::Unsupported { .. }));
    assert!(plan_of(3072, &Limits::h200(), tile).is_ok() && refused(3080, &Limits::h200(), tile));
    assert!(refused(2048, &Limits::h200(), LinearTile { blocks: 16, ..tile }));
    assert!(refused(2048, &Limits::h200(), LinearTile { images: 32, ..tile }));
    assert!(refused(2048, &Limits::a100(), tile));
}

/// The end of a residual block and the beginning of the next one.
fn two_blocks() -> Network {
    let mut g = GraphBuilder::new();
    let image = g.image("image", Shape::new(56, 56, 64));
    let before = g.conv2d("before", image, 256, Window::square(1, 1, 0));
    let inside = g.conv2d("inside", before, 64, Window::square(3, 1, 1));
    let wide = g.conv2d("wide", inside, 256, Window::square(1, 1, 0));
    let wide = g.add("wide.add", wide, before);
    let wide = g.relu("wide.relu", wide);
    let next = g.conv2d("next", wide, 64, Window::square(1, 1, 0));
    let next = g.relu("next.relu", next);
    let last = g.conv2d("last", next, 256, Window::square(1, 1, 0));
    let last = g.add("last.add", last, wide);
    network(g, last)
}

#[test]
fn a_1x1_convolution_computes_the_one_behind_it() {
    let (graph, h200) = (two_blocks(), Limits::h200());
    let chained = plan_of_graph(&graph, &h200, &[]).unwrap();
    assert_eq!(step_names(&chained), ["input", "before", "inside", "wide", "last", "output"]);
    let [before, _, wide, last] = &chained.steps[1..5] else { unreachable!("six steps") };
    assert!(matches!(wide.kernel, Kernel::Sm90Chain(_)));
    assert!(matches!(&wide.op, StepOp::Chain { next, joined: None, .. } if next.name == "next"));
    assert_eq!(wide.inputs, [chained.steps[2].outputs[0], before.outputs[0]]);
    // Both results are tensors of their own, until the block's last convolution has read them.
    assert_eq!(last.inputs, [wide.outputs[1], wide.outputs[0]]);
    assert!(last.inputs.iter().all(|id| chained.tensors[id.0].lifetime == [3, 4]));
    let shape = "56x56x64 f16 + 56x56x256 f16 -> 56x56x256 f16 -> 56x56x64 f16, batch 64";
    assert_eq!(chained.shape_of(3).split(": ").last(), Some(shape));
    let apart_names = ["input", "before", "inside", "wide", "next", "last", "output"];
    let work = |plan: &Plan| plan.steps.iter().map(|step| step.flops).sum::<u64>();
    for limits in [Limits::a100(), Limits::rtx4090(), Limits::cpu(2)] {
        let apart = plan_of_graph(&graph, &limits, &[]).unwrap();
        assert_eq!(step_names(&apart), apart_names);
        assert_eq!(work(&apart), work(&chained));
    }
    // One tensor is read once less than with separate steps.
    let apart = plan_of_graph(&graph, &h200, &[("next", Kernel::Sm80Gemm(ConvTile { m: 64, n: 64 }))]).unwrap();
    assert_eq!(step_names(&apart), apart_names);
    let moved = |plan: &Plan| plan.steps.iter().map(|step| step.bytes).sum::<u64>();
    assert_eq!(moved(&apart) - moved(&chained), 64 * 56 * 56 * 256 * 2);
    // The roofline of the chain is therefore lower than the sum of the two.
    let rates = Rates::of(&h200).unwrap();
    let both: f64 = [3, 4].map(|step| apart.roofline(step, &rates).seconds()).iter().sum();
    assert!(chained.roofline(3, &rates).seconds() < 0.8 * both);
    let own = graph.cut(graph.find("wide.relu").unwrap());
    assert_eq!(step_names(&plan_of_graph(&own, &h200, &[]).unwrap()), ["input", "before", "inside", "wide", "output"]);
}

#[test]
fn a_chain_can_be_chosen_and_refused() {
    let (graph, h200) = (two_blocks(), Limits::h200());
    let [chain, odd] = [256, 96].map(|pixels| Kernel::Sm90Chain(ChainTile { pixels }));
    let sm90 = Kernel::Sm90Conv { tile: Sm90Tile { channels: 64, pixels: 64 }, cluster: 1 };
    let steps = |choices: &[(&str, Kernel)]| plan_of_graph(&graph, &h200, choices).unwrap().steps.len();
    assert_eq!(steps(&[("wide", chain)]), 6);
    assert_eq!(steps(&[("wide", sm90)]), 7);
    assert_eq!(steps(&[("next", sm90)]), 7);
    let refused = |limits: &Limits, choices: &[(&str, Kernel)]| {
        matches!(plan_of_graph(&graph, limits, choices), Err(Error::Unsupported { .. }))
    };
    assert!(refused(&h200, &[("next", chain)]) && refused(&h200, &[("last", chain)]));
    assert!(refused(&h200, &[("inside", chain)]) && refused(&h200, &[("wide", odd)]));
    assert!(refused(&h200, &[("wide", chain), ("next", sm90)]));
    assert!(refused(&Limits::a100(), &[("wide", chain)]));
    // The chain would begin with a sum of two convolutions, whose only reader is no 1x1 convolution.
    let resnet = resnet50();
    let shortcut = [("layer4.0.conv3", chain), ("layer4.0.downsample", Kernel::Joined)];
    let refused_there = plan_of_graph(&resnet, &h200, &shortcut);
    assert!(matches!(refused_there, Err(Error::Unsupported { .. })), "{refused_there:?}");
    let planned = plan_of_graph(&graph, &h200, &[]).unwrap();
    let several = candidates_can_be_chosen(&planned, |choices| {
        let choices: Vec<(&str, Kernel)> = choices.iter().map(|(name, kernel)| (&name[..], *kernel)).collect();
        plan_of_graph(&graph, &h200, &choices).unwrap()
    });
    assert!(several >= 3, "{several}");
}

/// A 7x7 convolution with a stride of 2, with or without a maximum behind it.
fn first_layers(pooled: bool) -> Model {
    let mut g = GraphBuilder::new();
    let image = g.image("image", Shape::new(64, 60, 3));
    let conv = g.conv2d("conv1", image, 24, Window::square(7, 2, 3));
    let mut y = g.relu("relu", conv);
    if pooled {
        y = g.max_pool("maxpool", y, Window::square(3, 2, 1));
    }
    let y = g.conv2d("conv2", y, 8, Window::square(1, 1, 0));
    g.output("y", y);
    let graph = g.finish().unwrap();
    let tensors = graph.weights().map(|(name, of)| (name, of.dims.clone(), vec![0.5; of.elems()]));
    let weights = Weights::from_tensors(tensors).unwrap();
    let preprocessing = Preprocessing::new(Shape::new(64, 60, 3));
    Model::new(graph, weights, preprocessing, Vec::new()).unwrap()
}

#[test]
fn first_layers_are_one_step_where_a_kernel_does_them_and_nobody_asks_for_less() {
    let kinds = |model: &Model, limits: &Limits, input, choices: &Choices| -> Vec<String> {
        let preprocessing = model.preprocessing().unwrap();
        let request = Request { limits, batch: 3, input, preprocessing, output: OutputKind::Features, choices };
        let plan = plan(model.image_network().unwrap(), &request).unwrap();
        plan.steps.iter().map(|step| step.op.label(step.inputs.len())).collect()
    };
    let (h200, none, u8) = (Limits::h200(), Choices::new(), InputFormat::U8Nhwc);
    let model = first_layers(true);
    assert_eq!(kinds(&model, &h200, u8, &none), ["stem7x7+relu+max", "conv1x1", "features"]);
    let apart = ["normalize", "conv7x7+relu", "max-pool", "conv1x1", "features"];
    assert_eq!(kinds(&model, &Limits::a100(), u8, &none), apart);
    assert_eq!(kinds(&model, &Limits::cpu(2), u8, &none), apart);
    assert_eq!(kinds(&model, &h200, InputFormat::F16Nhwc, &none), apart);
    let other = Choices::from([("conv1".to_owned(), Kernel::Sm80Gemm(ConvTile { m: 64, n: 64 }))]);
    assert_eq!(kinds(&model, &h200, u8, &other), apart);
    assert_eq!(kinds(&model.features_at("relu").unwrap(), &h200, u8, &none), ["normalize", "conv7x7+relu", "features"]);
    assert_eq!(kinds(&first_layers(false), &h200, u8, &none)[..2], apart[..2]);
}

/// The printed plans equal the kept texts; `TREFOIL_BLESS=1` writes them anew, so that the difference can be reviewed.
#[test]
fn printed_plans_are_as_kept() {
    let model = Model::open("weights/efficientnet-lite0").unwrap();
    let families = [("resnet50", 1000), ("googlenet", 1000), ("trefoil_convnet28", 10)];
    let families = families.map(|(name, classes)| (name, architecture(name, classes, None).unwrap()));
    for (name, limits) in targets() {
        let plan = plan_of(&model, &limits, 8, OutputKind::TopK(5)).unwrap();
        is_as_kept(&plan, &format!("efficientnet-lite0-{name}"));
        for (family, graph) in &families {
            is_as_kept(&plan_of_network(&Network::of(graph).unwrap(), &limits, 8), &format!("{family}-{name}"));
        }
    }
    for (name, limits) in [("cpu", Limits::cpu(2)), ("h200", Limits::h200())] {
        is_as_kept(&plan_of_network(&resnet50_in_bytes(), &limits, 256), &format!("resnet50-bytes-{name}"));
    }
}

fn is_as_kept(plan: &Plan, name: &str) {
    let (printed, kept) = (format!("{plan}\n"), format!("tests/golden/plan-{name}.txt"));
    if std::env::var("TREFOIL_BLESS").is_ok_and(|v| v == "1") {
        fs::create_dir_all("tests/golden").unwrap();
        fs::write(&kept, &printed).unwrap();
    }
    let expected = fs::read_to_string(&kept).unwrap_or_default();
    assert!(printed == expected, "the plan is not as kept in {kept}:\n{printed}");
}

/// A ResNet-50 in which all values except the image have scales.
fn resnet50_in_bytes() -> Network {
    let mut graph = resnet50();
    graph.nodes.iter_mut().skip(1).for_each(|node| node.scale = Some(0.02));
    graph
}

/// The plan for images of bytes and the five best classes.
fn plan_of_network(graph: &Network, limits: &Limits, batch: usize) -> Plan {
    let (input, output, choices) = (InputFormat::U8Nhwc, OutputKind::TopK(5), Choices::new());
    let preprocessing = &Preprocessing::new(graph.input);
    plan(graph, &Request { limits, batch, input, preprocessing, output, choices: &choices }).unwrap()
}

#[test]
fn a_resnet_in_bytes_is_not_converted_on_a_gpu_that_has_the_kernels() {
    let graph = resnet50_in_bytes();
    for limits in [Limits::h200(), Limits::cpu(2)] {
        let plan = plan_of_network(&graph, &limits, 256);
        let count = |kind: fn(&StepOp) -> bool| plan.steps.iter().filter(|step| kind(&step.op)).count();
        assert_eq!(count(|op| matches!(op, StepOp::QuantizedConv(_))), 48, "{plan}");
        let joined = count(|op| matches!(op, StepOp::QuantizedConv(of) if of.joined.is_some()));
        let ends = count(|op| matches!(op, StepOp::QuantizedStem(_) | StepOp::QuantizedMean(_)));
        assert_eq!([joined, ends, plan.steps.len()], [4, 2, 52], "{plan}");
        let dtypes = |name: &str| {
            let step = plan.steps.iter().find(|step| step.name == name).unwrap();
            let of = |id: &TensorId| plan.tensors[id.0].dtype;
            (step.inputs.iter().map(of).collect::<Vec<_>>(), of(&step.outputs[0]))
        };
        assert_eq!(dtypes("conv1"), (vec![Dtype::U8], Dtype::U8));
        assert_eq!(dtypes("layer1.0.conv3"), (vec![Dtype::U8, Dtype::U8], Dtype::U8));
        assert_eq!(dtypes("layer1.1.conv3"), (vec![Dtype::U8, Dtype::U8], Dtype::U8));
    }
    let bytes = plan_of_network(&graph, &Limits::h200(), 256);
    let kernel = |name: &str| bytes.steps.iter().find(|step| step.name == name).unwrap().kernel.to_string();
    assert_eq!(kernel("conv1"), "sm90 s8 stem runs");
    assert_eq!(["layer1.0.conv2", "layer2.1.conv2"].map(kernel), ["sm90 s8 conv halo"; 2]);
    let floats = plan_of_network(&resnet50(), &Limits::h200(), 256);
    assert!(bytes.arena_bytes * 3 < floats.arena_bytes * 2, "{} {}", bytes.arena_bytes, floats.arena_bytes);
    // Of other GPUs the first layers are in halves, and what they write is converted.
    let a100 = plan_of_network(&graph, &Limits::a100(), 256);
    let count = |kind: fn(&StepOp) -> bool| a100.steps.iter().filter(|step| kind(&step.op)).count();
    assert_eq!(count(|op| matches!(op, StepOp::QuantizedConv(_))), 48, "{a100}");
    assert_eq!(count(|op| matches!(op, StepOp::QuantizedConv(of) if of.joined.is_some())), 4, "{a100}");
    assert_eq!(count(|op| matches!(op, StepOp::Quantize(_) | StepOp::Dequantize(_))), 1, "{a100}");
    let of = |step: &&trefoil::plan::Step| matches!(step.op, StepOp::QuantizedConv(_));
    assert!(a100.steps.iter().filter(of).all(|step| step.kernel.to_string().starts_with("sm80 s8 conv ")), "{a100}");
}

/// Layers that are computed together in bytes are computed together on every device: a kernel for one of them is not
/// accepted. If rows are not bytes, or the first layers are among the floats, these layers are in halves.
#[test]
fn layers_that_are_one_in_bytes_are_not_taken_apart() {
    let graph = resnet50_in_bytes();
    let (limits, mut choices, preprocessing) = (Limits::h200(), Choices::new(), Preprocessing::new(graph.input));
    let of = |graph: &Network, input, choices: &Choices| {
        let output = OutputKind::TopK(5);
        plan(graph, &Request { limits: &limits, batch: 8, input, preprocessing: &preprocessing, output, choices })
    };
    let mut in_floats = graph.clone();
    let Op::Conv2d(conv1) = &mut in_floats.nodes[1].op else { panic!("no convolution") };
    conv1.in_floats = true;
    for (graph, input) in [(&in_floats, InputFormat::U8Nhwc), (&graph, InputFormat::F16Nhwc)] {
        let plan = of(graph, input, &choices).unwrap();
        assert!(plan.steps.iter().any(|step| step.name == "maxpool.quantize"), "{plan}");
    }
    choices.insert("layer1.0.downsample.0".into(), Kernel::Joined);
    assert!(of(&graph, InputFormat::U8Nhwc, &choices).is_ok());
    let tile = S8Tile { pixels: 128, channels: 128, row_bytes: 128, kept: false };
    choices.insert("layer1.0.downsample.0".into(), Kernel::S8(S8Kernel::Tiled { tile, cluster: 1 }));
    assert!(matches!(of(&graph, InputFormat::U8Nhwc, &choices), Err(Error::Unsupported { .. })));
}

/// A mobile network is converted once, behind its first convolution, whatever its numbers of channels.
#[test]
fn a_mobile_network_in_bytes_has_no_conversion_between_its_layers() {
    let mut graph = Network::of(&architecture("efficientnet_lite0", 1000, None).unwrap()).unwrap();
    graph.nodes.iter_mut().skip(1).for_each(|node| node.scale = Some(0.02));
    let Op::Conv2d(stem) = &mut graph.nodes[1].op else { panic!("no convolution") };
    stem.in_floats = true;
    for limits in [Limits::h200(), Limits::a100(), Limits::cpu(2)] {
        let plan = plan_of_network(&graph, &limits, 32);
        let count = |kind: fn(&StepOp) -> bool| plan.steps.iter().filter(|step| kind(&step.op)).count();
        let depthwise = count(|op| matches!(op, StepOp::QuantizedDepthwise(_)));
        assert_eq!([count(|op| matches!(op, StepOp::QuantizedConv(_))), depthwise], [32, 16], "{plan}");
        let conversions = [
            count(|op| matches!(op, StepOp::Quantize(_))),
            count(|op| matches!(op, StepOp::Dequantize(_))),
            count(|op| matches!(op, StepOp::Conv(_) | StepOp::Depthwise(_) | StepOp::ExpandDepthwise { .. })),
        ];
        assert!(conversions[..2] == [1, 0] && conversions[2] <= 1, "{plan}");
    }
    let plan = plan_of_network(&graph, &Limits::h200(), 32);
    let step = plan.steps.iter().find(|step| step.name == "blocks.1.0.conv_pwl").unwrap();
    let y = &plan.tensors[step.outputs[0].0];
    assert_eq!((y.shape.channels, y.stored_channels, y.dtype), (24, 32, Dtype::I8));
}

/// No kernel of bytes sums as many products as this window has: only this layer is in halves.
#[test]
fn layers_without_a_kernel_of_bytes_are_in_halves() {
    let mut g = GraphBuilder::new();
    let image = g.image("image", Shape::new(14, 14, 64));
    let single = &Window::square(1, 1, 0);
    let a = g.conv2d("a", image, 64, Window::square(33, 1, 16));
    let b = g.conv2d("b", a, 72, single);
    let c = g.conv2d("c", b, 64, single);
    let mut graph = network(g, c);
    graph.nodes.iter_mut().for_each(|node| node.scale = Some(0.05));
    let (limits, choices, preprocessing) = (Limits::h200(), Choices::new(), Preprocessing::new(graph.input));
    let (input, output) = (InputFormat::F16Nhwc, OutputKind::Features);
    let request =
        Request { limits: &limits, batch: 8, input, preprocessing: &preprocessing, output, choices: &choices };
    let plan = plan(&graph, &request).unwrap();
    let labels: Vec<_> = plan.steps.iter().map(|step| step.op.label(step.inputs.len())).collect();
    assert!(
        labels.contains(&"s8 conv1x1".to_owned()) && labels.iter().filter(|of| *of == "quantize").count() == 1,
        "{plan}"
    );
}

/// All steps of a recurrent layer are one step of a plan on compute capability 9.0 in f16 and bf16. Elsewhere each of them
/// is a few steps of its own.
#[test]
fn a_recurrent_layer_of_a_file_is_one_step() {
    let sizes = trefoil::onnx::Sizes::new().dim("steps", 20);
    let model = Model::open_at("tests/data/onnx/recurrent.onnx", &sizes).unwrap();
    let planned = |limits: &Limits, precision| {
        Engine::builder(&model).precision(precision).batch_sizes(&[1, 32]).plans_for(limits).unwrap()
    };
    let layers = |plan: &Plan| -> Vec<_> {
        let layer = |op: &StepOp| match op {
            StepOp::Recurrent(of) => Some((of.cell, of.backwards.clone(), of.hidden)),
            _ => None,
        };
        plan.steps.iter().filter_map(|step| layer(&step.op)).collect()
    };
    let expected = [
        (RecurrentKind::Lstm, vec![false, true], 24),
        (RecurrentKind::Gru, vec![false], 32),
        (RecurrentKind::RnnRelu, vec![true], 16),
    ];
    for (limits, precision) in [(Limits::h100(), Precision::Bf16), (Limits::h200(), Precision::F16)] {
        for plan in planned(&limits, precision) {
            assert_eq!(layers(&plan), expected, "{plan}");
            assert!(plan.steps.len() <= 20, "{plan}");
        }
    }
    for (limits, precision) in
        [(Limits::cpu(2), Precision::F32), (Limits::a100(), Precision::F16), (Limits::h200(), Precision::F32)]
    {
        for plan in planned(&limits, precision) {
            assert!(layers(&plan).is_empty() && plan.steps.len() > 4 * 20, "{plan}");
        }
    }
}

/// Kernels for images compute networks whose rows have several images each, as they compute as many rows of one.
#[test]
fn rows_of_several_images_have_the_same_kernels() {
    let model = Model::open("weights/efficientnet-lite0").unwrap();
    let values = model.to_values(InputFormat::F32Nchw, OutputKind::Logits).unwrap();
    let each = values.each(8).unwrap();
    let kernels = |model: &Model, rows: usize| -> Vec<String> {
        let plans = Engine::builder(model).batch_sizes(&[rows]).plans_for(&Limits::h100()).unwrap();
        let conv = |step: &&trefoil::plan::Step| step.weight_bytes > 0;
        plans[0].steps.iter().filter(conv).map(|step| format!("{} {:?}", step.name, step.kernel)).collect()
    };
    for rows in [1, 4] {
        let found = kernels(&each, rows);
        assert!(found.len() > 30 && found.iter().all(|step| !step.ends_with("Loop")), "{found:?}");
        assert_eq!(found, kernels(&values, 8 * rows));
    }
}
