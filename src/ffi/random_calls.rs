//! Random sequences of calls with any handles, of any kind and in any order: each is answered, none panics, and what is
//! released in the end is gone. The fuzzer's kept sequences, too.

#[path = "../../tests/support/calls.rs"]
mod calls;
#[path = "../../tests/support/splitmix.rs"]
#[allow(dead_code, reason = "other tests choose by it")]
mod splitmix;

use std::fs;

use splitmix::Random;

const SEQUENCES: u64 = 40;
/// Enough for 400 calls of four decisions.
const BYTES: usize = 1600;

#[test]
fn any_calls_in_any_order_are_answered() {
    let answered = |seed| {
        let mut random = Random(seed);
        let bytes: Vec<u8> = (0..BYTES).map(|_| random.next() as u8).collect();
        calls::run(&bytes)
    };
    let all: usize = (0..SEQUENCES).map(answered).sum();
    assert!(all > SEQUENCES as usize * 10, "{all} calls did something");
    // Which the package leaves out.
    for kept in fs::read_dir("fuzz/corpus/calls").into_iter().flatten().flatten() {
        assert!(calls::run(&fs::read(kept.path()).expect("it is readable")) > 0, "{kept:?}");
    }
}
