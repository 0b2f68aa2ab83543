//! The memory that the reader takes, counted by the allocator of this test.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use trefoil::Error;
use trefoil::onnx::File;

use super::Folder;
use super::write::{attribute, bytes, external, initializer, int, message, model, node};

/// The system's allocator, with a count for each thread.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    /// Bytes that this thread holds, and the most that it has held since [`peak`] began.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(bytes: isize) {
    HELD.with(|held| {
        let (now, most) = held.get();
        held.set((now + bytes, most.max(now + bytes)));
    });
}

// SAFETY: every call is the system allocator's own, with the caller's arguments; the count is a plain cell without a
// destructor, which allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `at` is of `System`, by `alloc` above.
        unsafe { System.dealloc(at, layout) }
    }
}

/// The result of `work`, and the most bytes that its thread held at a time, beyond those held before.
pub fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let (before, _) = HELD.get();
    HELD.set((before, before));
    let made = work();
    (made, (HELD.get().1 - before) as usize)
}

/// Bytes outside of the budget: a piece of the file, and the error.
pub const BESIDE_BYTES: usize = 32 << 10;

#[test]
fn small_messages_by_the_million_end_at_the_limit() {
    const LIMIT_BYTES: u64 = 4 << 20;
    let many = |one: Vec<u8>| one.repeat((2 << 20) / one.len());
    let in_node = |fields: Vec<u8>| model(&[node("A", &[fields])]);
    let in_attribute = |fields: Vec<u8>| in_node(attribute("a", &[fields]));
    let value = |kind: Vec<u8>| model(&[message(11, &[bytes(1, "x"), message(2, &[kind])])]);
    let files = [
        ("GraphProto.node", model(&[many(node("A", &[]))])),
        ("GraphProto.value_info", model(&[many(message(13, &[]))])),
        ("GraphProto.output", model(&[many(message(12, &[]))])),
        ("GraphProto.initializer", model(&[many(initializer(1, &[0], &[]))])),
        ("NodeProto.input", in_node(many(bytes(1, "")))),
        ("NodeProto.output", in_node(many(bytes(2, "x")))),
        ("NodeProto.attribute", in_node(many(attribute("", &[int(20, 7)])))),
        ("AttributeProto.ints", in_attribute(bytes(8, vec![0; 2 << 20]))),
        ("AttributeProto.floats", in_attribute(many(vec![0x3D, 0, 0, 0, 0]))),
        ("AttributeProto.strings", in_attribute(many(bytes(9, "")))),
        ("TensorProto", in_attribute(many(message(10, &[int(1, 0), int(2, 1)])))),
        ("AttributeProto.graphs", in_attribute(many(message(11, &[])))),
        ("TensorProto.dims", model(&[initializer(1, &[], &[bytes(1, vec![1; 2 << 20])])])),
        ("TensorProto.int32_data", model(&[initializer(6, &[], &[many(int(5, 0))])])),
        ("TensorShapeProto.dim", value(message(1, &[message(2, &[many(message(1, &[]))])]))),
        ("ModelProto.metadata_props", [model(&[]), many(message(14, &[]))].concat()),
        ("ModelProto.opset_import", [model(&[]), many(message(8, &[int(2, 1)]))].concat()),
        ("ModelProto.functions", [model(&[]), many(message(25, &[bytes(1, "f")]))].concat()),
        ("NodeProto.name", in_node(many(bytes(3, "the last one of many")))),
    ];
    let folder = Folder::new();
    for (place, file) in files {
        let path = folder.write("model.onnx", file);
        let (answer, peak) = peak(|| File::open_within(&path, LIMIT_BYTES));
        let said = answer.unwrap_err().to_string();
        let what = format!("{place}: the model up to here takes more than {LIMIT_BYTES} bytes of memory");
        assert!(said.contains(&what) && said.contains("byte "), "{place}: {said}");
        assert!(peak <= LIMIT_BYTES as usize + BESIDE_BYTES, "{place}: {peak} bytes");
    }
}

#[test]
fn elements_and_texts_for_people_take_no_memory() {
    let folder = Folder::new();
    let elems = 1 << 20;
    let weight = initializer(1, &[elems], &[bytes(9, vec![7; 4 * elems as usize])]);
    let path = folder.write("model.onnx", model(&[weight, bytes(10, vec![b'x'; 1 << 20])]));
    let (file, peak) = peak(|| File::open(&path));
    assert!(peak < BESIDE_BYTES, "{peak} bytes");
    let file = file.unwrap();
    let mut out = vec![0; 4 << 20];
    file.read(&file.model().graph.initializers[0], &mut out).unwrap();
    assert!(out.iter().all(|&byte| byte == 7));
}

#[test]
fn long_names_and_shapes_are_cut_in_errors() {
    let name = "n".repeat(1 << 20);
    let weight = message(5, &[bytes(8, &name), int(1, 0), int(2, 1)]);
    let shape = bytes(1, vec![1; 1 << 18]);
    let folder = Folder::new();
    for (what, file) in [
        ("is there twice", model(&[weight.clone(), weight])),
        ("has no op_type", model(&[message(1, &[bytes(3, &name)])])),
        ("has no value; its type is UNDEFINED", model(&[node("A", &[attribute(&name, &[])])])),
        ("is declared as FLOAT, but is INT", model(&[node("A", &[attribute(&name, &[int(20, 1), int(3, 0)])])])),
        (
            "[1, 1, 1, 1, 1, 1, 1, 1] and 262136 more: expected 4 bytes, found 0",
            model(&[initializer(1, &[], &[shape])]),
        ),
        ("expected a path that begins", model(&[external(&[0], &[("location", &format!("/{name}"))])])),
        ("expected numbers, found offset", model(&[external(&[0], &[("location", "w"), ("offset", &name)])])),
        ("two versions", [model(&[]), [1, 2].map(|v| message(8, &[bytes(1, &name), int(2, v)])).concat()].concat()),
    ] {
        let path = folder.write("model.onnx", file);
        let (answer, peak) = peak(|| File::open_within(&path, 12 << 20).unwrap_err());
        let Error::Format { what: said, .. } = answer else { panic!("{what}: {answer}") };
        assert!(said.contains(what) && said.len() < 1000, "expected `{what}`, found {} bytes: {said:.400}", said.len());
        assert!(peak < 12 << 20, "{what}: {peak} bytes");
    }
}
