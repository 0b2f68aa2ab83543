//! Operators at the edges of their definitions: large integers, repeated labels, empty results and huge windows.

use trefoil::graph::Tensor;
use trefoil::model::Model;
use trefoil::onnx::{File, Sizes};
use trefoil::{Dtype, Error, loops};

use super::Folder;
use super::graphs::{BOOL, Dim, FLOAT, INT64, body, file, input, ints, node, output, scalar, text, vector, whole};
use super::memory::peak;
use super::write::{attribute, bytes, int, message};

const INT32: i64 = 6;

fn of(name: &str, dtype: i64, dims: &[i64]) -> Vec<u8> {
    input(name, dtype, &dims.iter().map(|&dim| Dim::Fixed(dim)).collect::<Vec<_>>())
}

/// A constant of floats with one dimension.
fn floats(name: &str, values: &[f32]) -> Vec<u8> {
    let packed: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    node("Constant", &[], &[name], &[attribute("value_floats", &[int(20, 6), bytes(7, packed)])])
}

/// The result `y` of a graph for these inputs, or the error.
fn computed(graph: &[Vec<u8>], inputs: &[Tensor]) -> Result<Tensor, Error> {
    let file = File::from_bytes(file(&[graph, &[output("y")]].concat(), &[]))?;
    let graph = file.graph(&Sizes::new())?;
    Ok(loops::evaluate(&graph, &mut |name, _| panic!("no weight `{name}`"), inputs)?.remove(0))
}

fn result(graph: &[Vec<u8>], inputs: &[Tensor]) -> Tensor {
    computed(graph, inputs).unwrap_or_else(|e| panic!("{e}"))
}

fn refused(graph: &[Vec<u8>]) -> String {
    computed(graph, &[]).unwrap_err().to_string()
}

/// A whole number that f64 does not have.
const ODD: i64 = (1 << 53) + 1;

#[test]
fn integers_stay_exact() {
    let padded = |value: i64| {
        let graph = [of("x", INT64, &[1]), vector("pads", &[0, 1]), scalar("value", value)];
        let pad = node("Pad", &["x", "pads", "value"], &["y"], &[]);
        result(&[&graph[..], &[pad]].concat(), &[Tensor::of(&[1], &[7_i64])])
    };
    for value in [ODD, i64::MAX, i64::MIN] {
        assert_eq!(padded(value).elems::<i64>(), [7, value]);
    }
    let range = |numbers: [i64; 3]| {
        let [start, limit, step] = [("a", 0), ("b", 1), ("c", 2)].map(|(name, at)| scalar(name, numbers[at]));
        computed(&[start, limit, step, node("Range", &["a", "b", "c"], &["y"], &[])], &[])
    };
    assert_eq!(range([ODD, ODD + 5, 2]).unwrap().elems::<i64>(), [ODD, ODD + 2, ODD + 4]);
    assert_eq!(range([ODD, ODD - 3, -2]).unwrap().elems::<i64>(), [ODD, ODD - 2]);
    assert_eq!(range([ODD, ODD - 3, 2]).unwrap().elems::<i64>(), [0_i64; 0]);
    assert!(range([0, 5, 0]).unwrap_err().to_string().contains("0 to 5 by 0"));
    let mean = node("ReduceMean", &["x"], &["y"], &[whole("keepdims", 0)]);
    let numbers = Tensor::of(&[3], &[i32::MAX, i32::MAX, i32::MAX - 3]);
    assert_eq!(result(&[of("x", INT32, &[3]), mean], &[numbers]).elems::<i32>(), [i32::MAX - 1]);
}

#[test]
fn a_power_of_an_integer_and_a_float_is_computed_in_f64() {
    let power = node("Pow", &["x", "by"], &["y"], &[]);
    let of_ints = |by: f32, x: i32| {
        let graph = [of("x", INT32, &[1]), floats("by", &[by]), power.clone()];
        result(&graph, &[Tensor::of(&[1], &[x])]).elems::<i32>()[0]
    };
    assert_eq!((of_ints(1.0, 16_777_217), of_ints(2.0, 46_339), of_ints(0.5, 81)), (16_777_217, 46_339 * 46_339, 9));
    let long = [of("x", INT64, &[1]), floats("by", &[3.0]), power.clone()];
    assert_eq!(result(&long, &[Tensor::of(&[1], &[200_003_i64])]).elems::<i64>(), [8_000_360_005_400_027]);
    let of_floats = |by: i64, x: f32| {
        let graph = [of("x", FLOAT, &[1]), scalar("by", by), power.clone()];
        result(&graph, &[Tensor::of(&[1], &[x])]).elems::<f32>()[0]
    };
    assert_eq!((of_floats(2, 3.0), of_floats(16_777_217, -1.0)), (9.0, -1.0));
    let mixed = [of("x", INT32, &[1]), scalar("by", 1 << 32), power];
    assert_eq!(result(&mixed, &[Tensor::of(&[1], &[-1_i32])]).elems::<i32>(), [1]);
}

fn einsum(equation: &str, operands: &[(&str, [i64; 2])]) -> Vec<Vec<u8>> {
    let names: Vec<&str> = operands.iter().map(|(name, _)| *name).collect();
    let product = node("Einsum", &names, &["y"], &[text("equation", equation)]);
    operands.iter().map(|(name, dims)| of(name, FLOAT, dims)).chain([product]).collect()
}

#[test]
fn a_repeated_label_is_not_in_a_result_that_is_left_out() {
    let x = Tensor::of(&[2, 2], &[1_f32, 2.0, 3.0, 4.0]);
    let trace = result(&einsum("ii", &[("x", [2, 2])]), std::slice::from_ref(&x));
    assert_eq!((trace.value_type().rank(), trace.elems::<f32>()), (0, &[5.0][..]));
    let both = einsum("ii,jk", &[("x", [2, 2]), ("w", [2, 2])]);
    assert_eq!(result(&both, &[x.clone(), x]).elems::<f32>(), [5.0, 10.0, 15.0, 20.0]);
}

#[test]
fn a_size_of_1_stands_for_all_in_an_einsum_but_not_in_a_product() {
    let (x, w) = (Tensor::of(&[2, 3], &[1_f32, 2.0, 3.0, 4.0, 5.0, 6.0]), Tensor::of(&[1, 2], &[1_f32, 10.0]));
    for (equation, first, second) in
        [("mk,kn->mn", ("x", [2, 3]), ("w", [1, 2])), ("kn,mk->mn", ("w", [1, 2]), ("x", [2, 3]))]
    {
        let inputs = if first.0 == "x" { [x.clone(), w.clone()] } else { [w.clone(), x.clone()] };
        let graph = einsum(equation, &[first, second]);
        assert_eq!(result(&graph, &inputs).elems::<f32>(), [6.0, 60.0, 15.0, 150.0], "{equation}");
    }
    for op in ["MatMul", "Gemm"] {
        let said = refused(&[of("x", FLOAT, &[2, 64]), of("w", FLOAT, &[1, 5]), node(op, &["x", "w"], &["y"], &[])]);
        assert!(said.contains("found 64 of f32[2,64] and 1 of f32[1,5]"), "{said}");
    }
    let turned = [of("x", FLOAT, &[64, 2]), of("w", FLOAT, &[5, 1])];
    let turned =
        [&turned[..], &[node("Gemm", &["x", "w"], &["y"], &[whole("transA", 1), whole("transB", 1)])]].concat();
    assert!(refused(&turned).contains("found 64 of f32[64,2] and 1 of f32[5,1]"));
}

#[test]
fn a_diagonal_far_outside_keeps_all_or_nothing() {
    let kept = |k: i64, upper: i64| {
        let graph =
            [of("x", INT64, &[2, 3]), scalar("k", k), node("Trilu", &["x", "k"], &["y"], &[whole("upper", upper)])];
        result(&graph, &[Tensor::of(&[2, 3], &[1_i64; 6])]).elems::<i64>().iter().sum::<i64>()
    };
    assert_eq!([1, 0].map(|upper| kept(i64::MAX, upper)), [0, 6]);
    assert_eq!([1, 0].map(|upper| kept(i64::MIN, upper)), [6, 0]);
    assert_eq!([1, 0].map(|upper| kept(1, upper)), [3, 5]);
}

#[test]
fn a_count_does_not_become_that_of_an_axis_that_is_broadcast() {
    let found = [of("x", FLOAT, &[1]), node("NonZero", &["x"], &["at"], &[]), vector("shape", &[2, 3])];
    let said = refused(&[&found[..], &[node("Expand", &["at", "shape"], &["y"], &[])]].concat());
    assert!(said.contains("the number of elements in use along axis"), "{said}");
}

fn pool(op: &str, dims: [i64; 2], more: &[Vec<u8>]) -> Vec<Vec<u8>> {
    vec![of("x", FLOAT, &[1, 1, dims[0], dims[1]]), node(op, &["x"], &["y"], more)]
}

#[test]
fn a_window_longer_than_the_padded_operand_has_no_place() {
    let x = Tensor::of(&[1, 1, 2, 2], &[1_f32; 4]);
    let window = |rows: i64, more: Vec<u8>| [ints("kernel_shape", &[rows, 1]), whole("ceil_mode", 1), more];
    for op in ["AveragePool", "MaxPool", "LpPool"] {
        let graph = pool(op, [2, 2], &window(3, ints("strides", &[1, 1])));
        assert_eq!(result(&graph, std::slice::from_ref(&x)).value_type().dims, [1, 1, 0, 2]);
        let graph = pool(op, [2, 2], &window(3, ints("strides", &[2, 1])));
        assert_eq!(result(&graph, std::slice::from_ref(&x)).value_type().dims, [1, 1, 1, 2]);
        let said = refused(&pool(op, [2, 2], &window(4, ints("strides", &[1, 1]))));
        assert!(said.contains("expected 2 at most (with padding), found 4"), "{said}");
    }
}

#[test]
fn taps_that_never_meet_the_operand_are_left_out() {
    const HUGE: i64 = 1 << 31;
    let numbers: Vec<f32> = (1..=25).map(|number| number as f32).collect();
    let x = Tensor::of(&[1, 1, 5, 5], &numbers);
    let behind = [ints("kernel_shape", &[HUGE, 5]), ints("pads", &[0, 0, HUGE, 0]), ints("strides", &[1 << 20, 1])];
    let front = [ints("kernel_shape", &[HUGE, 5]), ints("pads", &[HUGE - 5, 0, 0, 0])];
    for windows in [&behind[..], &front[..]] {
        let mean = result(&pool("AveragePool", [5, 5], windows), std::slice::from_ref(&x));
        assert_eq!(mean.elems::<f32>()[0], 13.0);
        assert_eq!(result(&pool("MaxPool", [5, 5], windows), std::slice::from_ref(&x)).elems::<f32>()[0], 25.0);
    }
    let rounded = [ints("kernel_shape", &[HUGE, 2]), whole("ceil_mode", 1), whole("count_include_pad", 1)];
    assert!(refused(&pool("AveragePool", [5, 5], &rounded)).contains("found 2147483648"));
}

/// Every window of 1 to 7 taps, with and without its useless ones.
#[test]
fn windows_in_much_padding_have_the_same_results() {
    let x = Tensor::of(&[1, 1, 1, 3], &[1_f32, -2.0, 5.0]);
    for (taps, stride, dilation, before, behind) in
        (0..7_i64 * 3 * 3 * 7 * 7).map(|n| (n % 7 + 1, n / 7 % 3 + 1, n / 21 % 3 + 1, n / 63 % 7, n / 441))
    {
        let reach = (taps - 1) * dilation + 1;
        if 3 + before + behind < reach {
            continue;
        }
        let more = [
            ints("kernel_shape", &[1, taps]),
            ints("strides", &[1, stride]),
            ints("dilations", &[1, dilation]),
            ints("pads", &[0, before, 0, behind]),
        ];
        let found = result(&pool("MaxPool", [1, 3], &more), std::slice::from_ref(&x));
        let place = |place: i64| {
            let at = |tap: i64| x.elems::<f32>().get((place * stride + tap * dilation - before) as usize);
            (0..taps).filter_map(at).fold(f32::NEG_INFINITY, |most, &next| most.max(next))
        };
        let expected: Vec<f32> = (0..=(3 + before + behind - reach) / stride).map(place).collect();
        let found: Vec<f32> =
            found.elems::<f32>().iter().map(|&y| if y == f32::MIN { f32::NEG_INFINITY } else { y }).collect();
        assert_eq!(found, expected, "{taps} taps, {stride}, {dilation}, {before}, {behind}");
    }
}

#[test]
fn sequences_of_different_lengths_are_not_scanned_together() {
    let inside = body(
        "body",
        &[of("a", FLOAT, &[]), of("b", FLOAT, &[]), node("Add", &["a", "b"], &["sum"], &[]), output("sum")],
    );
    let scan = |len: i64| {
        let scan = node("Scan", &["x", "w"], &["y"], &[whole("num_scan_inputs", 2), inside.clone()]);
        [of("x", FLOAT, &[2]), of("w", FLOAT, &[len]), scan]
    };
    let x = Tensor::of(&[2], &[1_f32, 2.0]);
    assert_eq!(result(&scan(2), &[x.clone(), x]).elems::<f32>(), [2.0, 4.0]);
    assert!(refused(&scan(3)).contains("sequences of [2, 3] elements"));
}

/// A file whose initializers of this type all have the same 1,000,000 bytes, and its nodes.
fn shared(folder: &Folder, dtype: i64, nodes: impl Fn(&str, &str) -> Vec<u8>) -> std::path::PathBuf {
    const BYTES: i64 = 1_000_000;
    folder.write("data", vec![1; BYTES as usize]);
    let place = [("location", "data")].map(|(key, value)| message(13, &[bytes(1, key), bytes(2, value)])).concat();
    let mut graph = vec![of("x", FLOAT, &[2]), node("Relu", &["x"], &["y"], &[]), output("y")];
    for number in 0..100 {
        let name = format!("w{number}");
        graph.push(message(5, &[bytes(8, &name), int(2, dtype), int(1, BYTES), int(14, 1), place.clone()]));
        graph.push(nodes(&name, &format!("{name}.y")));
    }
    folder.write("shared.onnx", file(&graph, &[]))
}

#[test]
fn tensors_that_have_to_be_converted_are_read_once_and_only_if_a_node_reads_them() {
    let folder = Folder::new();
    let not = |from: &str, to: &str| node("Not", &[from], &[to], &[]);
    for (path, most) in [(shared(&folder, BOOL, |_, _| vec![]), 4 << 20), (shared(&folder, BOOL, not), 8 << 20)] {
        let (model, held) = peak(|| Model::open(&path));
        assert!(held < most, "{held} bytes");
        drop(model.unwrap());
    }
}

#[test]
fn weights_are_found_by_name() {
    let weight =
        |name: &str, value: f32| message(5, &[bytes(8, name), int(2, FLOAT), int(1, 1), bytes(9, value.to_le_bytes())]);
    let graph = [weight("b", 1.0), weight("c", 2.0), weight("a", 3.0)];
    let file = File::from_bytes(file(&graph, &[])).unwrap();
    assert_eq!(["a", "b", "c"].map(|name| file.weight(name).unwrap().elems::<f32>()[0]), [3.0, 1.0, 2.0]);
    assert!(file.weight("d").is_err());
    assert_eq!(file.weight("a").unwrap().value_type().dtype, Dtype::F32);
}
