//! Bytes as calls of the C interface, with handles of any kind and in any order: each call returns, no handle is given
//! out twice, and released handles are refused.

use std::ffi::{CString, c_char, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

const OK: i32 = 0;
const RELEASED: i32 = 12;
const INTERNAL: i32 = 50;

/// The time limit of waits: a row may wait for a result that this thread itself holds.
const WAIT_NS: u64 = 2_000_000;
/// The most calls for one input.
const MOST: usize = 400;
/// Bytes of a row of the model.
const ROW: usize = 784;

// The functions as include/trefoil.h declares them, with untyped addresses in the place of options.
unsafe extern "C" {
    fn trefoil_model_open(path: *const c_char, model: *mut u64) -> i32;
    fn trefoil_engine_build(model: u64, options: *const c_void, engine: *mut u64) -> i32;
    fn trefoil_engine_capacity(engine: u64, rows: *mut usize) -> i32;
    fn trefoil_engine_close(engine: u64, abort: u32, limit_ns: u64) -> i32;
    fn trefoil_try_acquire(engine: u64, batch: *mut u64) -> i32;
    fn trefoil_submit(batch: u64, rows: usize, ticket: *mut u64) -> i32;
    fn trefoil_wait_for(ticket: u64, limit_ns: u64, output: *mut u64) -> i32;
    fn trefoil_is_ready(ticket: u64) -> i32;
    fn trefoil_batch_row(batch: u64, index: usize, row: *mut *mut c_void, bytes: *mut usize) -> i32;
    fn trefoil_batch_port(
        batch: u64,
        index: usize,
        port: usize,
        dtype: u32,
        elements: *mut *mut c_void,
        bytes: *mut usize,
    ) -> i32;
    fn trefoil_output_row(output: u64, index: usize, row: *mut *const c_void, bytes: *mut usize) -> i32;
    fn trefoil_output_port(
        output: u64,
        index: usize,
        port: usize,
        dtype: u32,
        elements: *mut *const c_void,
        bytes: *mut usize,
    ) -> i32;
    fn trefoil_output_copy(output: u64, first: usize, count: usize, values: *mut c_void, bytes: usize) -> i32;
    fn trefoil_output_rows(output: u64, rows: *mut usize) -> i32;
    fn trefoil_batcher_build(engine: u64, options: *const c_void, batcher: *mut u64) -> i32;
    fn trefoil_batcher_submit(
        batcher: u64,
        options: *const c_void,
        pixels: *const c_void,
        bytes: usize,
        ticket: *mut u64,
    ) -> i32;
    fn trefoil_batcher_row(batcher: u64, options: *const c_void, row: *mut u64) -> i32;
    fn trefoil_row_memory(row: u64, memory: *mut *mut c_void, bytes: *mut usize) -> i32;
    fn trefoil_row_submit(row: u64, ticket: *mut u64) -> i32;
    fn trefoil_release(handle: u64) -> i32;
}

/// Decisions that bytes make; behind the last byte all decisions are 0.
struct Decisions<'a>(&'a [u8]);

impl Decisions<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }
}

/// Makes the calls on an engine of its own; returns how many succeeded.
pub fn run(bytes: &[u8]) -> usize {
    let (mut source, mut engine, mut answered) = (Decisions(bytes), 0, 0);
    // SAFETY: no options stand for the defaults, and the handle's place lives.
    assert_eq!(unsafe { trefoil_engine_build(model(), null(), &raw mut engine) }, OK);
    let mut known = vec![engine];
    for number in 0..MOST {
        if source.0.is_empty() {
            break;
        }
        let (status, made) = call(&mut source, &known);
        assert_ne!(status, INTERNAL, "call {number}");
        answered += usize::from(status == OK);
        if status == OK && made != 0 {
            assert!(!known.contains(&made), "call {number}: a handle is given out twice");
            known.push(made);
        }
    }
    for handle in known {
        // SAFETY: any number may be passed.
        let [first, second] = [(); 2].map(|()| unsafe { trefoil_release(handle) });
        assert!([OK, RELEASED].contains(&first) && second == RELEASED, "{first} and {second}");
    }
    answered
}

/// The model that all inputs share.
fn model() -> u64 {
    static MODEL: OnceLock<u64> = OnceLock::new();
    *MODEL.get_or_init(|| {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join("weights/convnet28"));
        let path = from.into_iter().find(|path| path.is_dir()).expect("the repository's weights");
        let (path, mut model) = (CString::new(path.to_str().expect("a path in UTF-8")).expect("no NUL"), 0);
        // SAFETY: the path ends with a NUL, and the handle's place lives.
        assert_eq!(unsafe { trefoil_model_open(path.as_ptr(), &raw mut model) }, OK);
        model
    })
}

/// One of the handles, most often the engine or one of the last; seldom a number that is no handle.
fn handle(source: &mut Decisions<'_>, known: &[u64]) -> u64 {
    match source.below(12) {
        0 => u64::from(source.byte()) << (8 * source.below(8)),
        1 => 0,
        2..5 => known[0],
        5 | 6 => known[source.below(known.len())],
        _ => known[known.len() - 1 - source.below(known.len().min(4))],
    }
}

/// Makes one call; returns its status and the handle that it made, if any.
fn call(source: &mut Decisions<'_>, known: &[u64]) -> (i32, u64) {
    let (which, handle, number) = (source.below(26), handle(source, known), source.below(10));
    let index = if number == 9 { usize::MAX } else { number };
    let (mut made, mut at, mut bytes, mut count) = (0, null_mut(), 0, 0);
    let (mut from, mut values, pixels): (*const c_void, _, _) = (null(), [0_u8; 64], [7_u8; ROW]);
    // SAFETY: every address is of a variable above, which lives to the end of the function, or null; no row is touched.
    let status = unsafe {
        match which {
            0..4 => trefoil_try_acquire(handle, &raw mut made),
            4..8 => trefoil_submit(handle, index, &raw mut made),
            8 | 9 => trefoil_wait_for(handle, WAIT_NS, &raw mut made),
            10 => trefoil_is_ready(handle),
            11 => trefoil_batch_row(handle, index, &raw mut at, &raw mut bytes),
            12 => trefoil_batch_port(handle, index, number, number as u32, &raw mut at, &raw mut bytes),
            13 => trefoil_output_row(handle, index, &raw mut from, &raw mut bytes),
            14 => trefoil_output_port(handle, index, number, number as u32, &raw mut from, &raw mut bytes),
            15 => trefoil_output_copy(handle, index, number, (&raw mut values).cast(), values.len()),
            16 => trefoil_output_rows(handle, &raw mut count),
            17 => trefoil_batcher_build(handle, null(), &raw mut made),
            18 => trefoil_batcher_submit(
                handle,
                null(),
                (&raw const pixels).cast(),
                ROW - 1 + number.min(1),
                &raw mut made,
            ),
            19 => trefoil_batcher_row(handle, null(), &raw mut made),
            20 => trefoil_row_memory(handle, &raw mut at, &raw mut bytes),
            21 => trefoil_row_submit(handle, &raw mut made),
            22 => trefoil_engine_capacity(handle, &raw mut count),
            23 if source.below(40) == 0 => trefoil_engine_close(handle, (number % 2) as u32, WAIT_NS),
            23 => trefoil_batch_row(handle, usize::MAX, null_mut(), null_mut()),
            // The engine is seldom released: without it most calls do nothing.
            _ if handle != known[0] || source.below(8) == 0 => trefoil_release(handle),
            _ => trefoil_output_rows(handle, &raw mut count),
        }
    };
    (status, made)
}
