//! Bytes as a safetensors file: its header, and every tensor.

use trefoil::model::Weights;

use super::check_error;

pub fn run(bytes: &[u8]) {
    let weights = match Weights::from_bytes(bytes.to_vec()) {
        Ok(weights) => weights,
        Err(error) => return check_error(&error),
    };
    for name in weights.names() {
        let dims = weights.dims(name).expect("a name of its own");
        let elems: usize = dims.iter().product();
        assert!(elems <= 8 * bytes.len(), "{elems} elements of {} bytes", bytes.len());
        let _ = weights.read(name).map_err(|error| check_error(&error));
        let _ = weights.read_f32(name, dims, &mut vec![0.0; elems]).map_err(|error| check_error(&error));
    }
}
