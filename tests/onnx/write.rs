//! Writes protobuf by hand, so that it can be invalid.

/// A varint with the fewest bytes.
pub fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A field with an integer.
pub fn int(number: u32, value: i64) -> Vec<u8> {
    [varint(u64::from(number) << 3), varint(value as u64)].concat()
}

/// A field with bytes, a text or a message.
pub fn bytes(number: u32, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    [varint(u64::from(number) << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}

/// A field with a message that consists of these fields.
pub fn message(number: u32, fields: &[Vec<u8>]) -> Vec<u8> {
    bytes(number, fields.concat())
}

/// A file whose graph consists of these fields.
pub fn model(graph: &[Vec<u8>]) -> Vec<u8> {
    [int(1, 10), message(7, graph)].concat()
}

/// A node with an operator and other fields.
pub fn node(op_type: &str, more: &[Vec<u8>]) -> Vec<u8> {
    message(1, &[bytes(4, op_type), more.concat()])
}

/// An attribute of a node, with a name and other fields.
pub fn attribute(name: &str, more: &[Vec<u8>]) -> Vec<u8> {
    message(5, &[bytes(1, name), more.concat()])
}

/// An initializer `w` of this type and these dimensions, with other fields.
pub fn initializer(dtype: i64, dims: &[i64], more: &[Vec<u8>]) -> Vec<u8> {
    let dims = dims.iter().map(|&dim| int(1, dim)).collect::<Vec<_>>().concat();
    message(5, &[bytes(8, "w"), int(2, dtype), dims, more.concat()])
}

/// An initializer `w` of f32 in another file, with entries of keys and values.
pub fn external(dims: &[i64], entries: &[(&str, &str)]) -> Vec<u8> {
    let entries = entries.iter().map(|(key, value)| message(13, &[bytes(1, key), bytes(2, value)]));
    initializer(1, dims, &[int(14, 1), entries.collect::<Vec<_>>().concat()])
}
