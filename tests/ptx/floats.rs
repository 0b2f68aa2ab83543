//! Floating-point numbers of 16, 32 and 64 bits.

use half::{bf16, f16};

use crate::harness::{Random, holds, value};

/// The result of an instruction on singles.
fn single(instruction: &str, operands: &[f32]) -> f32 {
    let operands: Vec<_> = operands.iter().map(|x| ("f32", u64::from(x.to_bits()))).collect();
    f32::from_bits(value(instruction, "f32", &operands) as u32)
}

fn double(instruction: &str, operands: &[f64]) -> f64 {
    let operands: Vec<_> = operands.iter().map(|x| ("f64", x.to_bits())).collect();
    f64::from_bits(value(instruction, "f64", &operands))
}

#[test]
fn singles_are_rounded_to_the_nearest() {
    let mut random = Random(1);
    for _ in 0..20 {
        let [a, b, c] = [(); 3].map(|()| random.number(100.0) as f32);
        assert_eq!(single("add.f32 %d, %a, %b", &[a, b]), a + b);
        assert_eq!(single("sub.rn.f32 %d, %a, %b", &[a, b]), a - b);
        assert_eq!(single("mul.rn.f32 %d, %a, %b", &[a, b]), a * b);
        assert_eq!(single("fma.rn.f32 %d, %a, %b, %c", &[a, b, c]), a.mul_add(b, c));
        assert_eq!(single("div.rn.f32 %d, %a, %b", &[a, b]), a / b);
        assert_eq!(single("rcp.rn.f32 %d, %a", &[a]), 1.0 / a);
        assert_eq!(single("sqrt.rn.f32 %d, %a", &[a.abs()]), a.abs().sqrt());
        assert_eq!(single("neg.f32 %d, %a", &[a]), -a);
        assert_eq!(single("abs.f32 %d, %a", &[-a]), a.abs());
    }
    assert_eq!(single("add.f32 %d, %a, 0f3F800000", &[1.0]), 2.0);
    assert_eq!(single("add.f32 %d, %a, 0.5", &[1.0]), 1.5);
}

/// The exact results are computed in doubles, which have enough digits.
#[test]
fn directed_roundings_enclose_the_exact_result() {
    let mut random = Random(2);
    for _ in 0..20 {
        let [a, b, c] = [(); 3].map(|()| random.number(4.0) as f32);
        let [wide_a, wide_b, wide_c] = [a, b, c].map(f64::from);
        let cases = [
            ("add", vec![a, b], wide_a + wide_b),
            ("mul", vec![a, b], wide_a * wide_b),
            ("div", vec![a, b], wide_a / wide_b),
            ("fma", vec![a, b, c], wide_a.mul_add(wide_b, wide_c)),
        ];
        for (name, operands, exact) in cases {
            let list = ["%a", "%b", "%c"][..operands.len()].join(", ");
            let [near, zero, down, up] =
                ["rn", "rz", "rm", "rp"].map(|r| single(&format!("{name}.{r}.f32 %d, {list}"), &operands));
            assert!(f64::from(down) <= exact && exact <= f64::from(up), "{name} {operands:?}");
            assert!(down == up || down.next_up() == up, "{name} {operands:?}");
            assert_eq!(zero, if exact < 0.0 { up } else { down });
            assert_eq!(near, exact as f32);
        }
    }
    assert_eq!(single("add.rp.f32 %d, %a, %b", &[1.0, 1e-30]), 1_f32.next_up());
    assert_eq!(single("add.rm.f32 %d, %a, %b", &[1.0, -1e-30]), 1_f32.next_down());
    assert_eq!(single("fma.rz.f32 %d, %a, %b, %c", &[1e-20, -1e-20, 1.0]), 1_f32.next_down());
    assert_eq!(single("sqrt.rp.f32 %d, %a", &[2.0]), 2_f32.sqrt().next_up());
    assert_eq!(double("add.rz.f64 %d, %a, %b", &[1.0, -1e-30]), 1_f64.next_down());
    assert_eq!(
        double("mul.rp.f64 %d, %a, %b", &[1_f64.next_up(), 1_f64.next_up()]),
        1_f64.next_up().next_up().next_up()
    );
}

#[test]
fn subnormals_are_flushed_where_told() {
    let tiny = f32::from_bits(1);
    assert_eq!(single("add.f32 %d, %a, %b", &[tiny, tiny]), f32::from_bits(2));
    assert_eq!(single("add.ftz.f32 %d, %a, %b", &[tiny, tiny]), 0.0);
    assert_eq!(single("mul.ftz.f32 %d, %a, %b", &[-1e-30, 1e-10]).to_bits(), (-0_f32).to_bits());
    assert_eq!(single("ex2.approx.ftz.f32 %d, %a", &[-130.0]), 0.0);
    assert!(single("ex2.approx.f32 %d, %a", &[-130.0]) > 0.0);
    assert!(holds("setp.eq.ftz.f32 %p1, %a, %b", "f32", &[1, 0]));
    assert!(!holds("setp.eq.f32 %p1, %a, %b", "f32", &[1, 0]));
}

#[test]
fn results_are_clamped_where_told() {
    for (x, expected) in [(-1.0, 0.0), (0.25, 0.5), (3.0, 1.0), (f32::NAN, 0.0)] {
        assert_eq!(single("add.sat.f32 %d, %a, %a", &[x]), expected);
        assert_eq!(single("fma.rn.sat.f32 %d, %a, 0f40000000, 0f00000000", &[x]), expected);
    }
}

#[test]
fn nan_is_one_nan_and_loses_or_wins() {
    let nan = f32::from_bits(0xffc1_2345);
    assert_eq!(single("add.f32 %d, %a, %b", &[nan, 1.0]).to_bits(), 0x7fff_ffff);
    assert_eq!(single("mul.f32 %d, %a, %b", &[f32::INFINITY, 0.0]).to_bits(), 0x7fff_ffff);
    assert_eq!(single("min.f32 %d, %a, %b", &[nan, 1.0]), 1.0);
    assert_eq!(single("max.NaN.f32 %d, %a, %b", &[1.0, nan]).to_bits(), 0x7fff_ffff);
    assert_eq!(single("max.f32 %d, %a, %b", &[-0.0, 0.0]).to_bits(), 0);
    assert_eq!(single("min.f32 %d, %a, %b", &[0.0, -0.0]).to_bits(), (-0_f32).to_bits());
    assert_eq!(single("copysign.f32 %d, %a, %b", &[-0.0, 3.0]), -3.0);
    assert!(double("min.f64 %d, %a, %b", &[f64::NAN, 2.0]) == 2.0);
    assert!(double("copysign.f64 %d, %a, %b", &[-1.0, 2.0]) == -2.0);
}

#[test]
fn comparisons_know_what_is_unordered() {
    let bits = |x: f32| u64::from(x.to_bits());
    let of = |name: &str, a, b| holds(&format!("setp.{name}.f32 %p1, %a, %b"), "f32", &[bits(a), bits(b)]);
    for (name, [less, equal, greater, unordered]) in [
        ("eq", [false, true, false, false]),
        ("ne", [true, false, true, false]),
        ("lt", [true, false, false, false]),
        ("geu", [false, true, true, true]),
        ("neu", [true, false, true, true]),
        ("equ", [false, true, false, true]),
        ("ltu", [true, false, false, true]),
        ("leu", [true, true, false, true]),
        ("gtu", [false, false, true, true]),
        ("num", [true, true, true, false]),
        ("nan", [false, false, false, true]),
    ] {
        let found = [of(name, 1.0, 2.0), of(name, 2.0, 2.0), of(name, 3.0, 2.0), of(name, f32::NAN, 2.0)];
        assert_eq!(found, [less, equal, greater, unordered], "{name}");
    }
    for (class, expected) in
        [("finite", false), ("infinite", true), ("number", true), ("notanumber", false), ("normal", false)]
    {
        assert_eq!(holds(&format!("testp.{class}.f32 %p1, %a"), "f32", &[bits(f32::INFINITY)]), expected, "{class}");
    }
    assert!(holds("testp.subnormal.f64 %p1, %a", "f64", &[1]));
    assert!(holds("setp.gt.f64 %p1, %a, %b", "f64", &[2_f64.to_bits(), 1_f64.to_bits()]));
}

#[test]
fn approximate_functions_are_near() {
    let near = |found: f32, expected: f64| {
        assert!((f64::from(found) - expected).abs() <= 1e-6 * expected.abs(), "{found} {expected}")
    };
    for x in [0.3_f32, 1.0, 2.5] {
        let wide = f64::from(x);
        near(single("ex2.approx.f32 %d, %a", &[x]), wide.exp2());
        near(single("lg2.approx.f32 %d, %a", &[x]), wide.log2());
        near(single("sin.approx.f32 %d, %a", &[x]), wide.sin());
        near(single("cos.approx.f32 %d, %a", &[x]), wide.cos());
        near(single("tanh.approx.f32 %d, %a", &[x]), wide.tanh());
        near(single("rsqrt.approx.f32 %d, %a", &[x]), 1.0 / wide.sqrt());
        near(single("rcp.approx.ftz.f32 %d, %a", &[x]), 1.0 / wide);
        near(single("div.full.f32 %d, %a, %b", &[x, 3.0]), wide / 3.0);
        near(double("rcp.approx.ftz.f64 %d, %a", &[wide]) as f32, 1.0 / wide);
    }
    assert_eq!(single("lg2.approx.f32 %d, %a", &[0.0]), f32::NEG_INFINITY);
}

#[test]
fn doubles_are_computed() {
    let (a, b, c) = (1.1, -2.3, 0.7);
    assert_eq!(double("add.f64 %d, %a, %b", &[a, b]), a + b);
    assert_eq!(double("fma.rn.f64 %d, %a, %b, %c", &[a, b, c]), a.mul_add(b, c));
    assert_eq!(double("div.rn.f64 %d, %a, %b", &[a, b]), a / b);
    assert_eq!(double("sqrt.rn.f64 %d, %a", &[a]), a.sqrt());
    assert_eq!(double("mul.f64 %d, %a, 0d4000000000000000", &[a]), 2.0 * a);
}

#[test]
fn halves_are_rounded_once() {
    let of = |instruction: &str, operands: &[f32]| {
        let operands: Vec<_> = operands.iter().map(|x| ("f16", u64::from(f16::from_f32(*x).to_bits()))).collect();
        f16::from_bits(value(instruction, "f16", &operands) as u16).to_f32()
    };
    assert_eq!(of("add.f16 %d, %a, %b", &[2048.0, 1.0]), 2048.0);
    assert_eq!(of("add.f16 %d, %a, %b", &[2048.0, 3.0]), 2052.0);
    // 1 + 2^-11 is half-way between two halves; the last digits of the product decide.
    let eps = 2_f32.powi(-10);
    assert_eq!(of("fma.rn.f16 %d, %a, %b, %c", &[eps, 0.5, 1.0]), 1.0);
    assert_eq!(of("fma.rn.f16 %d, %a, %b, %c", &[eps, 0.5 + eps, 1.0]), 1.0 + eps);
    assert_eq!(of("mul.f16 %d, %a, %b", &[300.0, 300.0]), f32::INFINITY);
    assert_eq!(of("max.NaN.f16 %d, %a, %b", &[1.0, f32::NAN]).to_bits() & 0x7fc0_0000, 0x7fc0_0000);
    assert_eq!(of("neg.f16 %d, %a", &[3.0]), -3.0);
    assert_eq!(of("fma.rn.relu.f16 %d, %a, %b, %c", &[1.0, -2.0, 1.0]), 0.0);
    assert_eq!(of("ex2.approx.f16 %d, %a", &[3.0]), 8.0);
    let brain = |x: f32| ("bf16", u64::from(bf16::from_f32(x).to_bits()));
    let sum = value("fma.rn.bf16 %d, %a, %b, %c", "bf16", &[brain(1.5), brain(2.0), brain(256.0)]);
    // 259 is half-way between 258 and 260; the last digit of 260 is even.
    assert_eq!(bf16::from_bits(sum as u16).to_f32(), 260.0);
}

#[test]
fn pairs_are_computed_side_by_side() {
    let pair = |low: f32, high: f32| {
        ("f16x2", u64::from(f16::from_f32(high).to_bits()) << 16 | u64::from(f16::from_f32(low).to_bits()))
    };
    let found = value("fma.rn.f16x2 %d, %a, %b, %c", "f16x2", &[pair(2.0, 3.0), pair(4.0, -5.0), pair(1.0, 0.5)]);
    assert_eq!(found, pair(9.0, -14.5).1);
    let found = value("add.f16x2 %d, %a, %b", "f16x2", &[pair(2.0, 3.0), pair(4.0, -5.0)]);
    assert_eq!(found, pair(6.0, -2.0).1);
}
