//! Packs: rows of different lengths, end to end in one record of a batch.

use std::ops::Range;

use crate::error::Error;
use crate::ring::{Batch, Output, OutputPart, Ticket};
use crate::tensor::{Dtype, Element, Packing, RowPort, RowSpec};

/// A batch of a model of packed rows that is being filled: row after row, until there is no room for the next one.
///
/// ```no_run
/// use trefoil::{Engine, Pack, model::{Embedding, Model}};
/// # fn f(texts: &[Vec<i64>]) -> Result<(), trefoil::Error> {
/// let model = Model::open_encoder("all-MiniLM-L6-v2", &Embedding::new().sequence(256).packed(4096, 128))?;
/// let engine = Engine::builder(&model).build()?;
/// let mut pack = Pack::new(engine.acquire()?, model.packing().expect("packed rows"))?;
/// let mut texts = texts.iter();
/// while let Some(ids) = texts.next() {
///     if pack.push(&[("input_ids", ids)])?.is_none() {
///         break; // it is full: this text is the next one's first
///     }
/// }
/// let (ticket, rows) = pack.submit()?;
/// let output = ticket.wait()?;
/// for row in 0..rows.len() {
///     println!("{:?}", rows.port::<f32>(&output, row, "embedding")?);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Pack {
    batch: Batch,
    size: Packing,
    /// The token at which each row begins, and the end of the last row.
    starts: Vec<usize>,
}

/// Where the rows of a submitted [`Pack`] are, and so their results.
///
/// ```no_run
/// # fn f(pack: trefoil::Pack) -> Result<(), trefoil::Error> {
/// let (ticket, rows) = pack.submit()?;
/// let output = ticket.wait()?;
/// assert_eq!(rows.tokens(0).start, 0);
/// println!("{:?}", rows.port::<f32>(&output, 0, "embedding")?);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    size: Packing,
    starts: Vec<usize>,
}

/// The input that says where rows begin and end.
const STARTS: &str = "starts";
/// The output with a vector for each token.
const TOKENS: &str = "tokens";

impl Pack {
    /// Begins to fill a batch with one record of this size. All inputs are of i64: `starts` has one number more than
    /// there are rows, each other input has a number for each token.
    ///
    /// # Errors
    /// [`Error::Option`] if the batch has other records.
    pub fn new(mut batch: Batch, size: Packing) -> Result<Self, Error> {
        let spec = batch.spec();
        spec.port(STARTS)?;
        if let Some(of) = batch.packing().filter(|of| *of != size) {
            return Err(Error::option("size", size, format!("{of}, the size of the batch")));
        }
        if let Some(port) = spec.ports().iter().find(|port| !fits(port, size)) {
            let expected = format!("a batch of packed rows of the size {size}: i64, `{STARTS}` and one for each token");
            return Err(Error::option("batch", port, expected));
        }
        batch.row_mut(0).fill(0);
        Ok(Self { batch, size, starts: vec![0] })
    }

    /// Adds a row behind the others. `inputs` has the name of each input with a number for each of the row's tokens;
    /// inputs that are not named have zeros. Returns the number of the row, or `None` if there is no room for it; then
    /// it belongs in the next pack.
    ///
    /// # Errors
    /// [`Error::Option`] for a row without tokens or longer than the longest, for inputs of different lengths, and for
    /// an unknown input. The pack then stays as it was.
    pub fn push(&mut self, inputs: &[(&str, &[i64])]) -> Result<Option<usize>, Error> {
        let tokens = length(self.batch.spec(), self.size, inputs)?;
        let (row, first) = (self.len(), self.tokens());
        if row == self.size.rows || tokens > self.size.tokens - first {
            return Ok(None);
        }
        for (name, values) in inputs {
            self.batch.port_mut::<i64>(0, *name)?[first..first + tokens].copy_from_slice(values);
        }
        self.starts.push(first + tokens);
        Ok(Some(row))
    }

    /// Whether rows have an input of this name with a number for each token.
    pub fn has(&self, input: &str) -> bool {
        has(self.batch.spec(), input)
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Whether the pack has no row yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of tokens of all rows together.
    pub fn tokens(&self) -> usize {
        self.starts[self.len()]
    }

    /// Submits the rows, as [`Batch::submit`] does. Also returns the places of the rows.
    ///
    /// # Errors
    /// [`Error::Option`] if there is no row; those of [`Batch::submit`].
    pub fn submit(mut self) -> Result<(Ticket, Packed), Error> {
        if self.is_empty() {
            return Err(Error::option("rows", 0, format!("1 to {}, the rows of a pack", self.size.rows)));
        }
        let last = self.tokens();
        let all = self.starts.iter().copied().chain(std::iter::repeat(last)); // rows that are not there are empty
        let to = self.batch.port_mut::<i64>(0, STARTS)?;
        to.iter_mut().zip(all).for_each(|(to, start)| *to = start as i64);
        let ticket = self.batch.submit(1)?;
        Ok((ticket, Packed { size: self.size, starts: self.starts }))
    }
}

/// The number of tokens of a row.
///
/// # Errors
/// [`Error::Option`] for inputs that no row can have.
pub(super) fn length(spec: &RowSpec, size: Packing, inputs: &[(&str, &[i64])]) -> Result<usize, Error> {
    let longest = size.longest;
    let tokens = inputs.first().map_or(0, |(_, values)| values.len());
    for (name, values) in inputs {
        spec.port(*name)?;
        if inputs.iter().filter(|(other, _)| other == name).count() > 1 {
            return Err(Error::option("row", format!("`{name}` twice"), "each input once"));
        }
        if !has(spec, name) {
            return Err(Error::option("row", format!("`{name}`"), "inputs that have a number for each token"));
        }
        if values.len() != tokens {
            let found = format!("{} numbers for `{name}`", values.len());
            return Err(Error::option("row", found, format!("{tokens}, as for the row's first input")));
        }
    }
    match (1..=longest).contains(&tokens) {
        true => Ok(tokens),
        false => Err(Error::option("row", format!("{tokens} tokens"), format!("1 to {longest}, the longest row"))),
    }
}

fn has(spec: &RowSpec, input: &str) -> bool {
    input != STARTS && spec.port(input).is_ok()
}

/// Whether an input has the type and length that packed rows of this size need.
fn fits(port: &RowPort, Packing { tokens, rows, .. }: Packing) -> bool {
    port.dtype == Dtype::I64 && port.dims == [if &*port.name == STARTS { rows + 1 } else { tokens }]
}

impl Packed {
    /// The number of rows.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Whether there are no rows; a submitted pack has at least one.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The range of the row's tokens among all tokens of the pack.
    ///
    /// # Panics
    /// If `row` is not below [`Packed::len`].
    pub fn tokens(&self, row: usize) -> Range<usize> {
        assert!(row < self.len(), "row {row} of {}", self.len());
        self.starts[row]..self.starts[row + 1]
    }

    /// The elements of an output for a row: from the output `tokens` the vectors of the row's tokens, from any other
    /// output the row's own vector. For an engine of several models these are outputs of the first; see
    /// [`Packed::port_of`].
    ///
    /// # Errors
    /// [`Error::Option`] for an unknown output, one of another type, or one that is not of packed rows.
    ///
    /// # Panics
    /// If `row` is not below [`Packed::len`].
    pub fn port<'a, T: Element>(&self, output: &'a Output, row: usize, name: &str) -> Result<&'a [T], Error> {
        self.port_of(&output.part(0), row, name)
    }

    /// The elements of an output of one of an engine's models, which [`Output::part`] lends, for a row; otherwise as
    /// [`Packed::port`].
    ///
    /// # Errors
    /// Those of `port`.
    ///
    /// # Panics
    /// If `row` is not below the number of rows.
    pub fn port_of<'a, T: Element>(&self, part: &OutputPart<'a>, row: usize, name: &str) -> Result<&'a [T], Error> {
        let (elems, _) = self.elems(row, part.spec().port(name)?)?;
        Ok(&part.port::<T>(0, name)?[elems])
    }

    /// The bytes of an output for a row, and their dimensions.
    pub(super) fn bytes<'a>(
        &self,
        part: &OutputPart<'a>,
        row: usize,
        port: &RowPort,
    ) -> Result<(&'a [u8], Vec<usize>), Error> {
        let (Range { start, end }, dims) = self.elems(row, port)?;
        let size = port.dtype.bytes();
        Ok((&part.row(0)[port.range()][start * size..end * size], dims))
    }

    /// The range of an output's elements that belong to a row, and their dimensions.
    fn elems(&self, row: usize, port: &RowPort) -> Result<(Range<usize>, Vec<usize>), Error> {
        let (tokens, is_of_tokens) = (self.tokens(row), &*port.name == TOKENS);
        let (items, count) = if is_of_tokens { (tokens, self.size.tokens) } else { (row..row + 1, self.size.rows) };
        let Some((_, inner)) = port.dims.split_first().filter(|(first, _)| **first == count) else {
            return Err(Error::option("output", port, format!("one of packed rows of the size {}", self.size)));
        };
        let width: usize = inner.iter().product();
        let dims = if is_of_tokens { [&[items.len()], inner].concat() } else { inner.to_vec() };
        Ok((items.start * width..items.end * width, dims))
    }
}
