//! The header of a safetensors file: JSON that says where each tensor lies.
//!
//! The file is a header length n (u64, little-endian), n bytes of JSON, and the tensors' bytes. Everything here is
//! input from outside: what is accepted is a subset of what the crate `safetensors` accepts (repeated names are
//! refused), and every refusal names the tensor with the expected and the found value.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorInfo};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use super::weights::WeightDtype;
use crate::error::Error;
use crate::files::zeros;

/// The place and type of one stored tensor.
#[derive(Clone, Debug)]
pub(super) struct StoredTensor {
    /// The element type.
    pub dtype: WeightDtype,
    /// The dimensions, outermost first.
    pub dims: Vec<usize>,
    /// The number of elements: the product of the dimensions.
    pub elems: usize,
    /// The index of the source in which the tensor lies.
    pub source: usize,
    /// The offset of the first byte in the source.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: usize,
    /// Whether the file has the transposed matrix; the dimensions end with axes of 1 then.
    pub transposed: bool,
}

/// A header whose offsets have been checked against the file's size.
#[derive(Clone, Debug, Default)]
pub(super) struct Header {
    /// The tensors by name.
    pub tensors: BTreeMap<String, StoredTensor>,
    /// The file's `__metadata__`.
    pub metadata: BTreeMap<String, String>,
}

/// The largest accepted size of a header, as in the crate `safetensors`.
const MAX_HEADER_BYTES: u64 = 100_000_000;
const LENGTH_BYTES: u64 = 8;

impl Header {
    /// Reads and checks the header of a file of `file_bytes` bytes; `read_at` reads at an offset.
    pub fn read(
        path: &Path,
        file_bytes: u64,
        read_at: impl Fn(&mut [u8], u64) -> io::Result<()>,
    ) -> Result<Self, Error> {
        let fail = |what: String| Err(Error::format(path, what));
        if file_bytes < LENGTH_BYTES {
            return fail(format!("not a safetensors file: expected at least 8 bytes, found {file_bytes}"));
        }
        let mut length = [0; LENGTH_BYTES as usize];
        read_at(&mut length, 0).map_err(|e| Error::io("read", path, e))?;
        let header_bytes = u64::from_le_bytes(length);
        let most = MAX_HEADER_BYTES.min(file_bytes - LENGTH_BYTES);
        if header_bytes > most {
            return fail(format!(
                "not a safetensors file, or cut short: it begins with the length of its header: expected {most} bytes \
                 at most, found {header_bytes}"
            ));
        }
        let json = zeros(header_bytes as usize).and_then(|mut json| {
            read_at(&mut json, LENGTH_BYTES)?;
            Ok(json)
        });
        let json = json.map_err(|e| Error::io("read", path, e))?;
        Self::parse(path, &json, LENGTH_BYTES + header_bytes, file_bytes)
    }

    /// Checks the header `json` of a file of `file_bytes` bytes. Its tensors begin at byte `data_start`.
    fn parse(path: &Path, json: &[u8], data_start: u64, file_bytes: u64) -> Result<Self, Error> {
        let raw: RawHeader = serde_json::from_slice(json).map_err(|e| {
            let what = if e.is_data() { "safetensors header" } else { "not a safetensors file: its header is no JSON" };
            Error::format(path, format!("{what}: {e}"))
        })?;
        let data_bytes = file_bytes - data_start;
        let mut tensors = BTreeMap::new();
        let mut extents = Vec::with_capacity(raw.tensors.len());
        for (name, info) in raw.tensors {
            let (begin, end) = info.data_offsets;
            let entry = entry(info, data_start)
                .map_err(|what| Error::format(path, format!("safetensors header: tensor `{name}`: {what}")))?;
            extents.push((begin as u64, end as u64, name.clone()));
            tensors.insert(name, entry);
        }
        extents.sort();
        check_extents(&extents, data_bytes)
            .map_err(|what| Error::format(path, format!("safetensors header: {what}")))?;
        Ok(Self { tensors, metadata: raw.metadata })
    }
}

/// Checks the type, shape and offsets of one tensor against each other, and that `data_start` plus the offsets does not
/// overflow.
fn entry(info: TensorInfo, data_start: u64) -> Result<StoredTensor, String> {
    let TensorInfo { dtype, shape: dims, data_offsets: (begin, end) } = info;
    let found = end.checked_sub(begin).ok_or_else(|| format!("offsets [{begin}, {end}] are reversed"))?;
    let overflow = || format!("the size of shape {dims:?} overflows");
    let elems = dims.iter().try_fold(1_usize, |n, &dim| n.checked_mul(dim)).ok_or_else(overflow)?;
    let bits = elems.checked_mul(dtype.bitsize()).ok_or_else(overflow)?;
    if bits % 8 != 0 {
        return Err(format!("{elems} elements of {dtype:?} do not fill whole bytes"));
    }
    if bits / 8 != found {
        return Err(format!("{dtype:?} of shape {dims:?}: expected {} bytes, found {found}", bits / 8));
    }
    let offset = data_start.checked_add(begin as u64).ok_or_else(|| format!("offset {begin} overflows"))?;
    Ok(StoredTensor { dtype: weight_dtype(dtype), elems, dims, source: 0, offset, bytes: found, transposed: false })
}

/// Checks that the tensors, sorted by offset, fill the data without gaps or overlaps, and that nothing follows them.
fn check_extents(extents: &[(u64, u64, String)], data_bytes: u64) -> Result<(), String> {
    let mut filled = 0;
    let mut before = None;
    for (begin, end, name) in extents {
        if *end > data_bytes {
            return Err(format!(
                "tensor `{name}`: offsets [{begin}, {end}]: expected {data_bytes} at most, the data's length; \
                 is the file cut short?"
            ));
        }
        if *begin != filled {
            let kind = if *begin < filled { "overlaps" } else { "leaves a gap after" };
            let neighbour = before.map_or_else(|| "the header".to_owned(), |before| format!("`{before}`"));
            return Err(format!("tensor `{name}` {kind} {neighbour}: expected offset {filled}, found {begin}"));
        }
        (filled, before) = (*end, Some(name));
    }
    match data_bytes - filled {
        0 => Ok(()),
        extra => Err(format!("expected {filled} bytes of data, found {extra} more")),
    }
}

fn weight_dtype(dtype: Dtype) -> WeightDtype {
    use crate::tensor::Dtype as Element;
    WeightDtype::Element(match dtype {
        Dtype::BOOL => Element::Bool,
        Dtype::U8 => Element::U8,
        Dtype::U16 => Element::U16,
        Dtype::U32 => Element::U32,
        Dtype::U64 => Element::U64,
        Dtype::I8 => Element::I8,
        Dtype::I16 => Element::I16,
        Dtype::I32 => Element::I32,
        Dtype::I64 => Element::I64,
        Dtype::F16 => Element::F16,
        Dtype::BF16 => Element::Bf16,
        Dtype::F32 => Element::F32,
        Dtype::F64 => Element::F64,
        Dtype::C64 => return WeightDtype::Other("complex 64"),
        Dtype::F8_E5M2 => return WeightDtype::Other("f8 e5m2"),
        Dtype::F8_E4M3 => return WeightDtype::Other("f8 e4m3"),
        _ => return WeightDtype::Other("an 8-bit or smaller float"),
    })
}

/// The JSON of a header, in which only repetitions of names have been checked.
struct RawHeader {
    tensors: BTreeMap<String, TensorInfo>,
    metadata: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let (mut tensors, mut metadata) = (BTreeMap::new(), None);
                while let Some(name) = map.next_key::<String>()? {
                    let named = |e: A::Error| A::Error::custom(format_args!("`{name}`: {e}"));
                    if name == METADATA {
                        let value: Option<UniqueMap<String>> = map.next_value().map_err(named)?;
                        if metadata.replace(value.map_or_else(BTreeMap::new, |map| map.0)).is_some() {
                            return Err(A::Error::custom(format_args!("`{name}` is there twice")));
                        }
                        continue;
                    }
                    let info: TensorInfo = map.next_value().map_err(named)?;
                    insert_once(&mut tensors, name, info)?;
                }
                Ok(RawHeader { tensors, metadata: metadata.unwrap_or_default() })
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

const METADATA: &str = "__metadata__";

/// A JSON object in which no name is repeated.
struct UniqueMap<V>(BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapVisitor<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for MapVisitor<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueMap<V>, A::Error> {
                let mut values = BTreeMap::new();
                while let Some((name, value)) = map.next_entry()? {
                    insert_once(&mut values, name, value)?;
                }
                Ok(UniqueMap(values))
            }
        }
        deserializer.deserialize_map(MapVisitor(PhantomData))
    }
}

fn insert_once<V, E: serde::de::Error>(map: &mut BTreeMap<String, V>, name: String, value: V) -> Result<(), E> {
    if map.contains_key(&name) {
        return Err(E::custom(format_args!("`{name}` is there twice")));
    }
    map.insert(name, value);
    Ok(())
}
