//! Random sequences of calls with handles of any kind: each call must return, none may panic, and all released objects
//! must be gone in the end. The sequences that the fuzzer has kept are run too.

#[path = "../../tests/support/calls.rs"]
mod calls;
#[path = "../../tests/support/splitmix.rs"]
#[allow(dead_code, reason = "other tests choose by it")]
mod splitmix;

use std::fs;

use splitmix::Random;

const SEQUENCES: u64 = 40;
/// The random bytes of a sequence: enough for 400 calls of four decisions.
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
    // The package does not contain this folder.
    for kept in fs::read_dir("fuzz/corpus/calls").into_iter().flatten().flatten() {
        assert!(calls::run(&fs::read(kept.path()).expect("it is readable")) > 0, "{kept:?}");
    }
}
