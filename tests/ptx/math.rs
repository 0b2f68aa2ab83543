//! Functions of the compiler's math library, and a reduction, as the compiler generates them from `math.cu`.

use crate::harness::{Random, block, launch_of, read};

const THREADS: usize = 64;
const TEXT: &str = include_str!("math.ptx");

/// The results of a kernel on singles, for pairs of numbers.
fn singles(kernel: &str, x: &[f32; THREADS], z: &[f32; THREADS]) -> Vec<f32> {
    let packed = |x: &[f32]| -> Vec<u64> {
        let bits = |x: f32| u64::from(x.to_bits());
        x.chunks(2).map(|two| bits(two[1]) << 32 | bits(two[0])).collect()
    };
    let found = called(kernel, packed(x), packed(z), THREADS / 2);
    found.into_iter().flat_map(|word| [word as u32, (word >> 32) as u32]).map(f32::from_bits).collect()
}

fn doubles(kernel: &str, x: &[f64; THREADS], z: &[f64; THREADS]) -> Vec<f64> {
    let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect();
    called(kernel, bits(x), bits(z), THREADS).into_iter().map(f64::from_bits).collect()
}

fn called(kernel: &str, mut x: Vec<u64>, mut z: Vec<u64>, words: usize) -> Vec<u64> {
    let mut y = vec![0; words];
    launch_of(&read(TEXT), kernel, block(THREADS as u32), &mut [&mut x, &mut z, &mut y]).unwrap();
    y
}

/// Whether two numbers differ by at most `units` in the last place, which is the function's accuracy by NVIDIA's
/// documentation plus one half for the reference.
fn near(found: f64, exact: f64, digits: i32, units: f64) -> bool {
    let unit = 2_f64.powi(exact.abs().log2().floor() as i32 + 1 - digits);
    found == exact || found.is_nan() && exact.is_nan() || (found - exact).abs() <= (units + 0.5) * unit
}

#[test]
fn singles_are_as_documented() {
    type Case = (&'static str, fn(f64, f64) -> f64, f64, f64);
    let cases: [Case; 8] = [
        ("f32_exp", |x, _| x.exp(), 80.0, 1.0),
        ("f32_log", |x, _| x.abs().ln(), 1e6, 1.0),
        ("f32_erf", |x, _| libm::erf(x), 4.0, 2.0),
        ("f32_tanh", |x, _| x.tanh(), 8.0, 1.0),
        ("f32_sin", |x, _| x.sin(), 1e7, 2.0),
        ("f32_cos", |x, _| x.cos(), 1e7, 2.0),
        ("f32_pow", |x, z| x.abs().powf(z), 10.0, 4.0),
        ("f32_mod", |x, z| x % z, 1000.0, 0.0),
    ];
    let mut random = Random(3);
    for (kernel, exact, limit, units) in cases {
        let mut x = [(); THREADS].map(|()| random.number(limit) as f32);
        if ["f32_log", "f32_pow"].contains(&kernel) {
            x = x.map(f32::abs);
        }
        let z = [(); THREADS].map(|()| random.number(9.0) as f32);
        for ((found, x), z) in singles(kernel, &x, &z).into_iter().zip(x).zip(z) {
            let exact = exact(x.into(), z.into());
            assert!(near(found.into(), exact, 24, units), "{kernel} of {x}, {z} is {found}, not {exact}");
        }
    }
}

#[test]
fn doubles_are_as_documented() {
    type Case = (&'static str, fn(f64, f64) -> f64, f64, f64);
    let cases: [Case; 5] = [
        ("f64_exp", |x, _| x.exp(), 700.0, 1.0),
        ("f64_log", |x, _| x.ln(), 1e9, 1.0),
        ("f64_sin", |x, _| x.sin(), 1e12, 2.0),
        ("f64_pow", |x, z| x.powf(z), 10.0, 2.0),
        ("f64_tanh", |x, _| x.tanh(), 8.0, 1.0),
    ];
    let mut random = Random(4);
    for (kernel, exact, limit, units) in cases {
        let x = [(); THREADS].map(|()| random.number(limit).abs());
        let z = [(); THREADS].map(|()| random.number(9.0));
        for ((found, x), z) in doubles(kernel, &x, &z).into_iter().zip(x).zip(z) {
            let exact = exact(x, z);
            assert!(near(found, exact, 53, units), "{kernel} of {x}, {z} is {found}, not {exact}");
        }
    }
}

#[test]
fn limits_are_as_documented() {
    let of = |kernel, x: f32, z: f32| singles(kernel, &[x; THREADS], &[z; THREADS])[0];
    assert_eq!(of("f32_exp", 100.0, 0.0), f32::INFINITY);
    assert_eq!(of("f32_exp", f32::NEG_INFINITY, 0.0), 0.0);
    assert_eq!(of("f32_log", 0.0, 0.0), f32::NEG_INFINITY);
    assert!(of("f32_log", -1.0, 0.0).is_nan() && of("f32_sin", f32::INFINITY, 0.0).is_nan());
    assert_eq!((of("f32_pow", -2.0, 3.0), of("f32_pow", 0.0, 0.0), of("f32_tanh", 100.0, 0.0)), (-8.0, 1.0, 1.0));
    assert!(of("f32_pow", -2.0, 0.5).is_nan());
    // Large arguments take the slow paths of the reduction by pi.
    assert!(near(of("f32_sin", 1e30, 0.0).into(), f64::from(1e30_f32).sin(), 24, 2.0));
    let found = doubles("f64_sin", &[1e200; THREADS], &[0.0; THREADS])[0];
    assert!(near(found, 1e200_f64.sin(), 53, 2.0), "{found}");
}

#[test]
fn a_block_sums() {
    let x: [f32; THREADS] = std::array::from_fn(|i| i as f32);
    assert_eq!(singles("sum", &x, &x)[0], 2016.0);
}
