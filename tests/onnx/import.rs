//! Models as graphs: sizes, names, functions, bodies, and refused files.

use trefoil::graph::{Graph, Tensor};
use trefoil::onnx::{File, Problem, Sizes};
use trefoil::{Error, loops};

use super::graphs::{BOOL, Dim, FLOAT, INT64, body, file, input, ints, node, node_in, output, x};
use super::write::{attribute, bytes, int, message};

fn opened(graph: &[Vec<u8>], more: &[Vec<u8>]) -> File {
    File::from_bytes(file(graph, more)).expect("it is well-formed")
}

fn imported(graph: &[Vec<u8>]) -> Graph {
    opened(graph, &[]).graph(&Sizes::new()).unwrap_or_else(|e| panic!("{e}"))
}

fn problems(graph: &[Vec<u8>]) -> Vec<Problem> {
    match opened(graph, &[]).graph(&Sizes::new()) {
        Err(Error::Import { problems, .. }) => problems.to_vec(),
        other => panic!("{other:?}"),
    }
}

fn evaluated(graph: &Graph, inputs: &[Tensor]) -> Vec<f32> {
    let outputs = loops::evaluate(graph, &mut |name, _| panic!("no weight `{name}`"), inputs).expect("it is sound");
    outputs[0].elems::<f32>().to_vec()
}

#[test]
fn every_problem_is_told_at_once() {
    let found = problems(&[
        x(),
        node("Odd", &["x"], &["a"], &[]),
        node("Relu", &["a"], &["not a problem of its own"], &[]),
        node("Reshape", &["x", "x"], &["b"], &[]),
        node("Relu", &["nowhere"], &["c"], &[]),
        node("Abs", &["x"], &["d"], &[bytes(7, "org.example")]),
        output("a"),
    ]);
    let said: Vec<_> = found.iter().map(|p| (&p.node[..], &p.operator[..], p.version, &p.operands[..])).collect();
    assert_eq!(
        said,
        [
            ("a", "Odd", 18, "f32[2]"),
            ("b", "Reshape", 18, "f32[2], f32[2]"),
            ("c", "Relu", 18, "`nowhere`"),
            ("d", "Abs", 0, "f32[2]"),
        ]
    );
    let reasons = ["not known", "has to be known here", "reads `nowhere`, which nothing writes", "`org.example`"];
    for (problem, reason) in found.iter().zip(reasons) {
        assert!(problem.reason.contains(reason), "{problem:?}");
    }
}

#[test]
fn cycles_and_second_definitions_are_problems() {
    let cycle = [x(), node("Add", &["x", "b"], &["a"], &[]), node("Relu", &["a"], &["b"], &[]), output("b")];
    let found = problems(&cycle);
    assert_eq!(found.iter().map(|p| &p.node[..]).collect::<Vec<_>>(), ["a", "b"]);
    assert!(found[0].reason.contains("cycle"), "{found:?}");
    let twice = [x(), node("Abs", &["x"], &["a"], &[]), node("Relu", &["x"], &["a"], &[]), output("a")];
    assert!(problems(&twice)[0].reason.contains("`a`, which is written already"));
}

#[test]
fn sizes_are_bound_by_name() {
    let input = input("x", FLOAT, &[Dim::Named("batch"), Dim::Named("?"), Dim::Fixed(3)]);
    let file = opened(&[input, node("Flatten", &["x"], &["y"], &[]), output("y")], &[]);
    let said = |sizes: &Sizes| file.graph(sizes).unwrap_err().to_string();
    assert!(said(&Sizes::new()).contains("`batch`, `x:1`"));
    let all = Sizes::new().dim("batch", 4).dim("x:1", 5);
    assert!(
        said(&all.clone().dim("height", 1))
            .contains("sizes is `height`: expected the model's free dimensions: batch, x:1")
    );
    assert!(said(&all.clone().constant("x", Tensor::of(&[1], &[1_f32]))).contains("f32[1] for `x`"));
    let graph = file.graph(&all).unwrap();
    assert_eq!(graph.value(graph.outputs[0].value).dims, [4, 15]);
}

#[test]
fn nodes_may_stand_before_what_they_read() {
    let graph = imported(&[x(), node("Abs", &["a"], &["y"], &[]), node("Neg", &["x"], &["a"], &[]), output("y")]);
    assert_eq!(evaluated(&graph, &[Tensor::of(&[2], &[3_f32, -4.0])]), [3.0, 4.0]);
}

#[test]
fn what_is_computed_of_shapes_is_folded() {
    let graph = imported(&[
        input("x", FLOAT, &[Dim::Fixed(2), Dim::Fixed(6)]),
        node("Shape", &["x"], &["shape"], &[]),
        node("Slice", &["shape", "one", "two"], &["last"], &[]),
        node("Constant", &[], &["one"], &[ints("value_ints", &[1])]),
        node("Constant", &[], &["two"], &[ints("value_ints", &[i64::MAX])]),
        node("Concat", &["last", "rest"], &["new"], &[attribute("axis", &[int(20, 2), int(3, 0)])]),
        node("Constant", &[], &["rest"], &[ints("value_ints", &[-1])]),
        node("Reshape", &["x", "new"], &["y"], &[]),
        output("y"),
    ]);
    assert_eq!((graph.nodes.len(), &graph.value(graph.outputs[0].value).dims[..]), (1, &[6, 2][..]));
}

#[test]
fn functions_are_inlined_with_the_callers_attributes() {
    let reference = |name: &str, to: &str| attribute(name, &[bytes(21, to), int(20, 1)]);
    let function = message(
        25,
        &[
            bytes(1, "Twice"),
            bytes(10, "org.example"),
            bytes(4, "in"),
            bytes(5, "out"),
            bytes(6, "slope"),
            node_in(7, "LeakyRelu", &["in"], &["a"], &[reference("alpha", "slope")]),
            node_in(7, "LeakyRelu", &["a"], &["out"], &[reference("alpha", "slope")]),
            message(9, &[int(2, 16)]),
        ],
    );
    let half = attribute("slope", &[int(20, 1), [&[0x15][..], &0.5_f32.to_le_bytes()].concat()]);
    let call = node("Twice", &["x"], &["y"], &[bytes(7, "org.example"), half]);
    let example = message(8, &[bytes(1, "org.example"), int(2, 1)]);
    let graph = opened(&[x(), call, output("y")], &[function, example]).graph(&Sizes::new()).unwrap();
    assert_eq!(graph.nodes.iter().map(|node| &node.name[..]).collect::<Vec<_>>(), ["y/a", "y/out"]);
    assert_eq!(evaluated(&graph, &[Tensor::of(&[2], &[8_f32, -8.0])]), [8.0, -2.0]);
}

#[test]
fn loops_are_unrolled_and_see_names_around_them() {
    let inside = |shows: &str| {
        body(
            "body",
            &[
                input("trip", INT64, &[]),
                input("go", BOOL, &[]),
                input("sum", FLOAT, &[Dim::Fixed(2)]),
                node("Add", &["sum", "x"], &["more"], &[]),
                node("Identity", &["go"], &["on"], &[]),
                node(shows, &["more"], &["shown"], &[]),
                output("on"),
                output("more"),
                output("shown"),
            ],
        )
    };
    let trips_of = |count: i64, shows: &str| {
        [
            x(),
            node("Constant", &[], &["trips"], &[attribute("value_int", &[int(20, 2), int(3, count)])]),
            node("Loop", &["trips", "", "x"], &["last", "each"], &[inside(shows)]),
            output("each"),
        ]
    };
    let trips = |count| trips_of(count, "Identity");
    let graph = imported(&trips(3));
    assert_eq!(graph.value(graph.outputs[0].value).dims, [3, 2]);
    assert_eq!(evaluated(&graph, &[Tensor::of(&[2], &[1_f32, 10.0])]), [2.0, 20.0, 3.0, 30.0, 4.0, 40.0]);
    let none = imported(&trips(0));
    assert_eq!(none.value(none.outputs[0].value).dims, [0, 2]);
    assert!(evaluated(&none, &[Tensor::of(&[2], &[1_f32, 10.0])]).is_empty());
    let [x, count, ..] = trips_of(0, "Unheard");
    let of_state = node("Loop", &["trips", "", "x"], &["last", ""], &[inside("Unheard")]);
    let kept = Tensor::of(&[2], &[1_f32, 10.0]);
    assert_eq!(evaluated(&imported(&[x, count, of_state, output("last")]), &[kept]), [1.0, 10.0]);
    let found = problems(&trips_of(0, "Unheard"));
    let named = |part: &str| found[0].reason.contains(part);
    assert!(found.len() == 1 && named("does not show the types") && named("Unheard"), "{found:?}");
    assert!(problems(&trips(i64::MAX))[0].reason.contains("more than 4096 trips"));
}

#[test]
fn branches_are_selected_where_the_condition_is_not_known() {
    let branch = |name: &str, operator: &str| body(name, &[node(operator, &["x"], &["inner"], &[]), output("inner")]);
    let both = [branch("then_branch", "Neg"), branch("else_branch", "Abs")];
    let file = opened(&[x(), input("c", BOOL, &[]), node("If", &["c"], &["y"], &both), output("y")], &[]);
    let truth = |holds: u8| Tensor::from_bytes(trefoil::graph::ValueType::new(trefoil::Dtype::Bool, &[]), &[holds]);
    let x = Tensor::of(&[2], &[-3_f32, 4.0]);
    let open = file.graph(&Sizes::new()).unwrap();
    for (holds, expected) in [(1, [3.0, -4.0]), (0, [3.0, 4.0])] {
        assert_eq!(evaluated(&open, &[x.clone(), truth(holds)]), expected);
        let known = file.graph(&Sizes::new().constant("c", truth(holds))).unwrap();
        assert_eq!((known.nodes.len(), evaluated(&known, std::slice::from_ref(&x))), (1, expected.to_vec()));
    }
}

#[test]
fn what_is_too_large_is_refused() {
    let shape = node("Constant", &[], &["shape"], &[ints("value_ints", &[1 << 40, 1 << 10])]);
    let found = problems(&[shape, node("ConstantOfShape", &["shape"], &["y"], &[]), output("y")]);
    assert!(found[0].reason.contains("is larger than"), "{found:?}");
    let number =
        |name: &str, value| node("Constant", &[], &[name], &[attribute("value_int", &[int(20, 2), int(3, value)])]);
    let range = node("Range", &["a", "b", "c"], &["y"], &[]);
    let found = problems(&[number("a", 0), number("b", i64::MAX), number("c", 1), range, output("y")]);
    assert!(found[0].reason.contains("elements at most"), "{found:?}");
}

#[test]
fn what_is_found_in_the_data_has_a_bound_and_a_count() {
    let found = node("NonZero", &["x"], &["at"], &[]);
    let graph = imported(&[
        found.clone(),
        node("Transpose", &["at"], &["y"], &[]),
        node("Shape", &["at"], &["shape"], &[]),
        x(),
        output("y"),
        output("shape"),
    ]);
    assert_eq!(graph.outputs.iter().map(|port| &*port.name).collect::<Vec<_>>(), ["y", "shape", "y.count"]);
    assert_eq!(graph.value(graph.outputs[0].value).dims, [2, 1]);
    for (x, y, count) in [([0.0, 5.0], [1, -1], 1), ([f32::NAN, -1.0], [0, 1], 2), ([0.0, -0.0], [-1, -1], 0)] {
        let inputs = [Tensor::of(&[2], &x)];
        let found = loops::evaluate(&graph, &mut |name, _| panic!("no weight `{name}`"), &inputs).expect("it is sound");
        assert_eq!(
            found.iter().map(|of| of.elems().to_vec()).collect::<Vec<Vec<i64>>>(),
            [&y[..], &[1, count], &[count]]
        );
    }
    let all = [
        node("ReduceSum", &["at"], &["sum"], &[]),
        node("Concat", &["at", "at"], &["twice"], &[attribute("axis", &[int(20, 2), int(3, 1)])]),
        node("Squeeze", &["at"], &["flat"], &[]),
        node("Mul", &["flat", "index"], &["product"], &[]),
        input("index", INT64, &[Dim::Fixed(2)]),
    ];
    let told = problems(&[&[found, x()][..], &all].concat());
    for (problem, axis) in told.iter().zip(["axis 1 of i64[1,2]", "axis 1 of i64[1,2]", "axis 0 of i64[2]"]) {
        assert!(
            problem.reason.contains(&format!("the number of elements in use along {axis} depends on the data")),
            "{problem:?}"
        );
    }
    assert_eq!(told.len(), 3, "{told:?}");
}

#[test]
fn a_count_goes_with_what_is_gathered() {
    let graph = imported(&[
        node("NonZero", &["x"], &["at"], &[]),
        node("Squeeze", &["at"], &["flat"], &[]),
        node("Gather", &["x", "flat"], &["y"], &[]),
        node("Size", &["y"], &["size"], &[]),
        input("x", FLOAT, &[Dim::Fixed(4)]),
        output("y"),
        output("size"),
    ]);
    let x = Tensor::of(&[4], &[0.0_f32, 7.0, 0.0, 9.0]);
    let found = loops::evaluate(&graph, &mut |name, _| panic!("no weight `{name}`"), &[x]).expect("it is sound");
    assert_eq!(found[0].elems::<f32>()[..2], [7.0, 9.0]);
    assert_eq!([1, 2].map(|output| found[output].elems::<i64>()[0]), [2, 2]);
    assert_eq!(graph.outputs[2].name, "y.count");
}

#[test]
fn boxes_that_are_known_are_exactly_those_that_are_chosen() {
    let graph = [
        node("NonMaxSuppression", &["boxes", "scores", "most", "iou"], &["y"], &[]),
        input("boxes", FLOAT, &[Dim::Fixed(1), Dim::Fixed(4), Dim::Fixed(4)]),
        input("scores", FLOAT, &[Dim::Fixed(1), Dim::Fixed(1), Dim::Fixed(4)]),
        input("most", INT64, &[Dim::Fixed(1)]),
        input("iou", FLOAT, &[Dim::Fixed(1)]),
        output("y"),
    ];
    let [low, high, other] = [[0.0_f32, 0.0, 1.0, 1.0], [0.1, 0.0, 1.1, 1.0], [5.0, 5.0, 6.0, 6.0]];
    let values = [
        ("boxes", Tensor::of(&[1, 4, 4], &[low, high, other, [9.0, 9.0, 8.0, 8.0]].concat())),
        ("scores", Tensor::of(&[1, 1, 4], &[0.5_f32, 0.75, 0.25, 0.75])),
    ];
    let limits =
        Sizes::new().constant("most", Tensor::of(&[1], &[3_i64])).constant("iou", Tensor::of(&[1], &[0.5_f32]));
    let known = values.iter().fold(limits.clone(), |sizes, (name, value)| sizes.constant(name, value.clone()));
    let file = opened(&graph, &[]);
    for (sizes, inputs) in [(limits, values.map(|(_, value)| value).to_vec()), (known, vec![])] {
        let graph = file.graph(&sizes).unwrap_or_else(|e| panic!("{e}"));
        let found = loops::evaluate(&graph, &mut |name, _| panic!("no weight `{name}`"), &inputs).expect("it is sound");
        assert_eq!(found[0].elems::<i64>(), [0, 0, 1, 0, 0, 3, 0, 0, 2]);
        assert_eq!(found.len(), if inputs.is_empty() { 1 } else { 2 });
    }
}
