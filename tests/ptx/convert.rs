//! Conversions between all types of numbers.

use half::f16;

use crate::harness::value;

fn check(cases: &[(&str, &str, u64, &str, u64)]) {
    for (instruction, from, bits, to, expected) in cases {
        let found = value(&format!("{instruction} %d, %a"), to, &[(*from, *bits)]);
        assert_eq!(found, *expected, "{instruction} {bits:#x} is {found:#x}");
    }
}

fn single(x: f32) -> u64 {
    x.to_bits().into()
}

fn double(x: f64) -> u64 {
    x.to_bits()
}

#[test]
fn integers_are_widened_and_cut() {
    check(&[
        ("cvt.s64.s32", "b32", 0xffff_fffe, "b64", u64::MAX - 1),
        ("cvt.u64.u32", "b32", 0xffff_fffe, "b64", 0xffff_fffe),
        ("cvt.u32.u64", "b64", 0x1_0000_0005, "b32", 5),
        ("cvt.s32.s8", "b32", 0x0000_01ff, "b32", 0xffff_ffff),
        ("cvt.u32.u8", "b32", 0x0000_01ff, "b32", 0xff),
        ("cvt.u16.u32", "b32", 0x1_2345, "b16", 0x2345),
        ("cvt.sat.u8.s32", "b32", 300, "b16", 255),
        ("cvt.sat.u8.s32", "b32", 0xffff_ffff, "b16", 0),
        ("cvt.sat.s16.s32", "b32", 0x8000_0000, "b16", 0x8000),
        ("cvt.s8.s32", "b32", 0xff, "b32", 0xffff_ffff),
    ]);
}

#[test]
fn numbers_become_whole() {
    check(&[
        ("cvt.rzi.s32.f32", "f32", single(-2.7), "b32", 2_u32.wrapping_neg().into()),
        ("cvt.rni.s32.f32", "f32", single(2.5), "b32", 2),
        ("cvt.rmi.s32.f32", "f32", single(-2.1), "b32", 3_u32.wrapping_neg().into()),
        ("cvt.rpi.s32.f32", "f32", single(2.1), "b32", 3),
        ("cvt.rzi.u8.f32", "f32", single(300.0), "b32", 255),
        ("cvt.rzi.u32.f32", "f32", single(-1.0), "b32", 0),
        ("cvt.rzi.s32.f32", "f32", single(f32::INFINITY), "b32", 0x7fff_ffff),
        ("cvt.rzi.s32.f32", "f32", single(f32::NAN), "b32", 0),
        ("cvt.rzi.s64.f64", "f64", double(-1e18), "b64", (-1_000_000_000_000_000_000_i64) as u64),
        ("cvt.rni.f32.f32", "f32", single(3.5), "f32", single(4.0)),
        ("cvt.rmi.f64.f64", "f64", double(-3.5), "f64", double(-4.0)),
        ("cvt.rzi.f32.f32", "f32", single(-0.5), "f32", single(-0.0)),
        ("cvt.rzi.s32.f16", "f16", f16::from_f32(-3.5).to_bits().into(), "b32", 3_u32.wrapping_neg().into()),
    ]);
}

#[test]
fn integers_become_numbers() {
    check(&[
        ("cvt.rn.f32.s32", "b32", 0xffff_fffd, "f32", single(-3.0)),
        ("cvt.rn.f32.u32", "b32", 0xffff_ffff, "f32", single(4294967296.0)),
        ("cvt.rz.f32.u32", "b32", 0xffff_ffff, "f32", single(4294967040.0)),
        ("cvt.rn.f64.u64", "b64", u64::MAX, "f64", double(18446744073709551616.0)),
        ("cvt.rz.f64.u64", "b64", u64::MAX, "f64", double(18446744073709549568.0)),
        // The number is slightly above the middle between two singles, and has more digits than a double holds.
        ("cvt.rn.f32.u64", "b64", (1 << 60) + (1 << 36) + 1, "f32", single(1152921642045800448.0)),
        ("cvt.rn.f16.s32", "b32", 70000, "b16", 0x7c00),
        ("cvt.rn.f64.s32", "b32", 0xffff_ffff, "f64", double(-1.0)),
        ("cvt.rn.f32.u16", "b16", 0xffff, "f32", single(65535.0)),
        ("cvt.rn.f32.u8", "b32", 0x1ff, "f32", single(255.0)),
    ]);
}

#[test]
fn formats_are_converted() {
    check(&[
        ("cvt.f64.f32", "f32", single(1.5), "f64", double(1.5)),
        ("cvt.rn.f32.f64", "f64", double(1.0 + 2_f64.powi(-30)), "f32", single(1.0)),
        ("cvt.rp.f32.f64", "f64", double(1.0 + 2_f64.powi(-30)), "f32", single(1_f32.next_up())),
        ("cvt.rn.f16.f32", "f32", single(1.0 + 2_f32.powi(-11)), "b16", 0x3c00),
        ("cvt.rn.f16.f32", "f32", single(65520.0), "b16", 0x7c00),
        ("cvt.rz.f16.f32", "f32", single(65535.0), "b16", 0x7bff),
        ("cvt.rz.f16.f32", "f32", single(-1e-9), "b16", 0x8000),
        ("cvt.rn.f16.f64", "f64", double(1.0 + 2_f64.powi(-11) + 2_f64.powi(-40)), "b16", 0x3c01),
        ("cvt.f32.f16", "b16", 0xbc00, "f32", single(-1.0)),
        ("cvt.rn.bf16.f32", "f32", single(1.0 + 2_f32.powi(-8)), "b16", 0x3f80),
        ("cvt.f32.bf16", "bf16", 0xbf80, "f32", single(-1.0)),
        ("cvt.sat.f32.f32", "f32", single(2.0), "f32", single(1.0)),
        ("cvt.sat.f32.f32", "f32", single(f32::NAN), "f32", 0),
        ("cvt.ftz.f32.f32", "f32", 1, "f32", 0),
        ("cvt.rn.relu.f16.f32", "f32", single(-2.0), "b16", 0),
        ("cvt.rn.f16.f32", "f32", single(f32::NAN), "b16", 0x7fff),
    ]);
    let pair = value("cvt.rn.f16x2.f32 %d, %a, %b", "b32", &[("f32", single(1.0)), ("f32", single(-2.0))]);
    assert_eq!(pair, 0x3c00_c000);
    let pair = value("cvt.rn.bf16x2.f32 %d, %a, %b", "b32", &[("f32", single(1.0)), ("f32", single(-2.0))]);
    assert_eq!(pair, 0x3f80_c000);
}
