//! Input rows of an engine's ports, from files or random, and the results of its output ports.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use bytemuck::AnyBitPattern;
use half::{bf16, f16};
use trefoil::{Batch, Dtype, Engine, Output, RowPort, RowSpec, Size};

use crate::npy::{self, Array};
use crate::random::Random;
use crate::stop;

/// Input rows: a source of values for each port.
#[derive(Debug)]
pub struct Inputs {
    ports: Vec<(RowPort, Source)>,
    rows: usize,
}

#[derive(Debug)]
enum Source {
    /// The path of a file, and the values of all its rows, one behind the other.
    File(PathBuf, Vec<u8>),
    /// Random values, the same in each run.
    Random,
}

impl Inputs {
    /// Reads these files, each for its port; the other ports are random. Without a file there are `rows` rows.
    pub fn open(spec: &RowSpec, files: &[(String, PathBuf)], rows: usize) -> Result<Self> {
        let mut ports: Vec<(RowPort, Source)> =
            spec.ports().iter().map(|port| (port.clone(), Source::Random)).collect();
        let mut counted: Option<(usize, &Path)> = None;
        for (name, path) in files {
            spec.port(&name[..])?;
            let (port, source) = ports.iter_mut().find(|(port, _)| *port.name == **name).expect("it was looked for");
            ensure!(matches!(source, Source::Random), "--input names `{name}` twice: give each port one file");
            let (found, bytes) = rows_of(port, npy::read(path)?, path)?;
            match counted {
                Some((count, first)) if count != found => bail!(
                    "{} has {found} rows and {} has {count}: give all inputs the same number of rows",
                    path.display(),
                    first.display()
                ),
                _ => counted = Some((found, path)),
            }
            *source = Source::File(path.clone(), bytes);
        }
        Ok(Self { ports, rows: counted.map_or(rows, |(count, _)| count) })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Describes each port with its source of values.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.ports.iter().map(|(port, source)| match source {
            Source::File(path, _) => format!("{port} from {}", path.display()),
            Source::Random => format!("{port}, random"),
        })
    }

    /// Writes input row `row` to row `to` of a batch. Ports match by their names: those of the batch may have other
    /// dimensions with the same number of elements.
    pub fn fill(&self, batch: &mut Batch, to: usize, row: usize) -> Result<()> {
        let spec = batch.spec().clone();
        self.fill_row(&spec, batch.row_mut(to), row)
    }

    /// One row, as the bytes of a row of `spec`.
    pub fn row(&self, spec: &RowSpec, row: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; spec.row_bytes];
        self.fill_row(spec, &mut bytes, row)?;
        Ok(bytes)
    }

    fn fill_row(&self, spec: &RowSpec, to: &mut [u8], row: usize) -> Result<()> {
        for (index, (port, source)) in self.ports.iter().enumerate() {
            let (bytes, offset) = (port.bytes(), spec.port(&*port.name)?.offset);
            let to = &mut to[offset..][..bytes];
            match source {
                Source::File(_, all) => to.copy_from_slice(&all[row * bytes..][..bytes]),
                Source::Random => Random::new((index as u64) << 48 ^ row as u64).fill(to, port.dtype),
            }
        }
        Ok(())
    }
}

/// The number of rows that an array has for a port, and its elements.
fn rows_of(port: &RowPort, array: Array, path: &Path) -> Result<(usize, Vec<u8>)> {
    let Array { dtype, dims, bytes } = array;
    let rows = match &dims[..] {
        _ if dtype != port.dtype => None,
        dims if dims == port.dims => Some(1),
        [rows, dims @ ..] if dims == port.dims && *rows > 0 => Some(*rows),
        _ => None,
    };
    match rows {
        Some(rows) => Ok((rows, bytes)),
        None => bail!(
            "{} holds {dtype}{dims:?}: expected an array for the port {port}, or with the number of rows in front, [rows, ...]",
            path.display()
        ),
    }
}

/// Results: all rows of each port, one behind the other.
#[derive(Debug)]
pub struct Results {
    pub ports: Vec<(RowPort, Vec<u8>)>,
    pub rows: usize,
}

impl Results {
    /// Empty results for an engine's output ports.
    pub fn of(spec: &RowSpec) -> Self {
        Self { ports: spec.ports().iter().map(|port| (port.clone(), Vec::new())).collect(), rows: 0 }
    }

    /// Adds the rows of a batch.
    pub fn add(&mut self, output: &Output) {
        for row in (0..output.rows()).map(|row| output.row(row)) {
            self.ports.iter_mut().for_each(|(port, all)| all.extend_from_slice(&row[port.offset..][..port.bytes()]));
        }
        self.rows += output.rows();
    }
}

/// Sends all rows through an engine in overlapping batches of one size, and passes each batch's output on, in order. Fails
/// if a stop is requested.
pub fn stream(engine: &Engine, (size, inputs): &(Size, Inputs), mut on_output: impl FnMut(&Output)) -> Result<()> {
    let mut under_way = VecDeque::new();
    for first in (0..inputs.rows()).step_by(size.batch()) {
        stop::check()?;
        if under_way.len() > engine.slots() {
            under_way.pop_front().map_or(Ok(()), |oldest: trefoil::Ticket| oldest.wait().map(|out| on_output(&out)))?;
        }
        let rows = size.batch().min(inputs.rows() - first);
        let mut batch = engine.acquire_for(size)?;
        (0..rows).try_for_each(|row| inputs.fill(&mut batch, row, first + row))?;
        under_way.push_back(batch.submit(rows)?);
    }
    for ticket in under_way {
        on_output(&ticket.wait()?);
    }
    Ok(())
}

/// Elements as numbers.
pub fn numbers(dtype: Dtype, bytes: &[u8]) -> Box<dyn Iterator<Item = f64> + '_> {
    fn all<T: AnyBitPattern>(bytes: &[u8]) -> impl Iterator<Item = T> {
        bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned)
    }
    match dtype {
        Dtype::Bool | Dtype::U8 => Box::new(all::<u8>(bytes).map(f64::from)),
        Dtype::U16 => Box::new(all::<u16>(bytes).map(f64::from)),
        Dtype::U32 => Box::new(all::<u32>(bytes).map(f64::from)),
        Dtype::U64 => Box::new(all::<u64>(bytes).map(|number| number as f64)),
        Dtype::I8 => Box::new(all::<i8>(bytes).map(f64::from)),
        Dtype::I16 => Box::new(all::<i16>(bytes).map(f64::from)),
        Dtype::I32 => Box::new(all::<i32>(bytes).map(f64::from)),
        Dtype::I64 => Box::new(all::<i64>(bytes).map(|number| number as f64)),
        Dtype::F16 => Box::new(all::<f16>(bytes).map(f64::from)),
        Dtype::Bf16 => Box::new(all::<bf16>(bytes).map(f64::from)),
        Dtype::F32 => Box::new(all::<f32>(bytes).map(f64::from)),
        Dtype::F64 => Box::new(all::<f64>(bytes)),
    }
}

/// A number in at most nine characters for most values.
pub fn short(number: f64) -> String {
    match number.abs() {
        size if number.fract() == 0.0 && size < 1e8 => format!("{number:.0}"),
        size if (1e-3..1e5).contains(&size) => {
            let digits = (4.0 - size.log10().floor()).clamp(1.0, 6.0) as usize;
            format!("{number:.digits$}")
        }
        _ if number.is_finite() => format!("{number:.2e}"),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_a_row_or_several() {
        let spec = RowSpec::new([("x", Dtype::I16, vec![2, 1])]);
        let array = |dtype, dims: &[usize]| Array {
            dtype,
            dims: dims.to_vec(),
            bytes: vec![0; dims.iter().product::<usize>() * 2],
        };
        let rows = |array| rows_of(&spec.ports()[0], array, Path::new("x.npy")).map(|(rows, _)| rows);
        assert_eq!(rows(array(Dtype::I16, &[2, 1])).unwrap(), 1);
        assert_eq!(rows(array(Dtype::I16, &[5, 2, 1])).unwrap(), 5);
        for wrong in [array(Dtype::U16, &[2, 1]), array(Dtype::I16, &[2]), array(Dtype::I16, &[0, 2, 1])] {
            let said = rows(wrong).unwrap_err().to_string();
            assert!(said.contains("x.npy") && said.contains("`x` of i16[2,1]"), "{said}");
        }
    }

    #[test]
    fn numbers_are_short() {
        let said = [0.0, -12.0, 0.25, -99_999.5, 1.0 / 3.0, 2e-5, -1e12, f64::NAN, f64::NEG_INFINITY].map(short);
        assert_eq!(said, ["0", "-12", "0.25000", "-99999.5", "0.33333", "2.00e-5", "-1.00e12", "NaN", "-inf"]);
    }
}
