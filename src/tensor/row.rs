//! Rows: the input of one request, or its result.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use super::{Dtype, Element, Shape};
use crate::error::Error;

/// Rows of page-locked and device input and output buffers start at multiples of this many bytes.
///
/// ```
/// use trefoil::{Dtype, ROW_ALIGN, RowSpec};
/// let logits = RowSpec::new([("logits", Dtype::F32, vec![1000])]);
/// assert_eq!(logits.row_pitch, 4000_usize.next_multiple_of(ROW_ALIGN));
/// ```
pub const ROW_ALIGN: usize = 256;

/// Ports start at multiples of this many bytes of their row.
const PORT_ALIGN: usize = 16;

/// The layout of a row: one or several ports, one behind the other. A port is a dense value with a name. Cheap to
/// clone.
///
/// ```
/// use trefoil::{Dtype, RowSpec};
/// let text = RowSpec::new([("ids", Dtype::I64, vec![7]), ("mask", Dtype::Bool, vec![7])]);
/// assert_eq!((text.row_bytes, text.row_pitch), (64 + 7, 256));
/// let mask = text.port("mask")?;
/// assert_eq!((mask.offset, mask.bytes(), mask.to_string()), (64, 7, "`mask` of bool[7]".to_string()));
/// assert!(text.port("segments").unwrap_err().to_string().contains("`ids`"));
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSpec {
    ports: Arc<[RowPort]>,
    /// The numbers of the ports in the order of their names.
    by_name: Arc<[usize]>,
    /// Bytes of one row, from its first port to the end of its last.
    pub row_bytes: usize,
    /// The distance between the beginnings of two neighbouring rows, in bytes: `row_bytes` rounded up to [`ROW_ALIGN`].
    pub row_pitch: usize,
}

/// A port: a value in a row.
///
/// ```
/// use trefoil::{Dtype, RowSpec, Shape};
/// let rows = RowSpec::image("image", Dtype::U8, Shape::new(28, 28, 1));
/// let image = &rows.ports()[0];
/// assert_eq!((&image.dims[..], image.elems(), image.bytes()), (&[28, 28, 1][..], 784, 784));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowPort {
    /// The port's name, which no other port of the row has.
    pub name: Arc<str>,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Elements along each axis, the last one innermost; empty for a single number. The batch is not among these
    /// dimensions.
    pub dims: Vec<usize>,
    /// The offset of the port in a row, in bytes.
    pub offset: usize,
    /// How a value that is shorter along one axis is filled up, if [`Model::padded`](crate::model::Model::padded) has
    /// declared that.
    pub padding: Option<Padding>,
}

/// The elements that fill up a port behind a value that is shorter along one axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Padding {
    /// The axis.
    pub axis: usize,
    /// The bytes of one element.
    pub elem: Arc<[u8]>,
}

/// A key that finds a port in a row: its name, or its number in the order of the row.
pub trait PortKey {
    /// The port of a row.
    ///
    /// # Errors
    /// [`Error::Option`] if the row has no such port, with those that it has.
    fn find<'a>(&self, spec: &'a RowSpec) -> Result<&'a RowPort, Error>;
}

impl PortKey for usize {
    fn find<'a>(&self, spec: &'a RowSpec) -> Result<&'a RowPort, Error> {
        spec.ports.get(*self).ok_or_else(|| spec.no_port(self.to_string()))
    }
}

impl PortKey for &str {
    fn find<'a>(&self, spec: &'a RowSpec) -> Result<&'a RowPort, Error> {
        let at = spec.by_name.binary_search_by_key(self, |&number| &*spec.ports[number].name);
        at.map(|at| &spec.ports[spec.by_name[at]]).map_err(|_| spec.no_port(format!("`{self}`")))
    }
}

impl RowSpec {
    /// Rows with these ports, in order: names, types of elements, dimensions.
    ///
    /// # Panics
    /// If two have the same name, or a row would have more bytes than an address can tell.
    pub fn new<N: Into<Arc<str>>>(ports: impl IntoIterator<Item = (N, Dtype, Vec<usize>)>) -> Self {
        Self::checked(ports).expect("a row that memory can hold")
    }

    /// Rows with these ports, in order; `None` if a row would have more bytes than an address can tell.
    pub(crate) fn checked<N: Into<Arc<str>>>(ports: impl IntoIterator<Item = (N, Dtype, Vec<usize>)>) -> Option<Self> {
        let mut end = 0_usize;
        let mut placed: Vec<RowPort> = Vec::new();
        let mut names = HashSet::new();
        for (name, dtype, dims) in ports {
            let offset = end.checked_next_multiple_of(PORT_ALIGN)?;
            let port = RowPort { name: name.into(), dtype, dims, offset, padding: None };
            assert!(names.insert(port.name.clone()), "two ports called `{}`", port.name);
            end = port.offset.checked_add(port.checked_bytes()?)?;
            placed.push(port);
        }
        let row_pitch = end.checked_next_multiple_of(ROW_ALIGN).filter(|&pitch| pitch <= isize::MAX as usize)?;
        let mut by_name: Vec<usize> = (0..placed.len()).collect();
        by_name.sort_unstable_by_key(|&number| &placed[number].name);
        Some(Self { ports: placed.into(), by_name: by_name.into(), row_bytes: end, row_pitch })
    }

    /// Rows of one image, channels innermost, or of one vector.
    pub fn image(name: &str, dtype: Dtype, shape: Shape) -> Self {
        let dims = match shape {
            Shape { height: 1, width: 1, channels } => vec![channels],
            Shape { height, width, channels } => vec![height, width, channels],
        };
        Self::new([(name, dtype, dims)])
    }

    /// The ports of a row, in order.
    pub fn ports(&self) -> &[RowPort] {
        &self.ports
    }

    /// The port of this name or number.
    ///
    /// # Errors
    /// [`Error::Option`] if there is no such port, with a list of the ports.
    pub fn port(&self, key: impl PortKey) -> Result<&RowPort, Error> {
        key.find(self)
    }

    /// The rows with padding declared for some ports, given by number.
    pub(crate) fn padded(&self, padding: &[(usize, Padding)]) -> Self {
        let mut ports = self.ports.to_vec();
        padding.iter().for_each(|(port, padding)| ports[*port].padding = Some(padding.clone()));
        Self { ports: ports.into(), ..self.clone() }
    }

    /// Whether rows of the other spec have the same values in the same places, whatever their names.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let place = |port: &RowPort| (port.dtype, port.dims.clone(), port.offset);
        self.ports.iter().map(place).eq(other.ports.iter().map(place))
    }

    /// An error if the bytes are not one row of this spec.
    pub(crate) fn check(&self, row: &[u8]) -> Result<(), Error> {
        match row.len() == self.row_bytes {
            true => Ok(()),
            false => {
                Err(Error::option("row", format!("{} bytes", row.len()), format!("{} bytes: {self}", self.row_bytes)))
            }
        }
    }

    fn no_port(&self, found: String) -> Error {
        let known: Vec<String> = self.ports.iter().map(|port| format!("`{}`", port.name)).collect();
        Error::option("port", found, format!("one of {}, or its number from 0 on", known.join(", ")))
    }
}

impl fmt::Display for RowSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports: Vec<String> = self.ports.iter().map(RowPort::to_string).collect();
        f.write_str(&ports.join(", "))
    }
}

impl RowPort {
    /// Elements.
    pub fn elems(&self) -> usize {
        self.dims.iter().product()
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.elems() * self.dtype.bytes()
    }

    /// The range of the port's bytes in a row.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.bytes()
    }

    /// The port's elements in a row.
    pub(crate) fn elems_of<'a, T: Element>(&self, row: &'a [u8]) -> Result<&'a [T], Error> {
        self.check::<T>().map(|()| bytemuck::cast_slice(&row[self.range()]))
    }

    /// The port's elements in a row, to be written.
    pub(crate) fn elems_of_mut<'a, T: Element>(&self, row: &'a mut [u8]) -> Result<&'a mut [T], Error> {
        self.check::<T>().map(|()| bytemuck::cast_slice_mut(&mut row[self.range()]))
    }

    /// Writes the port's elements into a row. Fewer elements are a value that is shorter along the axis that may be
    /// padded; the padding follows them.
    ///
    /// # Errors
    /// [`Error::Option`] for elements of another type, or a number of elements that fits no such value.
    pub(crate) fn write<T: Element>(&self, row: &mut [u8], elems: &[T]) -> Result<(), Error> {
        self.check::<T>()?;
        self.write_bytes(row, bytemuck::cast_slice(elems))
    }

    /// Writes the port's elements into a row, given as bytes.
    pub(crate) fn write_bytes(&self, row: &mut [u8], bytes: &[u8]) -> Result<(), Error> {
        let to = &mut row[self.range()];
        if bytes.len() == to.len() {
            to.copy_from_slice(bytes);
            return Ok(());
        }
        let Some((Padding { elem, .. }, [outer, given, all])) = self.padding.as_ref().zip(self.shorter(bytes.len()))
        else {
            return Err(self.no_such_length(bytes.len()));
        };
        for index in 0..outer {
            let (value, rest) = to[index * all..][..all].split_at_mut(given);
            value.copy_from_slice(&bytes[index * given..][..given]);
            rest.chunks_exact_mut(elem.len()).for_each(|to| to.copy_from_slice(elem));
        }
        Ok(())
    }

    /// The layout of a shorter value of `bytes` bytes in the port: the number of pieces, the bytes of a piece, and the
    /// distance of pieces; `None` if no value has this many bytes.
    fn shorter(&self, bytes: usize) -> Option<[usize; 3]> {
        let axis = self.padding.as_ref()?.axis;
        let outer: usize = self.dims[..axis].iter().product();
        let inner: usize = self.dims[axis + 1..].iter().product::<usize>() * self.dtype.bytes();
        let is_whole = outer * inner > 0 && bytes.is_multiple_of(outer * inner) && bytes < self.bytes();
        is_whole.then(|| [outer, bytes / outer, self.dims[axis] * inner])
    }

    fn no_such_length(&self, bytes: usize) -> Error {
        let expected = match &self.padding {
            None => format!("{}", self.elems()),
            Some(Padding { axis, .. }) => format!("at most {}, and whole slices along axis {axis}", self.elems()),
        };
        Error::option("port", format!("{} elements for {self}", bytes / self.dtype.bytes()), expected)
    }

    /// An error if the port has elements of another type.
    pub(crate) fn check<T: Element>(&self) -> Result<(), Error> {
        if T::DTYPES.contains(&self.dtype) {
            return Ok(());
        }
        let types: Vec<String> = T::DTYPES.iter().map(Dtype::to_string).collect();
        Err(Error::option("port", self, format!("elements of {}", types.join(" or "))))
    }

    fn checked_bytes(&self) -> Option<usize> {
        let all = self.dims.iter().try_fold(self.dtype.bytes(), |bytes, &dim| bytes.checked_mul(dim));
        all.filter(|&bytes| bytes <= isize::MAX as usize)
    }
}

impl fmt::Display for RowPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(usize::to_string).collect();
        write!(f, "`{}` of {}[{}]", self.name, self.dtype, dims.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_many_ports_is_found_by_its_name() {
        let name = |number: usize| format!("port {}", number * 7919 % 20_000);
        let spec = RowSpec::new((0..20_000).map(|number| (name(number), Dtype::U8, vec![3])));
        for number in 0..20_000 {
            assert_eq!(spec.port(&name(number)[..]).unwrap(), &spec.ports()[number]);
        }
        assert!(spec.port("port 20000").unwrap_err().to_string().starts_with("port is `port 20000`: expected one of"));
    }

    #[test]
    #[should_panic = "two ports called `x`"]
    fn two_ports_have_different_names() {
        RowSpec::new([("x", Dtype::U8, vec![1]), ("y", Dtype::U8, vec![1]), ("x", Dtype::U8, vec![1])]);
    }

    #[test]
    fn a_shorter_value_is_padded_along_its_axis() {
        let elem: Arc<[u8]> = 7_u16.to_le_bytes().into();
        let spec = RowSpec::new([("x", Dtype::U8, vec![1]), ("y", Dtype::U16, vec![2, 3, 2])]);
        let written = |axis, elems: &[u16]| {
            let padded = spec.padded(&[(1, Padding { axis, elem: elem.clone() })]);
            let mut row = vec![0xff; spec.row_pitch];
            padded.ports()[1].write(&mut row, elems).map(|()| {
                assert!(row[..16].iter().chain(&row[40..]).all(|&byte| byte == 0xff), "beyond the port");
                spec.ports()[1].elems_of::<u16>(&row).unwrap().to_vec()
            })
        };
        assert_eq!(written(1, &[1, 2, 3, 4]).unwrap(), [1, 2, 7, 7, 7, 7, 3, 4, 7, 7, 7, 7]);
        assert_eq!(written(0, &[1, 2, 3, 4, 5, 6]).unwrap(), [1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7, 7]);
        assert_eq!(written(2, &[1, 2, 3, 4, 5, 6]).unwrap(), [1, 7, 2, 7, 3, 7, 4, 7, 5, 7, 6, 7]);
        assert_eq!(written(1, &[]).unwrap(), [7; 12]);
        let all: Vec<u16> = (0..12).collect();
        assert_eq!(written(1, &all).unwrap(), all);
        for wrong in [&[1_u16, 2, 3][..], &[0; 13], &[0; 16]] {
            let error = written(1, wrong).unwrap_err().to_string();
            assert!(error.contains("`y` of u16[2,3,2]") && error.contains("along axis 1"), "{error}");
        }
    }

    #[test]
    fn a_value_without_padding_has_all_its_elements() {
        let spec = RowSpec::new([("x", Dtype::F32, vec![3])]);
        let mut row = vec![0; spec.row_pitch];
        let write = |row: &mut [u8], elems: &[f32]| spec.ports()[0].write(row, elems);
        write(&mut row, &[1.0, 2.0, 3.0]).unwrap();
        assert_eq!(spec.ports()[0].elems_of::<f32>(&row).unwrap(), [1.0, 2.0, 3.0]);
        assert_eq!(
            write(&mut row, &[1.0]).unwrap_err().to_string(),
            "port is 1 elements for `x` of f32[3]: expected 3"
        );
        assert!(spec.ports()[0].write(&mut row, &[0_u8; 12]).is_err());
    }
}
