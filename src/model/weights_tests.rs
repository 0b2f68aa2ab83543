//! Tests of weights with every type and under other names, and of the errors for missing ones.

use super::*;

/// A safetensors file with one tensor `w`.
fn file(dtype: &str, dims: &[usize], data: &[u8]) -> Vec<u8> {
    let json = format!(r#"{{"w":{{"dtype":"{dtype}","shape":{dims:?},"data_offsets":[0,{}]}}}}"#, data.len());
    [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), data].concat()
}

#[test]
fn every_float_type_is_read() {
    let values = [0.5, -2.0, 65504.0, 1.0];
    let bytes = |to: fn(f64) -> Vec<u8>| values.iter().flat_map(|&v| to(v)).collect::<Vec<u8>>();
    let cases = [
        ("F16", Dtype::F16, bytes(|v| f16::from_f64(v).to_le_bytes().to_vec()), 65504.0),
        ("BF16", Dtype::Bf16, bytes(|v| bf16::from_f64(v).to_le_bytes().to_vec()), 65536.0),
        ("F32", Dtype::F32, bytes(|v| (v as f32).to_le_bytes().to_vec()), 65504.0),
        ("F64", Dtype::F64, bytes(|v| v.to_le_bytes().to_vec()), 65504.0),
    ];
    for (name, dtype, data, third) in cases {
        let weights = Weights::from_bytes(file(name, &[2, 2], &data)).unwrap();
        assert_eq!(weights.dtype("w"), Some(WeightDtype::Element(dtype)));
        let mut out = [f32::NAN; 4];
        weights.read_f32("w", &[2, 2], &mut out).unwrap();
        assert_eq!(out, [0.5, -2.0, third, 1.0], "{name}");
        let mut raw = vec![0; data.len()];
        weights.read_into("w", &mut raw).unwrap();
        assert_eq!(raw, data);
    }
}

#[test]
fn long_tensors_are_read_in_chunks() {
    let elems = 3 * CHUNK_BYTES / 4 + 7;
    let values: Vec<f32> = (0..elems).map(|i| i as f32).collect();
    let weights = Weights::from_tensors([("pre", vec![1], vec![9.0]), ("w", vec![elems], values.clone())]).unwrap();
    let mut out = vec![f32::NAN; elems];
    weights.read_f32("w", &[elems], &mut out).unwrap();
    assert_eq!(out, values);
}

#[test]
fn values_that_are_not_finite_are_refused_by_index() {
    for (bad, at) in [(f32::NAN, 3), (f32::INFINITY, 0), (f32::NEG_INFINITY, 40_000)] {
        let mut values = vec![1.0; 50_000];
        values[at] = bad;
        let weights = Weights::from_tensors([("w", vec![50_000], values)]).unwrap();
        let error = weights.read_f32("w", &[50_000], &mut vec![0.0; 50_000]).unwrap_err();
        assert!(error.to_string().ends_with(&format!("found {bad} at element {at}")), "{error}");
    }
    let weights = Weights::from_bytes(file("F64", &[1], &1e300_f64.to_le_bytes())).unwrap();
    assert!(matches!(weights.read_f32("w", &[1], &mut [0.0]), Err(Error::Tensor { .. })));
}

#[test]
fn a_wrong_request_says_what_is_there() {
    let weights = Weights::from_tensors([("conv1.weight", vec![2, 1], vec![0.0; 2])]).unwrap();
    let read = |name, dims: &[usize], out: &mut [f32]| weights.read_f32(name, dims, out).unwrap_err().to_string();
    assert!(read("conv1.wieght", &[2], &mut [0.0; 2]).contains("found only `conv1.weight`"));
    assert!(read("conv1.weight", &[1, 2], &mut [0.0; 2]).ends_with("expected [1, 2], found [2, 1]"));
    assert!(read("conv1.weight", &[2, 1], &mut [0.0; 3]).ends_with("expected 3 elements, found 2 elements"));
    assert!(weights.read_into("conv1.weight", &mut [0; 7]).is_err());
    let integers = Weights::from_bytes(file("I64", &[1], &[0; 8])).unwrap();
    let error = integers.read_f32("w", &[1], &mut [0.0]).unwrap_err().to_string();
    assert!(error.ends_with("expected f16, bf16, f32 or f64, found i64"), "{error}");
}

/// A tensor of a size that no memory has, as in an empty file with a wrong size.
#[test]
fn what_fits_into_no_memory_is_an_error() {
    let Weights { path, sources, header } = Weights::from_tensors([("w", vec![1], vec![0.5])]).unwrap();
    let part = SourcePart { source: sources[0].clone(), offset: 0, bytes: 1 << 60 };
    let weights = Weights { path, sources: vec![Arc::new(Source::Parts(vec![part]))], header };
    assert!(matches!(Weights::in_memory(&Arc::new(weights)), Err(Error::Io { .. })));
}

#[test]
fn tensors_made_in_code_are_checked() {
    assert!(Weights::from_tensors([("w", vec![2], vec![0.0; 3])]).is_err());
    assert!(Weights::from_tensors([("w", vec![usize::MAX, 2], vec![0.0; 3])]).is_err());
    assert!(Weights::from_tensors([("w", vec![1], vec![0.0]), ("w", vec![1], vec![0.0])]).is_err());
}
