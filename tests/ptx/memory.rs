//! Loads, stores, spaces, variables and atomic operations.

use crate::harness::{HEADER, block, kernel, launch, outcome, read};
use crate::ptx::Grid;

#[test]
fn elements_have_sizes_and_signs() {
    let body = "
        mov.u64 %q1, 0x8182838485868788; st.global.u64 [%out], %q1;
        ld.global.s8 %r1, [%out]; ld.global.u8 %r2, [%out+1]; ld.global.s16 %r3, [%out+2]; ld.global.nc.u16 %h1, [%out+4];
        ld.global.s32 %q2, [%out+4]; ld.global.v2.u32 {%r4, %r5}, [%out]; ld.global.v4.u16 {%h2, %h3, %h4, %h5}, [%out];
        st.global.u32 [%out+8], %r1; st.global.u32 [%out+12], %r2; st.global.u32 [%out+16], %r3; st.global.u16 [%out+20], %h1;
        st.global.u8 [%out+22], %r2; st.global.u64 [%out+24], %q2; st.global.v2.u32 [%out+32], {%r5, %r4};
        st.global.v4.u16 [%out+40], {%h5, %h4, %h3, %h2}; st.volatile.global.v2.b64 [%out+48], {%q1, 7};";
    let expected = [
        0x8182_8384_8586_8788,
        0x0000_0087_ffff_ff88,
        0x0087_8384_ffff_8586,
        0xffff_ffff_8182_8384,
        0x8586_8788_8182_8384,
        0x8788_8586_8384_8182,
        0x8182_8384_8586_8788,
        7,
    ];
    assert_eq!(outcome(body, 8), expected);
}

#[test]
fn spaces_have_generic_addresses() {
    let body = "
        .shared .align 8 .b8 room[64]; .local .align 8 .b32 own[4];
        mov.u32 %r1, room; st.shared.u32 [%r1+4], 11; ld.shared.u32 %r2, [room+4];
        mov.u64 %q1, room; cvta.shared.u64 %q2, %q1; ld.u32 %r3, [%q2+4]; cvta.to.shared.u64 %q3, %q2; ld.shared.u32 %r4, [%q3+4];
        st.local.u32 [own+8], 12; mov.u64 %q4, own; ld.local.u32 %r5, [%q4+8]; cvta.local.u64 %q5, own; ld.u32 %r6, [%q5+8];
        cvta.global.u64 %q6, %out; st.v2.u32 [%q6], {%r2, %r3}; st.global.v4.u32 [%out+16], {%r4, %r5, %r6, 0};";
    assert_eq!(outcome(body, 4), [11 << 32 | 11, 0, 12 << 32 | 11, 12]);
}

#[test]
fn variables_hold_what_they_are_told() {
    let text = format!(
        "{HEADER}.global .align 4 .b8 bytes[6] = {{1, 2, 0xff}};\n.const .f32 third[2] = {{0f3EAAAAAB, 1.5}};\n.global \
         .u32 table[2][2] = {{{{1, 2}}, {{3, 4}}}};\n.visible .global .u64 counter;\n{}",
        kernel(
            "mov.u64 %q1, bytes; ld.global.s8 %r1, [%q1+2]; ld.global.u8 %r2, [bytes+1]; ld.global.u8 %r3, [bytes+5];
             ld.const.f32 %f1, [third+4]; ld.global.v2.u32 {%r4, %r5}, [table+8];
             ld.global.u64 %q2, [counter]; add.u64 %q2, %q2, 1; st.global.u64 [counter], %q2;
             st.global.v4.u32 [%out], {%r1, %r2, %r3, %r4}; st.global.u32 [%out+16], %r5; st.global.f32 [%out+20], %f1;
             st.global.u64 [%out+24], %q2;"
        )
        .replace(HEADER, "")
    );
    let mut out = [0; 4];
    launch(&text, block(3), &mut [&mut out]).unwrap();
    assert_eq!(out, [2 << 32 | 0xffff_ffff, 3 << 32, u64::from(1.5_f32.to_bits()) << 32 | 4, 3]);
}

#[test]
fn parameters_lie_one_behind_the_other() {
    let text = format!(
        "{HEADER}.visible .entry k(.param .u8 a, .param .align 8 .b8 s[24], .param .u16 c, .param .u64 .ptr .global .align 8 d)\n{{
         .reg .b64 %q<5>; .reg .b32 %r<5>;
         ld.param.u8 %r1, [a]; ld.param.u64 %q1, [s+8]; mov.b64 %q2, s; ld.param.v2.u32 {{%r2, %r3}}, [%q2+16]; ld.param.u16 %r4, [c];
         ld.param.u64 %q3, [d]; add.u64 %q1, %q1, %q3; ret; }}"
    );
    let entry = &read(&text).entries["k"];
    assert_eq!(entry.parameters, [0..1, 8..32, 32..34, 40..48]);
    assert_eq!((entry.most_threads, entry.threads), (1024, None));
}

#[test]
fn atomic_operations_give_what_was_there() {
    let body = "
        .shared .u32 sum; st.shared.u32 [sum], 5;
        atom.shared.add.u32 %r1, [sum], 3; atom.shared.max.s32 %r2, [sum], -1; atom.shared.cas.b32 %r3, [sum], 8, 100;
        atom.shared.exch.b32 %r4, [sum], 7; red.shared.or.b32 [sum], 8; atom.shared.inc.u32 %r5, [sum], 15; ld.shared.u32 %r6, [sum];
        st.global.v4.u32 [%out], {%r1, %r2, %r3, %r4}; st.global.v2.u32 [%out+16], {%r5, %r6};
        mov.f32 %f1, 0f3FC00000; st.global.f32 [%out+24], %f1; red.relaxed.gpu.global.add.f32 [%out+24], %f1; atom.add.f32 %f2, [%out+24], %f1;
        st.global.f32 [%out+28], %f2;";
    let bits = |x: f32| u64::from(x.to_bits());
    assert_eq!(outcome(body, 4), [8 << 32 | 5, 100 << 32 | 8, 15, bits(3.0) << 32 | bits(4.5)]);
}

/// Each thread adds to one word; each block has its own shared memory, static and dynamic.
#[test]
fn threads_and_blocks_have_numbers() {
    let text = format!(
        "{HEADER}.extern .shared .align 16 .b8 dynamic[];\n{}",
        kernel(
            ".shared .u32 count; mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ntid.x; mad.lo.u32 %r1, %r2, %r3, %r1;
             setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [count], 0; bar.sync 0;
             atom.shared.add.u32 %r4, [count], 1; shl.b32 %r5, %r1, 2; mov.u32 %r6, dynamic; add.u32 %r6, %r6, %r5; st.shared.u32 [%r6], %r1;
             barrier.sync 0; @!%p1 bra done;
             ld.shared.u32 %r7, [count]; mov.u32 %r8, %dynamic_smem_size; add.u32 %r6, %r6, %r8; ld.shared.u32 %r8, [%r6+-4];
             mad.lo.u32 %r9, %ctaid.y, %nctaid.x, %ctaid.x; mul.wide.u32 %q1, %r9, 8; add.u64 %q1, %out, %q1;
             st.global.v2.u32 [%q1], {%r7, %r8}; done:"
        )
        .replace(HEADER, "")
    );
    let mut out = [0; 6];
    let grid = Grid { blocks: [3, 2, 1], threads: [7, 5, 1], shared_bytes: 35 * 4 };
    launch(&text, grid, &mut [&mut out]).unwrap();
    assert_eq!(out, [34 << 32 | 35; 6]);
}
