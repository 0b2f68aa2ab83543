//! The node tests of ONNX: a model in a folder, with its inputs and expected outputs.

use std::path::Path;

use trefoil::Dtype;
use trefoil::graph::{Graph, Tensor};
use trefoil::onnx::{File, Sizes};

/// The inputs that are bound as constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    Nothing,
    Integers,
    Everything,
}

/// The tensors of a kind, `input` or `output`, in a folder.
pub fn values(folder: &Path, kind: &str, count: usize) -> Result<Vec<Tensor>, String> {
    let value = |index: usize| {
        let path = folder.join(format!("{kind}_{index}.pb"));
        let bytes = std::fs::read(&path).map_err(|_| format!("{kind} {index} is no tensor"))?;
        let file = File::from_bytes(alone(&bytes)).map_err(|e| e.to_string())?;
        file.elements(&file.model().graph.initializers[0]).map_err(|e| e.to_string())
    };
    (0..count).map(value).collect()
}

/// A file whose graph has this tensor as its only initializer.
fn alone(tensor: &[u8]) -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| {
        let mut all = vec![number << 3 | 2];
        let mut length = bytes.len();
        while length >= 0x80 {
            all.push(length as u8 | 0x80);
            length >>= 7;
        }
        all.push(length as u8);
        [&all, bytes].concat()
    };
    let named = [tensor, &field(8, b"value")].concat();
    [&[0x08, 10][..], &field(7, &field(5, &named)), &field(8, &[0x10, 20])].concat()
}

fn is_bound(value: &Tensor, bound: Bound) -> bool {
    let of = value.value_type();
    match bound {
        Bound::Nothing => false,
        Bound::Integers => of.rank() < 2 && (of.dtype.is_integer() || of.dtype == Dtype::Bool),
        Bound::Everything => true,
    }
}

/// The graph of a model with some inputs bound as constants, and the values of its other inputs.
pub fn graph(file: &File, inputs: &[Tensor], bound: Bound) -> Result<(Graph, Vec<Tensor>), String> {
    let ports = &file.model().graph.inputs;
    let constants = ports.iter().zip(inputs).filter(|(_, value)| is_bound(value, bound));
    let sizes = constants.fold(Sizes::new(), |sizes, (port, value)| sizes.constant(&port.name, value.clone()));
    let graph = file.graph(&sizes).map_err(|e| e.to_string())?;
    Ok((graph, inputs.iter().filter(|value| !is_bound(value, bound)).cloned().collect()))
}
