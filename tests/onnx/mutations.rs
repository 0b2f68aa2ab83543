//! Files with a few changed bytes: they give an error or a model, no panic, and take no memory for false lengths.

use std::fs;

use trefoil::Error;
use trefoil::onnx::File;

use super::memory::peak;
use super::splitmix::Random;
use super::{FILES, Folder, data, refused, tensors};

/// A limit of memory that no unchanged file exceeds.
const MOST_BYTES: usize = 1 << 18;

impl Random {
    /// Changes, inserts or removes some bytes.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..1 + self.below(3) {
            let at = self.below(bytes.len());
            match self.below(6) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.next() as u8,
                2 => bytes[at] = [0x00, 0x7F, 0x80, 0xFF][self.below(4)],
                3 => drop(bytes.splice(at..at, [0xFF; 9])),
                4 => drop(bytes.drain(at..bytes.len().min(at + 1 + self.below(8)))),
                _ => {
                    let from = self.below(bytes.len());
                    let length = (bytes.len() - from.max(at)).min(16);
                    bytes.copy_within(from..from + length, at);
                }
            }
        }
    }
}

/// Opens a file and reads all of its tensors; returns whether it is a model.
fn read_all(open: impl FnOnce() -> Result<File, Error>) -> bool {
    let (opened, most) = peak(open);
    assert!(most <= MOST_BYTES, "{most} bytes");
    let Ok(file) = opened else { return false };
    for tensor in tensors(file.model()) {
        assert!(tensor.bytes() < 100_000, "{} bytes of a small file", tensor.bytes());
        let _ = file.read(tensor, &mut vec![0; tensor.bytes()]);
    }
    true
}

#[test]
fn thousands_of_mutations_are_survived() {
    let folder = Folder::new();
    folder.write("external.data", fs::read(data("external.data")).unwrap());
    let mut random = Random(20_261_122);
    for (name, runs) in [("graph", 6000), ("tensors", 3000), ("external", 500)] {
        let whole = fs::read(data(&format!("{name}.onnx"))).unwrap();
        let mut models = 0;
        for _ in 0..runs {
            let mut bytes = whole.clone();
            random.mutate(&mut bytes);
            let is_model = match name {
                // A file with external data is opened by its path.
                "external" => {
                    let path = folder.write("model.onnx", bytes);
                    read_all(|| File::open(path))
                }
                _ => read_all(|| File::from_bytes(bytes)),
            };
            models += usize::from(is_model);
        }
        assert!((runs / 30..runs - runs / 30).contains(&models), "{name}: {models} of {runs} are still models");
    }
}

/// The field numbers of the outermost message, with the places where the fields end.
fn ends(bytes: &[u8]) -> Vec<(u64, usize)> {
    let mut rest = bytes;
    let varint = |rest: &mut &[u8]| {
        let length = rest.iter().position(|byte| *byte < 0x80).unwrap() + 1;
        let (varint, behind) = rest.split_at(length);
        *rest = behind;
        varint.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7F))
    };
    let mut ends = Vec::new();
    while !rest.is_empty() {
        let (tag, value) = (varint(&mut rest), varint(&mut rest));
        if tag & 7 == 2 {
            rest = &rest[value as usize..];
        }
        ends.push((tag >> 3, bytes.len() - rest.len()));
    }
    ends
}

#[test]
fn a_file_cut_short_is_refused_unless_a_field_of_the_model_ends_there() {
    for name in FILES {
        let whole = fs::read(data(&format!("{name}.onnx"))).unwrap();
        let ends = ends(&whole);
        let graph = ends.iter().find(|(number, _)| *number == 7).unwrap().1;
        for length in 0..whole.len() {
            let legal = length >= graph && ends.iter().any(|(_, end)| *end == length);
            let cut = whole[..length].to_vec();
            // A file with external data is refused in memory.
            if !legal || name == "external" {
                let said = refused(cut);
                let told = said.strip_prefix("<memory>: ").expect("it begins with the path");
                let place = told.strip_prefix("not an ONNX file: ").unwrap_or(told);
                assert!(place.starts_with("byte "), "{name}, {length} bytes: {said}");
            } else {
                File::from_bytes(cut).unwrap_or_else(|e| panic!("{name}, {length} bytes: {e}"));
            }
        }
    }
}
