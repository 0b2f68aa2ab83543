//! Forbidden actions of kernels are faults.

use crate::harness::{block, kernel, launch};
use crate::ptx::Kind;

fn fault(body: &str, threads: u32) -> (Kind, String) {
    let mut out = [0; 4];
    let Err(fault) = launch(&kernel(body), block(threads), &mut [&mut out]) else { panic!("{body} is no fault") };
    fault
}

#[test]
fn addresses_are_checked() {
    for body in [
        "st.global.u32 [%out+32], 1;",
        "st.global.u32 [%out+-4], 1;",
        "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%out+32];",
        "ld.global.u32 %r1, [0];",
        "ld.global.u32 %r1, [%q1+3];", // a register that was never written
        ".shared .u32 x; ld.shared.u32 %r1, [x+4];",
        ".shared .u32 x; cvta.shared.u64 %q1, x; st.u64 [%q1], %q1;",
        ".local .u32 x; mov.u64 %q1, 16; st.local.u32 [%q1], 1;",
        "atom.global.add.u32 %r1, [%out+64], 1;",
    ] {
        let (kind, what) = fault(body, 1);
        assert!(
            kind == Kind::Address && what.contains("k, ptx line 9, block [0, 0, 0], thread [0, 0, 0]"),
            "{body}: {what}"
        );
    }
    let (kind, what) = fault("setp.eq.u32 %p1, %tid.x, 5; @%p1 st.global.u64 [%out+4], %out;", 8);
    assert!(kind == Kind::Misaligned && what.contains("thread [5, 0, 0]"), "{what}");
}

#[test]
fn what_never_ends_is_a_fault() {
    let lost = "setp.eq.u32 %p1, %tid.x, 0; @%p1 bar.sync 0, 64; @!%p1 bar.sync 1, 64;";
    assert_eq!(fault(lost, 64).0, Kind::Endless);
    let split = "setp.eq.u32 %p1, %laneid, 0; @%p1 exit; @!%p1 shfl.sync.idx.b32 %r1, %r2, 0, 31, 0xff; bar.sync 0;";
    assert_eq!(fault(split, 32).0, Kind::Trap);
    let apart = "setp.eq.u32 %p1, %laneid, 0; @%p1 bar.warp.sync -1; @!%p1 bar.warp.sync -1;";
    let (kind, what) = fault(apart, 32);
    assert!(kind == Kind::Endless && what.contains("wait for ever"), "{what}");
    assert_eq!(fault("again: bra again;", 1).0, Kind::Endless);
    assert_eq!(fault("trap;", 1).0, Kind::Trap);
}
