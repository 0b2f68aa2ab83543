//! Every operation on the CPU against plain loops in f64.

mod support;

use support::operations;
use support::problem::Case;
use trefoil::Device;
#[cfg(feature = "cuda")]
use trefoil::Precision;
use trefoil::plan::Choices;

fn check(cases: Vec<Case>) {
    let device = Device::cpu(2);
    let wrong: Vec<String> = cases.iter().filter_map(|case| case.run(&device, Choices::new()).err()).collect();
    assert!(wrong.is_empty(), "{} of {} problems:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    println!("{} problems", cases.len());
}

#[test]
fn normalize() {
    check(operations::normalize());
}

#[cfg(feature = "cuda")] // whose kernel has the same problems
#[test]
fn packed_attention() {
    let device = Device::cpu(2);
    for problem in support::packed_attention::all() {
        for dtype in support::halves::HALVES {
            assert_eq!(problem.run(&device, dtype), Ok(()), "{dtype}, {problem}");
        }
    }
}

/// Attention of one row has a kernel on GPUs alone, so that here the bounds of its results are held against results that are
/// wrong.
#[cfg(feature = "cuda")]
#[test]
fn bounds_of_class_attention_refuse_wrong_results() {
    for precision in [Precision::F16, Precision::Bf16] {
        for problem in support::class_attention::small(precision) {
            for (what, checked) in problem.wrong() {
                assert!(checked.is_err(), "{what} is taken for right: {problem:?}");
            }
        }
    }
}

#[test]
fn conv2d() {
    check(operations::conv2d());
}

#[test]
fn halo() {
    check(operations::halo());
}

#[test]
fn stem() {
    check(operations::stem());
}

#[test]
fn depthwise() {
    check(operations::depthwise());
}

#[test]
fn chained() {
    check(operations::chained());
}

#[test]
fn pool2d() {
    check(operations::pool2d());
}

#[test]
fn global_avg_pool() {
    check(operations::global_avg_pool());
}

#[test]
fn tail() {
    check(operations::tail());
}

#[test]
fn linear() {
    check(operations::linear());
}

#[test]
fn add() {
    check(operations::add());
}

#[test]
fn concat() {
    check(operations::concat());
}

#[test]
fn outputs() {
    check(operations::outputs());
}

#[test]
fn networks() {
    check(operations::networks());
}

mod of_the_support {
    use crate::support::operations;
    use crate::support::random::Random;
    use crate::support::tolerance::{Expected, Growth, Storage};
    use trefoil::Shape;

    fn expected(values: Vec<f64>) -> Expected {
        Expected { shape: Shape::new(1, values.len() / 2, 2), errors: vec![1e-3; values.len()], values }
    }

    #[test]
    fn a_difference_is_told_by_coordinate_and_nan_and_infinity_never_pass() {
        let wanted = expected(vec![1.0, 2.0, 3.0, 4.0]);
        for growth in [Growth::Worst, Growth::Quadrature] {
            wanted.check(growth, &[1.0, 2.0005, 3.0, 4.0]).unwrap();
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3.5] {
                let message = wanted.check(growth, &[1.0, 2.0, bad, 4.0]).unwrap_err();
                assert!(message.contains("1 of 4") && message.contains("[0, 1, 0] is"), "{message}");
            }
            for never in [f64::NAN, f64::INFINITY] {
                assert!(expected(vec![never, 1.0]).check(growth, &[never as f32, 1.0]).is_err());
            }
            assert!(wanted.check(growth, &[1.0, 2.0]).is_err());
        }
    }

    /// The reference for halves, which `tests/gpu.rs` uses, is checked here without a GPU.
    #[test]
    fn the_reference_for_halves_is_near_the_exact_one() {
        let cases = operations::all();
        let wrong: Vec<String> = cases.iter().filter_map(|case| case.check_references().err()).collect();
        assert!(wrong.is_empty(), "{} of {} problems:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    }

    /// Sums in f32 and roundings to f16 stay within the derived tolerance, which is far below the effect of one term.
    #[test]
    fn tolerances_hold_and_are_tight() {
        let mut random = Random::new("tolerances");
        for terms in [1, 3, 27, 576, 1152] {
            for _ in 0..200 {
                let (a, b) = (random.singles(terms, 1.0), random.singles(terms, 1.0));
                let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                let magnitude: f64 = a.iter().zip(&b).map(|(a, b)| (f64::from(*a) * f64::from(*b)).abs()).sum();
                let sum = a.iter().zip(&b).fold(0.0_f32, |sum, (a, b)| sum + a * b);
                let half = f64::from(half::f16::from_f32(sum));
                for growth in [Growth::Worst, Growth::Quadrature] {
                    let error = growth.sum(Storage::F32, terms, magnitude);
                    assert!((f64::from(sum) - exact).abs() <= growth.limit(error));
                    assert!((half - exact).abs() <= growth.limit(growth.stored(Storage::F16, exact, error)));
                    assert!(terms == 1 || growth.limit(error) < 0.2 * magnitude / terms as f64);
                }
            }
        }
    }
}
