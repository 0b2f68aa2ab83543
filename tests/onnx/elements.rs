//! Elements of tensors in every field that may store them.

use trefoil::Error;
use trefoil::onnx::{DataType, File};

use super::refused;
use super::write::{bytes, initializer, int, model, varint};

/// The elements of an initializer of `dims`.
fn read(dtype: i64, dims: &[i64], fields: &[Vec<u8>]) -> Result<Vec<u8>, Error> {
    let file = File::from_bytes(model(&[initializer(dtype, dims, fields)]))?;
    let tensor = &file.model().graph.initializers[0];
    let mut out = vec![0xA5; tensor.bytes()];
    file.read(tensor, &mut out).map(|()| out)
}

fn said(dtype: i64, dims: &[i64], fields: &[Vec<u8>]) -> String {
    read(dtype, dims, fields).unwrap_err().to_string()
}

/// A field of packed varints.
fn packed(number: u32, values: &[i64]) -> Vec<u8> {
    bytes(number, values.iter().flat_map(|&value| varint(value as u64)).collect::<Vec<_>>())
}

const FLOAT: i64 = 1;
const UINT8: i64 = 2;
const INT8: i64 = 3;
const INT32: i64 = 6;
const INT64: i64 = 7;
const BOOL: i64 = 9;
const FLOAT16: i64 = 10;
const UINT32: i64 = 12;
const UINT4: i64 = 21;
const FLOAT6E2M3: i64 = 27;

#[test]
fn repeated_fields_are_read_packed_and_not() {
    let single = |number: u32, value: f32| [vec![(number << 3 | 5) as u8], value.to_le_bytes().to_vec()].concat();
    let expected = [1.0_f32, 2.0, 3.0].map(f32::to_le_bytes).concat();
    let two = bytes(4, [1.0_f32, 2.0].map(f32::to_le_bytes).concat());
    assert_eq!(read(FLOAT, &[3], &[single(4, 1.0), single(4, 2.0), single(4, 3.0)]).unwrap(), expected);
    assert_eq!(read(FLOAT, &[3], &[two, bytes(4, ""), single(4, 3.0)]).unwrap(), expected);
    let ints = [int(7, -5), packed(7, &[6, 7])];
    assert_eq!(read(INT64, &[3], &ints).unwrap(), [-5_i64, 6, 7].map(i64::to_le_bytes).concat());
    assert_eq!(read(INT64, &[3], &[bytes(7, ""), bytes(9, [7; 24])]).unwrap(), [7; 24], "empty fields say nothing");
}

#[test]
fn small_types_are_read_out_of_wide_integers() {
    assert_eq!(read(FLOAT16, &[2], &[packed(5, &[0x3C00, 0xFBFF])]).unwrap(), [0x00, 0x3C, 0xFF, 0xFB]);
    assert_eq!(read(INT8, &[3], &[packed(5, &[-128, -1, 127])]).unwrap(), [0x80, 0xFF, 0x7F]);
    assert_eq!(read(BOOL, &[1, 2], &[packed(5, &[1, 0])]).unwrap(), [1, 0]);
    assert_eq!(read(UINT32, &[1], &[packed(11, &[0xFFFF_FFFF])]).unwrap(), [0xFF; 4]);
    // Some writers cut the sign extension off.
    assert_eq!(read(INT32, &[2], &[packed(5, &[-2, 0xFFFF_FFFE])]).unwrap(), (-2_i32).to_le_bytes().repeat(2));
    // Two elements of four bits in a byte, and elements of six bits.
    assert_eq!(read(UINT4, &[3], &[packed(5, &[0x21, 0x03])]).unwrap(), [0x21, 0x03]);
    assert_eq!(read(FLOAT6E2M3, &[3], &[packed(5, &[1, 0x3F, 2])]).unwrap(), [0b1100_0001, 0b0010_1111, 0]);
}

#[test]
fn numbers_that_no_element_has_are_refused() {
    for (dtype, number, value) in
        [(INT8, 5, 128), (INT8, 5, -129), (UINT8, 5, -1), (FLOAT16, 5, 0x10000), (UINT32, 11, 1 << 32), (BOOL, 5, 256)]
    {
        let what = said(dtype, &[1], &[packed(number, &[value])]);
        let name = DataType::from_number(dtype).unwrap();
        assert!(what.contains("tensor `w`: ") && what.ends_with(&format!(" is no {name}")), "{what}");
    }
}

#[test]
fn varints_are_as_many_as_elements() {
    for (fields, found) in [(packed(7, &[1 << 20, 1]), "2"), (packed(7, &[1, 2, 3, 4]), "more")] {
        let what = said(INT64, &[3], &[fields]);
        assert_eq!(what, format!("<memory>: tensor `w`: expected 3 varints, found {found}"));
    }
    let what = said(INT64, &[1], &[bytes(7, [0x80])]);
    assert!(what.ends_with("TensorProto.int64_data: the varint at byte 15 is cut short"), "{what}");
    let fields = [packed(7, &[1, 2])];
    assert!(refused(model(&[initializer(INT64, &[3], &fields)])).ends_with("expected 3 varints, found 2 bytes"));
    let many = [bytes(7, [0; 31])];
    assert!(refused(model(&[initializer(INT64, &[3], &many)])).ends_with("expected 3 varints, found 31 bytes"));
}

#[test]
fn a_wrong_request_says_what_is_there() {
    let file = File::from_bytes(model(&[initializer(FLOAT, &[2], &[bytes(9, [0; 8])])])).unwrap();
    let tensor = &file.model().graph.initializers[0];
    let what = file.read(tensor, &mut [0; 7]).unwrap_err().to_string();
    assert_eq!(what, "<memory>: tensor `w`: expected 7 bytes, found 8 bytes");
    let other = File::from_bytes(model(&[])).unwrap();
    let what = other.read(tensor, &mut [0; 8]).unwrap_err().to_string();
    assert!(what.ends_with("expected a tensor of this file, found one of another file"), "{what}");
    let what = said(8, &[2], &[bytes(6, "a"), bytes(6, "")]);
    assert!(what.contains("tensor `w`: text is not supported"), "{what}");
}
