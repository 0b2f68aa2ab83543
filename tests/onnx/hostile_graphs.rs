//! Invalid graphs, or small files that ask for much: importing gives an error that says what is wrong and where, or a
//! graph, in little time and memory.

use std::time::{Duration, Instant};

use trefoil::onnx::{File, Sizes};

use super::graphs::{
    BOOL, Dim, FLOAT, INT64, body, call, file, function, input, ints, node, node_in, output, scalar, text, vector,
    whole, x,
};
use super::memory::peak;
use super::write::{attribute, bytes, initializer, int, message};

/// The longest time for a file, on a busy machine and without optimisation.
const PATIENCE: Duration = Duration::from_secs(60);

/// The most memory that an import may hold besides the file.
const MOST_BYTES: usize = 1 << 30;

/// The error of importing a file; empty if it becomes a graph.
fn said(file: Vec<u8>) -> String {
    let begin = Instant::now();
    let (answer, most) = peak(|| {
        let file = File::from_bytes(file)?;
        let sizes = file.free_dims().iter().fold(Sizes::new(), |sizes, name| sizes.dim(name, 2));
        file.graph(&sizes)
    });
    let said = answer.err().map_or(String::new(), |error| error.to_string());
    assert!(begin.elapsed() < PATIENCE, "{:?}: {said}", begin.elapsed());
    assert!(most < MOST_BYTES, "{most} bytes: {said}");
    said
}

fn expect(cases: Vec<(&str, Vec<u8>)>) {
    for (what, file) in cases {
        let said = said(file);
        assert!(said.contains(what) && said.len() < 10_000, "expected `{what}`, found `{said}`");
    }
}

/// Checks that a file becomes a graph.
fn expect_a_graph(file: Vec<u8>) {
    assert_eq!(said(file), "");
}

const STEPS: &str = "importing takes more than 2097152 steps";

fn fixed(dims: &[i64]) -> Vec<Dim> {
    dims.iter().map(|&dim| Dim::Fixed(dim)).collect()
}

#[test]
fn nodes_by_the_hundred_thousand_take_seconds() {
    let names: Vec<String> = (0..=50_000).map(|number| format!("v{number}")).collect();
    let link = |number: usize| node("Relu", &[&names[number]], &[&names[number + 1]], &[]);
    let backwards: Vec<Vec<u8>> = (0..50_000).rev().map(link).collect();
    let first = node("Abs", &["x"], &["v0"], &[]);
    expect_a_graph(file(&[backwards.clone(), vec![first, x(), output("v50000")]].concat(), &[]));
    let closed = node("Abs", &["v50000"], &["v0"], &[]);
    expect(vec![
        (
            "1000 nodes cannot be imported; Relu (version 18): `v50000` of `v49999`: reads what depends on it",
            file(&[backwards, vec![closed, x(), output("v50000")]].concat(), &[]),
        ),
        ("this operator is not known", file(&[node("", &[], &[], &[bytes(4, "A")]).repeat(200_000)], &[])),
        ("nothing writes", file(&[node("Relu", &["nowhere"], &[], &[]).repeat(200_000)], &[])),
    ]);
}

#[test]
fn ports_by_the_hundred_thousand_take_seconds() {
    let names: Vec<String> = (0..100_000).map(|number| format!("v{number}")).collect();
    let ports = |number| {
        move |name: &String| {
            message(
                number,
                &[
                    bytes(1, name),
                    message(2, &[message(1, &[int(1, 1), message(2, &[message(1, &[bytes(2, name)])])])]),
                ],
            )
        }
    };
    let inputs: Vec<Vec<u8>> = names.iter().map(ports(11)).collect();
    let outputs: Vec<Vec<u8>> = names.iter().map(ports(12)).collect();
    expect_a_graph(file(&[inputs, outputs].concat(), &[]));
}

#[test]
fn functions_that_call_one_another_end() {
    let name = |number: usize| format!("f{number}");
    // Each function calls the next one twice, and computes nothing.
    let twice = |number: usize| {
        let nodes = [("x", "a"), ("a", "y")].map(|(from, to)| call(7, &name(number + 1), &[from], &[to]));
        function(&name(number), &["x"], &["y"], &nodes)
    };
    let mut functions: Vec<Vec<u8>> = (0..25).map(twice).collect();
    functions.push(function("f25", &["x"], &["y"], &[node_in(7, "Identity", &["x"], &["y"], &[])]));
    let graph = [x(), call(1, "f0", &["x"], &["y"]), output("y")];
    let itself = function("f0", &["x"], &["y"], &[call(7, "f0", &["x"], &["y"])]);
    // Of many inputs each call leaves out all but one.
    let names: Vec<String> = (0..100_000).map(|number| format!("i{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let wide = function("wide", &names, &["y"], &[node_in(7, "Identity", &["i0"], &["y"], &[])]);
    let results: Vec<String> = (0..1000).map(|number| format!("y{number}")).collect();
    let calls: Vec<Vec<u8>> = results.iter().map(|result| call(7, "wide", &["x"], &[result])).collect();
    let often = function("often", &["x"], &["y0"], &calls);
    let other = |a, b| function(a, &["x"], &["y"], &[call(7, b, &["x"], &["y"])]);
    expect(vec![
        (STEPS, file(&graph, &functions)),
        (STEPS, file(&[x(), call(1, "often", &["x"], &["y"]), output("y")], &[wide, often])),
        ("more than 32 functions and bodies are within one another", file(&graph, &[itself])),
        ("more than 32 functions and bodies", file(&graph, &[other("f0", "f1"), other("f1", "f0")])),
        ("its output `y` is not written", file(&graph, &[function("f0", &["x"], &["y"], &[])])),
        ("nothing writes", file(&graph, &[function("f0", &["x"], &["y"], &[call(7, "f1", &["z"], &["y"])])])),
    ]);
}

/// Nested loops, each of 4096 trips.
fn loops(depth: usize, inside: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let parameters = [input("trip", INT64, &[]), input("go", BOOL, &[]), output("go")];
    (0..depth).fold(inside, |inside, _| {
        vec![node("Loop", &["trips", ""], &[], &[body("body", &[&parameters[..], &inside].concat())])]
    })
}

#[test]
fn loops_within_loops_end() {
    let graph = |nodes: Vec<Vec<u8>>| file(&[nodes, vec![scalar("trips", 4096), x(), output("x")]].concat(), &[]);
    let weights: Vec<Vec<u8>> = (0..2000)
        .map(|number| message(5, &[bytes(8, format!("w{number}")), int(2, 1), int(1, 1), bytes(9, [0; 4])]))
        .collect();
    let unused = node("Relu", &["x"], &["unused"], &[]).repeat(50_000);
    let branch = [body("then_branch", &[output("x")]), body("else_branch", &[unused, output("x")])];
    let condition =
        vec![node("Constant", &[], &["one"], &[whole("value_int", 1)]), node("If", &["one"], &["y"], &branch)];
    expect(vec![
        (STEPS, graph(loops(3, vec![]))),
        (STEPS, graph(loops(3, vec![node("Relu", &["x"], &["y"], &[])]))),
        (STEPS, graph(loops(2, weights))),
        (STEPS, graph(loops(2, condition))),
        (
            "more than 4096 trips",
            file(&[loops(1, vec![]), vec![scalar("trips", i64::MAX), x(), output("x")]].concat(), &[]),
        ),
    ]);
}

#[test]
fn bodies_that_do_not_fit_are_told() {
    let with =
        |more: &[Vec<u8>]| file(&[&[x(), scalar("one", 1), input("c", BOOL, &[]), output("y")], more].concat(), &[]);
    let yields = |name: &str, what: &str| body(name, &[output(what)]);
    let empty = |name: &str| body(name, &[]);
    let one = |op: &str, inputs: &[&str], more: &[Vec<u8>]| with(&[node(op, inputs, &["y"], more)]);
    expect(vec![
        ("then_branch: expected a graph", one("If", &["one"], &[whole("then_branch", 1)])),
        ("body: expected a graph", one("Loop", &["one", "", "x"], &[])),
        ("its body has 0 inputs: expected 3", one("Loop", &["one", "", "x"], &[empty("body")])),
        ("`nowhere` is not written", one("If", &["one"], &[yields("then_branch", "nowhere")])),
        ("reads what depends on it", one("If", &["one"], &[yields("then_branch", "y"), empty("else_branch")])),
        (
            "branches give f32[2] and i64[]",
            one("If", &["c"], &[yields("then_branch", "x"), yields("else_branch", "one")]),
        ),
        ("an output that nothing writes", file(&[x(), output("z")], &[])),
        ("fewer inputs than are scanned", one("Scan", &["x"], &[whole("num_scan_inputs", 3), empty("body")])),
        (
            "num_scan_inputs: expected 0 or more, found -1",
            one("Scan", &["x"], &[whole("num_scan_inputs", -1), empty("body")]),
        ),
    ]);
}

#[test]
fn long_names_and_many_axes_take_no_memory() {
    let name = "n".repeat(1 << 20);
    let inside = node_in(7, "Relu", &["x"], &["y"], &[bytes(3, &name)]);
    let long = function("long", &["x"], &["y"], &[inside]);
    let names: Vec<String> = (0..2001).map(|number| format!("v{number}")).collect();
    let calls = (0..2000).map(|at| call(1, "long", &[&names[at]], &[&names[at + 1]])).collect::<Vec<_>>().concat();
    expect_a_graph(file(&[calls, node("Abs", &["x"], &["v0"], &[]), x(), output("v2000")], &[long]));
    let dims = vec![1; 100_000];
    let many = node("Add", &["w", "w"], &[], &[]).repeat(1000);
    expect(vec![
        ("a value of 100000 axes: expected 64 at most", file(&[initializer(1, &dims, &[bytes(9, [0; 4])]), many], &[])),
        (
            "a value of 1000 axes: expected 64 at most",
            file(&[input("x", FLOAT, &fixed(&dims[..1000])), output("x")], &[]),
        ),
        (
            "a value of 100 axes",
            file(&[x(), vector("ones", &dims[..100]), node("Expand", &["x", "ones"], &["y"], &[]), output("y")], &[]),
        ),
        ("99984 more: ", file(&[x(), node("Odd", &["x"; 100_000], &["y"], &[])], &[])),
    ]);
}

#[test]
fn sizes_beyond_all_bounds_are_refused() {
    let max = i64::MAX;
    let of = |dims: &[i64]| file(&[input("x", FLOAT, &fixed(dims)), output("x")], &[]);
    let shaped = |op: &str, sizes: &[i64]| {
        file(&[x(), vector("sizes", sizes), node(op, &["x", "sizes"], &["y"], &[]), output("y")], &[])
    };
    let one = |op: &str, inputs: &[&str], more: &[Vec<u8>], beside: &[Vec<u8>]| {
        file(&[&[x(), node(op, inputs, &["y"], more), output("y")], beside].concat(), &[])
    };
    let image = input("image", FLOAT, &fixed(&[1, 1, 4, 4]));
    let filter = initializer(1, &[1, 1, 2, 2], &[bytes(9, [0; 16])]);
    let window = |more: &[Vec<u8>]| one("Conv", &["image", "w"], more, &[image.clone(), filter.clone()]);
    expect(vec![
        ("is larger than", of(&[max])),
        ("is larger than", of(&[1 << 40, 1 << 40])),
        ("is larger than", of(&[1 << 40, 0])),
        ("is larger than", shaped("Expand", &[max, 1])),
        ("is larger than", shaped("Reshape", &[max, 2])),
        ("expected 0 or more, found -2", shaped("Reshape", &[-2, 1])),
        ("is larger than", shaped("Tile", &[1 << 62])),
        ("do not fit", shaped("Pad", &[max, max])),
        ("do not fit", shaped("Pad", &[i64::MIN, 0])),
        ("num_outputs", one("Split", &["x"], &[whole("num_outputs", max)], &[])),
        ("blocksize", one("DepthToSpace", &["image"], &[whole("blocksize", max)], std::slice::from_ref(&image))),
        ("strides", window(&[ints("strides", &[max, max])])),
        ("dilations", window(&[ints("dilations", &[1 << 62, 1])])),
        ("pads", window(&[ints("pads", &[max, max, max, max])])),
        ("group", window(&[whole("group", max)])),
        ("group", window(&[whole("group", 0)])),
        ("depth", one("OneHot", &["one", "depth", "x"], &[], &[scalar("one", 1), scalar("depth", 1 << 62)])),
        ("k", one("TopK", &["x", "k"], &[], &[vector("k", &[max])])),
        ("axis", one("Concat", &["x", "x"], &[whole("axis", i64::MIN)], &[])),
        ("axis", one("Softmax", &["x"], &[whole("axis", max)], &[])),
        ("Slice", one("Slice", &["x", "a", "a", "a", "zero"], &[], &[vector("a", &[0]), vector("zero", &[0])])),
    ]);
    let steps = [vector("a", &[i64::MIN]), vector("b", &[max]), vector("zero", &[0]), vector("one", &[i64::MIN])];
    expect_a_graph(one("Slice", &["x", "b", "a", "zero", "one"], &[], &steps));
}

/// Nodes that give a constant of `[side, side]`, each from the one before.
fn constants(side: i64, count: usize, op: &str, more: &[Vec<u8>]) -> Vec<u8> {
    let names: Vec<String> = (0..=count).map(|number| format!("v{number}")).collect();
    let first = [vector("shape", &[side, side]), node("ConstantOfShape", &["shape"], &["v0"], &[])];
    let next = |at: usize| match op {
        "ConstantOfShape" => node(op, &["shape"], &[&names[at + 1]], &[]),
        "MatMul" => node(op, &[&names[at], &names[at]], &[&names[at + 1]], &[]),
        _ => node(op, &[&names[at]], &[&names[at + 1]], more),
    };
    file(&[&first[..], &(0..count).map(next).collect::<Vec<_>>(), &[output(&names[count])]].concat(), &[])
}

#[test]
fn what_takes_long_to_compute_is_left_to_the_graph() {
    expect_a_graph(constants(2000, 200, "ConstantOfShape", &[]));
    expect_a_graph(constants(2000, 20, "MatMul", &[]));
    expect_a_graph(constants(2000, 300, "Exp", &[]));
    expect_a_graph(constants(1500, 20, "Transpose", &[]));
    let shape = vector("shape", &[1, 1, 1000, 1000]);
    let pool = [ints("kernel_shape", &[100_000, 100_000]), ints("pads", &[99_999; 4])];
    let zeros = node("ConstantOfShape", &["shape"], &["zeros"], &[]);
    expect_a_graph(file(&[shape.clone(), zeros.clone(), node("MaxPool", &["zeros"], &["y"], &pool), output("y")], &[]));
    let pool = [ints("kernel_shape", &[999, 999]), ints("pads", &[499; 4])];
    expect_a_graph(file(&[shape, zeros, node("MaxPool", &["zeros"], &["y"], &pool), output("y")], &[]));
}

/// Each tensor is read once, also in the body of a loop.
#[test]
fn tensors_are_read_once() {
    let elems = 1 << 20;
    let tensor = [int(1, elems), int(2, 1), bytes(9, vec![0; 4 * elems as usize])].concat();
    let constant = node("Constant", &[], &["y"], &[attribute("value", &[int(20, 4), bytes(5, tensor)])]);
    expect_a_graph(file(&[loops(1, vec![constant]), vec![scalar("trips", 4096), x(), output("x")]].concat(), &[]));
}

/// A test's thread has a stack of 2 MB.
#[test]
fn operands_by_the_ten_thousand_are_no_deep_expression() {
    for op in ["Sum", "Mean", "Max"] {
        expect_a_graph(file(&[x(), node(op, &["x"; 20_000], &["y"], &[]), output("y")], &[]));
    }
    let equation = vec!["a"; 100_000].join(",");
    let product = node("Einsum", &["x"; 100_000], &["y"], &[text("equation", &equation)]);
    expect_a_graph(file(&[x(), product, output("y")], &[]));
    let wide = input("wide", FLOAT, &fixed(&[1]));
    let joined = node("Concat", &["wide"; 20_000], &["y"], &[whole("axis", 0)]);
    expect_a_graph(file(&[wide, joined, output("y")], &[]));
}

#[test]
fn lists_that_a_few_bytes_ask_for_end() {
    let wide = input("wide", FLOAT, &fixed(&[1 << 31]));
    let names: Vec<String> = (0..=20_000).map(|number| format!("s{number}")).collect();
    let insert = |at: usize| node("SequenceInsert", &[&names[at], "x"], &[&names[at + 1]], &[]);
    let inserts: Vec<Vec<u8>> = (0..20_000).map(insert).collect();
    let start = vec![x(), node("SequenceEmpty", &[], &["s0"], &[]), output("x")];
    let one = |op: &str, inputs: &[&str], beside: &[Vec<u8>]| {
        file(&[&[node(op, inputs, &["y"], &[]), output("y")], beside].concat(), &[])
    };
    let weights: Vec<Vec<u8>> =
        [("w", [1, 4, 1]), ("r", [1, 4, 1])].iter().map(|(name, dims)| input(name, FLOAT, &fixed(dims))).collect();
    let long = input("long", FLOAT, &fixed(&[1 << 30, 1, 1]));
    let edges = [("low", 0.0_f32), ("high", 8000.0)].map(|(name, hz)| {
        let tensor = [int(2, 1), bytes(9, hz.to_le_bytes())].concat();
        node("Constant", &[], &[name], &[attribute("value", &[int(20, 4), bytes(5, tensor)])])
    });
    let mel = [&[scalar("bins", (1 << 31) - 1), scalar("len", 16), scalar("rate", 16_000)], &edges[..]].concat();
    let image = [vector("size", &[1 << 30, 1]), vector("block", &[1, 1]), input("c", FLOAT, &fixed(&[1, 1, 1 << 30]))];
    expect(vec![
        (STEPS, file(&[start, inserts].concat(), &[])),
        (STEPS, one("SplitToSequence", &["wide"], std::slice::from_ref(&wide))),
        ("1073741824 steps: expected", one("LSTM", &["long", "w", "r"], &[&weights[..], &[long]].concat())),
        (STEPS, one("Col2Im", &["c", "size", "block"], &image)),
        ("expected smaller ones", one("DFT", &["signal"], &[input("signal", FLOAT, &fixed(&[1, 1 << 30, 1]))])),
        ("expected smaller ones", one("HannWindow", &["size"], &[scalar("size", 1 << 30)])),
        ("expected smaller ones", one("MelWeightMatrix", &["bins", "len", "rate", "low", "high"], &mel)),
        (
            "a block of [0, 0] in an image",
            one("Col2Im", &["c", "size", "none"], &[&image[..], &[vector("none", &[0, 0])]].concat()),
        ),
    ]);
}

/// Cases that fuzzing has found: each time the code took an operand's number of axes for granted.
#[test]
fn operands_of_too_few_axes_are_told() {
    let of = |name: &str, dtype, dims: &[i64]| input(name, dtype, &fixed(dims));
    let one = |op: &str, inputs: &[&str], more: &[Vec<u8>], beside: &[Vec<u8>]| {
        file(&[&[node(op, inputs, &["y"], more), output("y")], beside].concat(), &[])
    };
    let four = of("q", FLOAT, &[1, 1, 2, 2]);
    let window = [ints("kernel_shape", &[2, 2])];
    let at = of("at", INT64, &[1, 1, 2, 2]);
    expect(vec![
        ("expected 3 axes or more", one("Attention", &["q", "q", "q", "", "x", "x"], &[], &[four.clone(), x()])),
        ("a filter of f32[1,1]", one("ConvTranspose", &["q", "w"], &[], &[four.clone(), of("w", FLOAT, &[1, 1])])),
        (
            "shape [1, 1, 4, 4, 4]: expected 4 sizes",
            one("MaxUnpool", &["q", "at", "shape"], &window, &[four.clone(), at, vector("shape", &[1, 1, 4, 4, 4])]),
        ),
        ("expected one axis", one("Compress", &["x", "c"], &[], &[x(), of("c", BOOL, &[2, 2])])),
        (
            "expected [N, C",
            one("ConvInteger", &["u", "w", "", "z"], &[], &[of("u", 2, &[1, 1, 4]), of("w", 2, &[]), of("z", 2, &[3])]),
        ),
        ("expected 1 axes or more", one("RoiAlign", &["q", "s", "s"], &[], &[four, of("s", FLOAT, &[])])),
    ]);
}

#[test]
fn operands_that_do_not_fit_are_told() {
    let whole_numbers = input("i", INT64, &fixed(&[2]));
    let strings = input("t", 8, &fixed(&[2]));
    let one = |op: &str, inputs: &[&str], more: &[Vec<u8>]| {
        file(&[x(), whole_numbers.clone(), node(op, inputs, &["y"], more), output("y")], &[])
    };
    let two = attribute("value_floats", &[int(20, 6), bytes(7, 2_f32.to_le_bytes())]);
    let scales = node("Constant", &[], &["scales"], &[two]);
    let resize = node("Resize", &["x", "", "scales", "sizes"], &["y"], &[]);
    expect(vec![
        (
            "scales or sizes: expected 1, found 2",
            file(&[x(), scales, vector("sizes", &[2, 2]), resize, output("y")], &[]),
        ),
        ("f32 and i64", one("Add", &["x", "i"], &[])),
        ("input 1 is not a tensor, or left out", one("Add", &["x"], &[])),
        ("input 0 is not a tensor, or left out", one("Relu", &[], &[])),
        ("input 0: expected a sequence", one("SequenceAt", &["x", "i"], &[])),
        ("equation", one("Einsum", &["x"], &[text("equation", "..->...")])),
        ("equation", one("Einsum", &["x"], &[text("equation", "ii->")])),
        ("expected four axes", one("DepthToSpace", &["x"], &[whole("blocksize", 2)])),
        ("has to be known here", one("Reshape", &["x", "i"], &[])),
        ("axis 7: expected -1 to 0", one("Transpose", &["x"], &[ints("perm", &[7])])),
        ("to: expected", one("Cast", &["x"], &[whole("to", 99)])),
        ("STRING, which is not supported", file(&[strings, output("t")], &[])),
        ("is there twice", file(&[x(), x(), output("x")], &[])),
        ("two outputs have this name", file(&[x(), output("x"), output("x")], &[])),
        ("the graph has no output", file(&[x()], &[])),
        ("not a tensor, or has no type", file(&[message(11, &[bytes(1, "x")]), output("x")], &[])),
        (
            "of unknown rank",
            file(&[message(11, &[bytes(1, "x"), message(2, &[message(1, &[int(1, 1)])])]), output("x")], &[]),
        ),
        ("version 3 of the operators: expected 7 to", {
            let old = file(&[x(), node("Relu", &["x"], &["y"], &[]), output("y")], &[]);
            let at = old.windows(2).position(|pair| pair == [16, 18]).expect("the version of the operators");
            [&old[..at], &[16, 3], &old[at + 2..]].concat()
        }),
        (
            "expected a value of numbers",
            file(
                &[
                    node("Constant", &[], &["y"], &[attribute("value_string", &[int(20, 3), bytes(4, "a")])]),
                    output("y"),
                ],
                &[],
            ),
        ),
    ]);
}

/// ONNX has no element for such an index.
#[test]
fn known_indices_are_within_their_axis() {
    let at = |index: i64, operator: &str, more: &[&str]| {
        let inputs = [&["x", "at"], more].concat();
        let indices = match operator {
            "GatherND" | "ScatterND" => {
                vec![vector("flat", &[index]), vector("to", &[1, 1]), node("Reshape", &["flat", "to"], &["at"], &[])]
            }
            _ => vec![vector("at", &[index])],
        };
        let rest = vec![vector("update", &[7]), node("Cast", &["update"], &["u"], &[whole("to", FLOAT)])];
        let of = node(operator, &inputs, &["y"], &[]);
        file(&[indices, rest, vec![of, x(), output("y")]].concat(), &[])
    };
    let operators: [(&str, &[&str]); 5] = [
        ("Gather", &[]),
        ("GatherElements", &[]),
        ("GatherND", &[]),
        ("ScatterElements", &["u"]),
        ("ScatterND", &["u"]),
    ];
    for (operator, more) in operators {
        expect(vec![
            ("index 2 of an axis of 2: expected one from -2 to below 2", at(2, operator, more)),
            ("index -3 of an axis of 2", at(-3, operator, more)),
        ]);
        [-2, 1].into_iter().for_each(|index| expect_a_graph(at(index, operator, more)));
    }
}

/// A branch that may not be taken may have such an index.
#[test]
fn indices_of_branches_that_may_not_be_taken_are_clamped() {
    let yields = |name: &str, index: i64| {
        let at = format!("{name} at");
        body(name, &[vector(&at, &[index]), node("Gather", &["x", &at], &[name], &[]), output(name)])
    };
    let branch =
        |condition: &str| node("If", &[condition], &["y"], &[yields("then_branch", 0), yields("else_branch", 2)]);
    let go = input("go", BOOL, &[]);
    expect_a_graph(file(&[x(), go, branch("go"), output("y")], &[]));
    let known = |value: i64| vec![scalar("one", value), node("Cast", &["one"], &["go"], &[whole("to", BOOL)])];
    expect_a_graph(file(&[known(1), vec![x(), branch("go"), output("y")]].concat(), &[]));
    expect(vec![("index 2 of an axis of 2", file(&[known(0), vec![x(), branch("go"), output("y")]].concat(), &[]))]);
}
