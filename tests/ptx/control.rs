//! Branches, calls and barriers.

use crate::harness::{HEADER, block, kernel, launch, outcome};

#[test]
fn loops_and_tables_branch() {
    let body = "
        mov.u32 %r1, 0; mov.u32 %r2, 0;
        again: add.u32 %r2, %r2, %r1; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 101; @%p1 bra.uni again;
        mov.u32 %r3, 0; mov.u32 %r4, 0;
        next: list: .branchtargets one, two, end;
        brx.idx %r3, list;
        one: add.u32 %r4, %r4, 1; bra join;
        two: add.u32 %r4, %r4, 10;
        join: add.u32 %r3, %r3, 1; bra next;
        end: st.global.v2.u32 [%out], {%r2, %r4};";
    assert_eq!(outcome(body, 1), [11 << 32 | 5050]);
}

/// Names and labels of an inner scope hide those around it.
#[test]
fn scopes_have_names_of_their_own() {
    let body = "
        mov.u32 %r1, 1;
        { .reg .b32 %r1; mov.u32 %r1, 5; bra skip; mov.u32 %r1, 6; skip: mov.u32 %r2, %r1; }
        { .reg .b32 t; mov.u32 t, 7; bra skip; mov.u32 t, 6; skip: add.u32 %r2, %r2, t; }
        st.global.v2.u32 [%out], {%r1, %r2};";
    assert_eq!(outcome(body, 1), [12 << 32 | 1]);
}

#[test]
fn guards_skip_one_instruction() {
    let body = "
        mov.u32 %r1, 1; setp.eq.u32 %p1, %r1, 1; @%p1 mov.u32 %r2, 5; @!%p1 mov.u32 %r2, 6; @!%p1 exit;
        @%p1 add.u32 %r2, %r2, %ntid.x; st.global.u32 [%out], %r2;";
    assert_eq!(outcome(body, 1), [6]);
}

/// Nested calls with parameters and local memory, of functions that are declared before and after the caller.
#[test]
fn functions_are_called() {
    let text = format!(
        "{HEADER}
        .func (.param .b32 result) later(.param .b32 a, .param .b64 b);
        .func (.param .align 8 .b8 pair[16]) both(.param .b32 a)
        {{ .reg .b32 %r<3>; .reg .b64 %q<3>; .local .align 4 .b8 depot[8]; .reg .b64 %SPL;
          mov.u64 %SPL, depot; ld.param.u32 %r1, [a]; st.local.u32 [%SPL+4], %r1; ld.local.u32 %r2, [depot+4];
          cvt.u64.u32 %q1, %r2; mul.lo.u64 %q2, %q1, %q1; st.param.v2.b64 [pair], {{%q1, %q2}}; ret; }}
        .func (.reg .b32 out) twice(.reg .b32 in) {{ add.u32 out, in, in; ret; mov.u32 out, 0; }}
        {}
        .func (.param .b32 result) later(.param .b32 a, .param .b64 b)
        {{ .reg .b32 %r<4>; .reg .b64 %q<3>; .local .align 4 .b8 depot[8];
          ld.param.u32 %r1, [a]; ld.param.u64 %q1, [b]; cvt.u32.u64 %r2, %q1; st.local.u32 [depot+4], %r2;
          {{ .param .b32 p; st.param.b32 [p], %r1; .param .align 8 .b8 r[16]; call.uni (r), both, (p); ld.param.b64 %q2, [r+8]; }}
          cvt.u32.u64 %r3, %q2; ld.local.u32 %r2, [depot+4]; add.u32 %r3, %r3, %r2; st.param.b32 [result], %r3; ret; }}",
        kernel(
            "{ .param .b32 p0; st.param.b32 [p0+0], 9; .param .b64 p1; st.param.b64 [p1], 1000; .param .b32 r0;
               call.uni (r0), later, (p0, p1); ld.param.b32 %r1, [r0+0]; }
             call (%r2), twice, (%r1); call (%r3), twice, (21);
             st.global.v2.u32 [%out], {%r1, %r2}; st.global.u32 [%out+8], %r3;"
        )
        .replace(HEADER, "")
    );
    let mut out = [0; 2];
    launch(&text, block(2), &mut [&mut out]).unwrap();
    assert_eq!(out, [2162 << 32 | 1081, 42]);
}

/// Each thread reads what its neighbour wrote before the barrier, ten times.
#[test]
fn barriers_wait_for_all() {
    let body = "
        .shared .u32 ring[96]; mov.u32 %r1, %tid.x; add.u32 %r2, %r1, 1; rem.u32 %r2, %r2, %ntid.x;
        mov.u32 %r3, ring; mad.lo.u32 %r4, %r1, 4, %r3; mad.lo.u32 %r5, %r2, 4, %r3; mov.u32 %r6, 0; mov.u32 %r7, %r1;
        again: st.shared.u32 [%r4], %r7; bar.sync 0; ld.shared.u32 %r7, [%r5]; barrier.sync.aligned 1, %ntid.x;
        add.u32 %r6, %r6, 1; setp.ne.u32 %p1, %r6, 10; @%p1 bra again;
        bar.red.popc.u32 %r8, 2, %p2; setp.gt.u32 %p3, %r7, 3; bar.red.popc.u32 %r8, 2, %p3; bar.red.and.pred %p4, 3, %ntid.x, %p3;
        bar.red.or.pred %p5, 3, %p3; selp.b32 %r9, 1, 0, %p4; @%p5 add.u32 %r9, %r9, 2;
        mul.wide.u32 %q1, %r1, 8; add.u64 %q1, %out, %q1; mad.lo.u32 %r9, %r9, 100, %r8; st.global.v2.u32 [%q1], {%r7, %r9};";
    let mut out = [0; 96];
    launch(&kernel(body), block(96), &mut [&mut out]).unwrap();
    for (thread, word) in out.into_iter().enumerate() {
        assert_eq!((word & 0xffff_ffff, word >> 32), ((thread as u64 + 10) % 96, 292));
    }
}

/// Barriers do not wait for threads that have ended.
#[test]
fn ended_threads_hold_nobody_up() {
    let body = "
        mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 40; @%p1 exit; bar.sync 0;
        shfl.sync.idx.b32 %r2, %r1, 3, 31, 0xffffffff; bar.warp.sync 0xffffffff;
        red.global.add.u32 [%out], %r2;";
    let mut out = [0];
    launch(&kernel(body), block(64), &mut [&mut out]).unwrap();
    assert_eq!(out, [32 * 3 + 8 * 35]);
}
