//! Operations of the lanes of a warp together.

use crate::harness::{block, kernel, launch};

/// The words that the 40 threads of a block write.
fn lanes(body: &str) -> Vec<u64> {
    let text = format!(
        "mov.u32 %r0, %laneid; mov.u32 %r1, %tid.x; mul.wide.u32 %q0, %r1, 8; add.u64 %q0, %out, %q0; {body}; st.global.u64 [%q0], %q1;"
    );
    let mut out = vec![0; 40];
    launch(&kernel(&text), block(40), &mut [&mut out]).unwrap();
    out
}

/// The value that a shuffle gives each lane, and whether the source is within the limits.
fn shuffled(mode: &str, by: &str, limits: u32) -> Vec<(u64, bool)> {
    let words = lanes(&format!(
        "shfl.sync.{mode}.b32 %r2|%p1, %r1, {by}, {limits:#x}, -1; selp.b32 %r3, 1, 0, %p1; mov.b64 %q1, {{%r2, %r3}}"
    ));
    words.into_iter().map(|word| (word & 0xffff_ffff, word >> 32 == 1)).collect()
}

#[test]
fn shuffles_take_values_of_other_lanes() {
    let of = |shuffled: Vec<(u64, bool)>, lane: usize| shuffled[lane];
    let butterfly = shuffled("bfly", "5", 31);
    assert!((0..32).all(|lane| butterfly[lane] == (lane as u64 ^ 5, true)));
    let down = shuffled("down", "3", 31);
    assert!((0..32).all(|lane| down[lane] == if lane < 29 { (lane as u64 + 3, true) } else { (lane as u64, false) }));
    assert_eq!(of(shuffled("up", "3", 0), 2), (2, false));
    assert_eq!(of(shuffled("up", "3", 0), 7), (4, true));
    assert_eq!(of(shuffled("idx", "9", 31), 20), (9, true));
    // The warp is split into parts of eight lanes.
    let part = 24 << 8 | 7;
    assert_eq!(of(shuffled("idx", "9", part), 20), (17, true));
    assert_eq!(of(shuffled("down", "2", part), 15), (15, false));
    assert_eq!(of(shuffled("up", "1", 24 << 8), 16), (16, false));
    // The second warp has eight lanes.
    assert_eq!(of(shuffled("idx", "3", 31), 39), (35, true));
}

#[test]
fn a_sum_over_a_warp() {
    let step = |by: u32| format!("shfl.sync.bfly.b32 %r3, %r2, {by}, 31, 0xffffffff; add.u32 %r2, %r2, %r3;");
    let sum: String = [16, 8, 4, 2, 1].into_iter().map(step).collect();
    assert_eq!(lanes(&format!("mov.u32 %r2, %r1; {sum} cvt.u64.u32 %q1, %r2"))[..32], [496; 32]);
}

#[test]
fn votes_count_lanes() {
    let found = lanes(
        "setp.lt.u32 %p1, %r1, 5; vote.sync.ballot.b32 %r2, %p1, -1; vote.sync.any.pred %p2, %p1, -1; vote.sync.all.pred %p3, !%p1, -1;
         vote.sync.uni.pred %p4, %p1, -1; selp.b32 %r3, 1, 0, %p2; selp.b32 %r4, 2, 0, %p3; selp.b32 %r5, 4, 0, %p4;
         or.b32 %r3, %r3, %r4; or.b32 %r3, %r3, %r5; mov.b64 %q1, {%r2, %r3}",
    );
    assert_eq!((found[0], found[39]), (1 << 32 | 31, 6 << 32));
    let found = lanes("redux.sync.add.s32 %r2, %r1, -1; redux.sync.max.u32 %r3, %r1, -1; mov.b64 %q1, {%r2, %r3}");
    assert_eq!((found[0], found[39]), (31 << 32 | 496, 39 << 32 | 284));
}

/// Halves of a warp that take different branches shuffle among themselves.
#[test]
fn parts_of_a_warp_meet_by_themselves() {
    let found = lanes(
        "setp.lt.u32 %p1, %r0, 16; mov.u32 %r2, 0; @%p1 bra low;
         shfl.sync.idx.b32 %r2, %r1, 16, 31, 0xffff0000; bra.uni join;
         low: shfl.sync.idx.b32 %r2, %r1, 7, 31, 0xffff;
         join: mov.u32 %r3, %lanemask_lt; activemask.b32 %r4; and.b32 %r3, %r3, %r4; add.u32 %r2, %r2, %r3; cvt.u64.u32 %q1, %r2",
    );
    assert_eq!((found[0], found[15], found[16], found[31]), (7, 7, 16, 16));
}
