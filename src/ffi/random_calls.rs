//! Random sequences of calls with any handles, of any kind and in any order: each is answered, none panics, and what is
//! released in the end is gone.

#[path = "../../tests/support/splitmix.rs"]
mod splitmix;

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use splitmix::Random;
use trefoil_status as s;

use super::batch::*;
use super::batcher::*;
use super::device::trefoil_device_open_cpu;
use super::engine::*;
use super::growing;
use super::handles::trefoil_release;
use super::layout::trefoil_engine_options;
use super::model::*;
use super::output::*;
use super::status::trefoil_status;
use super::ticket::*;

const SEQUENCES: u64 = 40;
const CALLS: usize = 400;

/// A wait that ends: a row may have to wait for a result that this thread itself holds.
const WAIT_NS: u64 = 50_000_000;

impl Random {
    /// One of the handles, most often the engine or one of the last; seldom a number that is none.
    fn handle(&mut self, known: &[u64]) -> u64 {
        match self.below(12) {
            0 => self.next(),
            1 => 0,
            2..5 => known[0],
            5 | 6 => known[self.below(known.len())],
            _ => known[known.len() - 1 - self.below(known.len().min(4))],
        }
    }
}

/// One call: its status, and the handle that it may have made.
fn call(random: &mut Random, known: &[u64]) -> (trefoil_status, u64) {
    let (handle, number, pixels) = (random.handle(known), random.below(7), [7_u8; 784]);
    let (mut made, mut at, mut bytes, mut count) = (0, null_mut(), 0, 0);
    let mut from: *const c_void = null();
    let mut values = [0_u8; 64];
    // SAFETY: every pointer is of a variable above, which lives to the end of the function; no row is touched.
    let status = unsafe {
        match random.below(24) {
            0..4 => trefoil_try_acquire(handle, &mut made),
            4..8 => trefoil_submit(handle, number, &mut made),
            8 | 9 => trefoil_wait_for(handle, WAIT_NS, &mut made),
            10 => trefoil_is_ready(handle),
            11 => trefoil_batch_row(handle, number, &mut at, &mut bytes),
            12 => trefoil_batch_port(handle, number, number, number as u32, &mut at, &mut bytes),
            13 => trefoil_output_row(handle, number, &mut from, &mut bytes),
            14 => trefoil_output_copy(handle, number, number, values.as_mut_ptr().cast(), values.len()),
            15 => trefoil_output_rows(handle, &mut count),
            16 => trefoil_batcher_build(handle, null(), &mut made),
            17 => trefoil_batcher_submit(handle, null(), pixels.as_ptr().cast(), 783 + number.min(1), &mut made),
            18 => trefoil_batcher_row(handle, null(), &mut made),
            19 => trefoil_row_memory(handle, &mut at, &mut bytes),
            20 => trefoil_row_submit(handle, &mut made),
            21 => trefoil_engine_capacity(handle, &mut count),
            22 if random.below(40) == 0 => trefoil_engine_close(handle, (number % 2) as u32, WAIT_NS),
            22 => trefoil_batch_row(handle, usize::MAX, null_mut(), null_mut()),
            _ => trefoil_release(handle),
        }
    };
    (status, made)
}

/// An engine on a CPU device of its own, and all handles that belong to it.
fn engine(model: u64) -> Vec<u64> {
    let (mut device, mut engine) = (0, 0);
    // SAFETY: null stands for the defaults, and the handles' places live.
    unsafe {
        let defaults: trefoil_engine_options = growing::read(null()).unwrap_or_else(|_| panic!("null is legal"));
        assert_eq!(trefoil_device_open_cpu(1, &mut device), s::Ok);
        let options = trefoil_engine_options { size: size_of::<trefoil_engine_options>(), device, ..defaults };
        assert_eq!(trefoil_engine_build(model, &options, &mut engine), s::Ok);
    }
    vec![engine, device]
}

#[test]
fn any_calls_in_any_order_are_answered() {
    let (mut model, mut answered) = (0, 0);
    // SAFETY: the path ends with a zero, and the handle's place lives.
    assert_eq!(unsafe { trefoil_model_open(c"weights/convnet28".as_ptr(), &mut model) }, s::Ok);
    for seed in 0..SEQUENCES {
        let (mut random, mut known) = (Random(seed), engine(model));
        for number in 0..CALLS {
            let (status, made) = call(&mut random, &known);
            assert!(!matches!(status, s::Internal), "sequence {seed}, call {number}: {status:?}");
            if status == s::Ok && made != 0 {
                assert!(!known.contains(&made), "sequence {seed}, call {number}: a handle is given out twice");
                known.push(made);
            }
            answered += usize::from(status == s::Ok);
        }
        for handle in known {
            assert!(matches!(trefoil_release(handle), s::Ok | s::Released), "sequence {seed}");
            assert_eq!(trefoil_release(handle), s::Released);
        }
    }
    assert_eq!(trefoil_release(model), s::Ok);
    assert!(answered > SEQUENCES as usize * 10, "{answered} calls did something");
}
