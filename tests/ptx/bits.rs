//! Logic, shifts, bit fields, packing and selection.

use crate::harness::{holds, outcome, value};

fn check(cases: &[(&str, &str, &[u64], u64)]) {
    for (instruction, ty, operands, expected) in cases {
        let typed: Vec<_> = operands.iter().map(|value| (*ty, *value)).collect();
        assert_eq!(value(instruction, ty, &typed), *expected, "{instruction} {operands:x?}");
    }
}

#[test]
fn logic_is_bitwise() {
    check(&[
        ("and.b32 %d, %a, %b", "b32", &[0xf0f0, 0xff00], 0xf000),
        ("or.b64 %d, %a, %b", "b64", &[0xf0 << 40, 1], 0xf0 << 40 | 1),
        ("xor.b16 %d, %a, %b", "b16", &[0xffff, 0x0ff0], 0xf00f),
        ("not.b16 %d, %a", "b16", &[0xff], 0xff00),
        ("cnot.b32 %d, %a", "b32", &[0], 1),
        ("lop3.b32 %d, %a, %b, %c, 0x96", "b32", &[0xff00, 0xf0f0, 0xcccc], 0xff00 ^ 0xf0f0 ^ 0xcccc),
        (
            "lop3.b32 %d, %a, %b, %c, 0xe8",
            "b32",
            &[0xff00, 0xf0f0, 0xcccc],
            0xf0f0 & 0xcccc | 0xff00 & (0xf0f0 | 0xcccc),
        ),
    ]);
}

#[test]
fn shifts_end_at_the_width() {
    check(&[
        ("shl.b32 %d, %a, 4", "b32", &[0xf000_0001], 0x10),
        ("shl.b32 %d, %a, 32", "b32", &[1], 0),
        ("shr.u32 %d, %a, 31", "b32", &[0x8000_0000], 1),
        ("shr.s32 %d, %a, 40", "b32", &[0x8000_0000], 0xffff_ffff),
        ("shr.s16 %d, %a, 4", "b16", &[0x8000], 0xf800),
        ("shr.u64 %d, %a, 64", "b64", &[u64::MAX], 0),
        ("shf.l.wrap.b32 %d, %a, %b, 36", "b32", &[0xabcd_0000, 0x1234_5678], 0x2345_678a),
        ("shf.r.clamp.b32 %d, %a, %b, 40", "b32", &[0xabcd_0000, 0x1234_5678], 0x1234_5678),
        ("shf.r.wrap.b32 %d, %a, %b, 8", "b32", &[0xabcd_0000, 0x1234_5678], 0x78ab_cd00),
    ]);
}

#[test]
fn fields_are_taken_and_put() {
    check(&[
        ("bfe.u32 %d, %a, 4, 8", "b32", &[0x0000_0ff5], 0xff),
        ("bfe.s32 %d, %a, 4, 8", "b32", &[0x0000_0ff5], 0xffff_ffff),
        ("bfe.s32 %d, %a, 28, 8", "b32", &[0x8000_0000], 0xffff_fff8),
        ("bfe.u32 %d, %a, 4, 0", "b32", &[0xffff], 0),
        ("bfi.b32 %d, %a, %b, 8, 4", "b32", &[0xf5, 0xffff_ffff], 0xffff_f5ff),
        ("bfi.b64 %d, %a, %b, 32, 32", "b64", &[0x1234, 0x5678], 0x1234_0000_5678),
        ("brev.b32 %d, %a", "b32", &[1], 0x8000_0000),
        ("prmt.b32 %d, %a, %b, 0x7531", "b32", &[0x4433_2211, 0x8877_6655], 0x8866_4422),
        ("prmt.b32 %d, %a, %b, 0xf0", "b32", &[0x4433_2211, 0x8877_6655], 0x1111_ff11),
    ]);
    let count = |instruction, ty, bits| value(instruction, "b32", &[(ty, bits)]);
    assert_eq!(count("popc.b64 %d, %a", "b64", u64::MAX), 64);
    assert_eq!(count("clz.b32 %d, %a", "b32", 0), 32);
    assert_eq!(count("clz.b64 %d, %a", "b64", 1), 63);
    assert_eq!(count("bfind.u32 %d, %a", "b32", 0x100), 8);
    assert_eq!(count("bfind.shiftamt.u32 %d, %a", "b32", 0x100), 23);
    assert_eq!(count("bfind.s32 %d, %a", "b32", 0xffff_ffff), 0xffff_ffff);
}

#[test]
fn words_are_packed_and_unpacked() {
    let body = "
        mov.b32 %r1, 0x12345678; mov.b32 {%h1, %h2}, %r1; mov.b32 %r2, {%h2, %h1};
        mov.b64 %q1, {%r1, %r2}; mov.b64 {%r3, _}, %q1; mov.b64 {%h3, %h4, %h5, %h6}, %q1; mov.b64 %q2, {%h6, %h5, %h4, %h3};
        st.global.v2.u64 [%out], {%q1, %q2}; st.global.u32 [%out+16], %r3;";
    // 0x5678_1234 is the word with its halves exchanged.
    assert_eq!(outcome(body, 3), [0x5678_1234_1234_5678, 0x5678_1234_1234_5678, 0x1234_5678]);
}

#[test]
fn choices_and_comparisons() {
    let all = [
        ("eq", [false, true, false]),
        ("ne", [true, false, true]),
        ("lt", [true, false, false]),
        ("le", [true, true, false]),
        ("gt", [false, false, true]),
        ("ge", [false, true, true]),
    ];
    for (name, expected) in all {
        for (a, expected) in [0xffff_fffe, 0xffff_ffff, 0].into_iter().zip(expected) {
            assert_eq!(
                holds(&format!("setp.{name}.s32 %p1, %a, %b"), "b32", &[a, 0xffff_ffff]),
                expected,
                "{name} {a:x}"
            );
        }
    }
    assert!(holds("setp.hi.u32 %p1, %a, %b", "b32", &[0xffff_ffff, 1]));
    assert!(holds("setp.lt.u32 %p1|%p2, %a, %b; not.pred %p1, %p2; @!%p1 setp.ne.u32 %p1, %a, %a", "b32", &[1, 2]));
    assert!(holds("setp.eq.b16 %p2, 0, 0; setp.ne.s32.and %p1, %a, %b, !%p2; not.pred %p1, %p1", "b32", &[1, 2]));
    assert!(holds("setp.eq.b16 %p2, 0, 0; setp.eq.s32.xor %p1, %a, %b, %p2", "b32", &[1, 2]));
    assert!(holds("mov.pred %p2, 1; setp.eq.s32.or %p1, %a, %b, %p2", "b32", &[1, 2]));
    let choose = |instruction| value(instruction, "b32", &[("b32", 5), ("b32", 7), ("b32", 0xffff_ffff)]);
    assert_eq!(choose("slct.b32.s32 %d, %a, %b, %c"), 7);
    assert_eq!(choose("set.lt.u32.s32 %d, %a, %b"), 0xffff_ffff);
    assert_eq!(choose("set.lt.f32.s32 %d, %a, %b"), u64::from(1_f32.to_bits()));
    assert_eq!(
        choose("setp.lt.s32 %p1, %a, %b; setp.lt.s32 %p2, %b, %a; xor.pred %p3, %p1, %p2; selp.b32 %d, %a, %b, %p3"),
        5
    );
}
