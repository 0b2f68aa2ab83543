//! Arithmetic on integers.

use crate::harness::{outcome, value};

/// An instruction, the type of operands and result, the operands, and the result.
type Case<'a> = (&'a str, &'a str, &'a [u64], u64);

fn check(cases: &[Case<'_>]) {
    for (instruction, ty, operands, expected) in cases {
        let typed: Vec<_> = operands.iter().map(|value| (*ty, *value)).collect();
        assert_eq!(value(instruction, ty, &typed), *expected, "{instruction} {operands:x?}");
    }
}

#[test]
fn sums_and_differences_wrap_or_saturate() {
    check(&[
        ("add.s32 %d, %a, %b", "b32", &[0xffff_ffff, 2], 1),
        ("add.s32 %d, %a, -5", "b32", &[3], 0xffff_fffe),
        ("add.sat.s32 %d, %a, %b", "b32", &[0x7fff_ffff, 1], 0x7fff_ffff),
        ("sub.sat.s32 %d, %a, %b", "b32", &[0x8000_0000, 1], 0x8000_0000),
        ("add.u64 %d, %a, %b", "b64", &[u64::MAX, 2], 1),
        ("sub.s16 %d, %a, %b", "b16", &[1, 2], 0xffff),
        ("neg.s32 %d, %a", "b32", &[5], 0xffff_fffb),
        ("abs.s64 %d, %a", "b64", &[5_u64.wrapping_neg()], 5),
        ("sad.s32 %d, %a, %b, %c", "b32", &[0xffff_ffff, 4, 10], 15),
        ("sad.u32 %d, %a, %b, %c", "b32", &[1, 4, 10], 13),
    ]);
}

#[test]
fn quotients_and_extremes_know_signs() {
    check(&[
        ("div.s32 %d, %a, %b", "b32", &[7_u32.wrapping_neg() as u64, 2], 3_u32.wrapping_neg() as u64),
        ("div.u32 %d, %a, %b", "b32", &[0xffff_fff9, 2], 0x7fff_fffc),
        ("rem.s32 %d, %a, %b", "b32", &[7_u32.wrapping_neg() as u64, 2], 0xffff_ffff),
        ("rem.u64 %d, %a, %b", "b64", &[u64::MAX, 10], 5),
        ("div.s32 %d, %a, %b", "b32", &[0x8000_0000, 0xffff_ffff], 0x8000_0000),
        ("min.s32 %d, %a, %b", "b32", &[0xffff_ffff, 1], 0xffff_ffff),
        ("min.u32 %d, %a, %b", "b32", &[0xffff_ffff, 1], 1),
        ("max.s16 %d, %a, %b", "b16", &[0xffff, 1], 1),
        ("max.u64 %d, %a, %b", "b64", &[u64::MAX, 1], u64::MAX),
    ]);
}

#[test]
fn products_have_halves() {
    check(&[
        ("mul.lo.s32 %d, %a, %b", "b32", &[0xffff_ffff, 3], 0xffff_fffd),
        ("mul.hi.s32 %d, %a, %b", "b32", &[0xffff_ffff, 3], 0xffff_ffff),
        ("mul.hi.u32 %d, %a, %b", "b32", &[0xffff_ffff, 3], 2),
        ("mul.hi.u64 %d, %a, %b", "b64", &[u64::MAX, u64::MAX], u64::MAX - 1),
        ("mul.hi.s64 %d, %a, %b", "b64", &[u64::MAX, 3], u64::MAX),
        ("mad.lo.s32 %d, %a, %b, %c", "b32", &[5, 7, 0xffff_ffff], 34),
        ("mad.hi.u32 %d, %a, %b, %c", "b32", &[0x8000_0000, 6, 4], 7),
        ("mul.lo.s64 %d, %a, %b", "b64", &[1 << 40, 1 << 30], 0),
    ]);
    let wide = |instruction, operands: &[(&str, u64)]| value(instruction, "b64", operands);
    assert_eq!(wide("mul.wide.s32 %d, %a, %b", &[("b32", 0xffff_ffff), ("b32", 3)]), 3_u64.wrapping_neg());
    assert_eq!(wide("mul.wide.u32 %d, %a, 16", &[("b32", 0xffff_ffff)]), 0xf_ffff_fff0);
    let mad = wide("mad.wide.u32 %d, %a, %b, %c", &[("b32", 0xffff_ffff), ("b32", 0xffff_ffff), ("b64", 5)]);
    assert_eq!(mad, 0xffff_ffff_u64 * 0xffff_ffff + 5);
    assert_eq!(value("mul.wide.s16 %d, %a, %b", "b32", &[("b16", 0xffff), ("b16", 2)]), 0xffff_fffe);
}

#[test]
fn bytes_are_multiplied_and_summed() {
    let dot = |instruction, a, b| value(instruction, "b32", &[("b32", a), ("b32", b), ("b32", 100)]);
    assert_eq!(dot("dp4a.s32.s32 %d, %a, %b, %c", 0x01ff_0203, 0x0105_0701), 100 + 1 - 5 + 14 + 3);
    assert_eq!(dot("dp4a.u32.u32 %d, %a, %b, %c", 0x01ff_0203, 0x0105_0701), 100 + 1 + 255 * 5 + 14 + 3);
}

#[test]
fn the_carry_goes_on() {
    let body = "
        mov.u32 %r1, 0xffffffff; mov.u32 %r2, 1;
        add.cc.u32 %r3, %r1, %r2; addc.cc.u32 %r4, %r1, %r1; addc.u32 %r5, %r2, %r2;
        sub.cc.u32 %r6, %r2, %r1; subc.u32 %r7, %r2, 0;
        mad.lo.cc.u32 %r8, %r1, %r1, %r1; madc.hi.u32 %r9, %r1, %r1, 0;
        st.global.v4.u32 [%out], {%r3, %r4, %r5, %r6}; st.global.v2.u32 [%out+16], {%r7, %r8}; st.global.u32 [%out+24], %r9;";
    let words = outcome(body, 4);
    let halves: Vec<u64> = words.iter().flat_map(|word| [word & 0xffff_ffff, word >> 32]).collect();
    // 0xffffffff squared is 0xfffffffe00000001; 0xffffffff added to it gives 0xffffffff00000000.
    assert_eq!(halves[..7], [0, 0xffff_ffff, 3, 2, 0, 0, 0xffff_ffff]);
}
