//! The ports of an engine's rows.

use std::ffi::c_char;
use std::sync::Arc;

use super::growing;
use super::handles::{shared, trefoil_engine};
use super::layout::{dtype_of, trefoil_port};
use super::pointers::{Out, text};
use super::status::{Answer, guard, trefoil_status};
use crate::engine::Engine;
use crate::error::Error;
use crate::tensor::{RowPort, RowSpec};

/// The port of this number; an error if its elements are not of the type `dtype`.
pub(super) fn typed(spec: &RowSpec, port: usize, dtype: u32) -> Answer<&RowPort> {
    let port = spec.port(port)?;
    of_dtype(port, dtype)?;
    Ok(port)
}

/// An error if the port's elements are not of the type `dtype`.
pub(super) fn of_dtype(port: &RowPort, dtype: u32) -> Answer {
    let dtype = dtype_of(dtype)?;
    if port.dtype != dtype {
        return Err(Error::option("port", port, format!("elements of {dtype}")).into());
    }
    Ok(())
}

/// The number of ports in the rows that producers write.
///
/// # Safety
/// `count` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_engine_input_ports(engine: trefoil_engine, count: *mut usize) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(count, "count")? };
        to.set(shared::<Arc<Engine>>(engine)?.input().ports().len());
        Ok(())
    })
}

/// The number of ports in the rows that consumers read.
///
/// # Safety
/// `count` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_engine_output_ports(engine: trefoil_engine, count: *mut usize) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let to = unsafe { Out::new(count, "count")? };
        to.set(shared::<Arc<Engine>>(engine)?.output().ports().len());
        Ok(())
    })
}

/// A port of the rows that producers write, by its number from 0 on.
///
/// # Safety
/// `port` is null, or has its `size` set and so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_engine_input_port(
    engine: trefoil_engine,
    index: usize,
    port: *mut trefoil_port,
) -> trefoil_status {
    guard(|| {
        let engine: Arc<Engine> = shared(engine)?;
        let found = engine.input().port(index)?;
        // SAFETY: by the caller.
        unsafe { growing::write(port, "port", |size| Ok(trefoil_port::new(size, found))) }
    })
}

/// A port of the rows that consumers read, by its number from 0 on.
///
/// # Safety
/// `port` is null, or has its `size` set and so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_engine_output_port(
    engine: trefoil_engine,
    index: usize,
    port: *mut trefoil_port,
) -> trefoil_status {
    guard(|| {
        let engine: Arc<Engine> = shared(engine)?;
        let found = engine.output().port(index)?;
        // SAFETY: by the caller.
        unsafe { growing::write(port, "port", |size| Ok(trefoil_port::new(size, found))) }
    })
}

/// The number of the port of this name, of the rows that producers write.
///
/// # Safety
/// `name` is a C string or null, `index` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_engine_find_input(
    engine: trefoil_engine,
    name: *const c_char,
    index: *mut usize,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let (name, to) = unsafe { (text(name, "name")?, Out::new(index, "index")?) };
        to.set(number(shared::<Arc<Engine>>(engine)?.input(), name)?);
        Ok(())
    })
}

/// The number of the port of this name, of the rows that consumers read.
///
/// # Safety
/// `name` is a C string or null, `index` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_engine_find_output(
    engine: trefoil_engine,
    name: *const c_char,
    index: *mut usize,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let (name, to) = unsafe { (text(name, "name")?, Out::new(index, "index")?) };
        to.set(number(shared::<Arc<Engine>>(engine)?.output(), name)?);
        Ok(())
    })
}

fn number(spec: &RowSpec, name: &str) -> Answer<usize> {
    let found = spec.port(name)?;
    Ok(spec.ports().iter().take_while(|port| port.name != found.name).count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Dtype;

    #[test]
    fn a_port_is_described_and_what_does_not_fit_is_told() {
        let long = "é".repeat(100);
        let dims = vec![1, 2, 1, 2, 1, 2, 1, 2, 3];
        let spec = RowSpec::new([("x", Dtype::Bool, vec![]), (&long, Dtype::Bf16, dims)]);
        let port = trefoil_port::new(8, &spec.ports()[1]);
        let name: Vec<u8> = port.name.iter().map(|&c| c as u8).collect();
        assert_eq!((&name[..126], &name[126..], port.name_bytes), (&long.as_bytes()[..126], &[0, 0][..], 200));
        assert_eq!((port.rank, port.dims, port.elements), (9, [1, 2, 1, 2, 1, 2, 1, 2], 48));
        assert_eq!((port.dtype, port.bytes, port.offset), (11, 96, 16));
        let number_of = trefoil_port::new(8, &spec.ports()[0]);
        assert_eq!((number_of.rank, number_of.dims, number_of.elements, number_of.bytes), (0, [0; 8], 1, 1));
        assert_eq!(number(&spec, &long).unwrap(), 1);
        assert!(number(&spec, "y").unwrap_err().message.contains("`x`"));
    }

    #[test]
    fn elements_are_of_the_type_that_is_said() {
        let spec = RowSpec::new([("x", Dtype::I64, vec![3])]);
        assert_eq!(typed(&spec, 0, 10).unwrap().bytes(), 24);
        for (port, dtype, message) in
            [(0, 2, "expected elements of f32"), (0, 13, "expected a trefoil_dtype"), (1, 10, "one of `x`")]
        {
            let failure = typed(&spec, port, dtype).unwrap_err();
            assert_eq!(failure.status, trefoil_status::InvalidArgument);
            assert!(failure.message.contains(message), "{}", failure.message);
        }
    }
}
