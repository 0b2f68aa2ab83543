//! The packer: forms packs of single rows of any length that many threads submit.

mod queue;

use std::collections::VecDeque;
use std::sync::{Arc, mpsc};

use self::queue::Queue;
use super::Engine;
use super::pack::{Pack, Packed, length};
use crate::error::Error;
use crate::graph::{Tensor, ValueType};
use crate::ring::{Core, Output, OutputPart, Ticket};
use crate::sync::{Condvar, Mutex, lock, spawn, wait};
use crate::tensor::{Element, Packing, RowPort};

/// Forms packs of rows that threads submit one by one, each of any length up to the longest. Share it by reference or in an
/// `Arc`.
///
/// A pack is filled by tokens, in the order in which rows come. While fewer than two packs are under way, rows leave at
/// once; otherwise they gather until a pack is full. A row's answer does not depend on the other rows of its pack.
/// Between sizes of an engine it differs only by rounding.
///
/// Rows that were submitted are still answered after the packer is dropped.
///
/// ```no_run
/// use trefoil::{Engine, Packer, model::{Embedding, Model}};
/// # fn f(texts: &[Vec<i64>]) -> Result<(), trefoil::Error> {
/// let model = Model::open_encoder("all-MiniLM-L6-v2", &Embedding::new().sequence(256).packed(4096, 128))?;
/// let engine = Engine::builder(&model).build()?;
/// let packer = Packer::new(&engine)?;
/// let embed = |ids: &[i64]| -> Result<Vec<f32>, trefoil::Error> {
///     Ok(packer.submit(&[("input_ids", ids)])?.wait()?.port("embedding")?.to_vec())
/// };
/// std::thread::scope(|scope| {
///     for ids in texts {
///         scope.spawn(move || embed(ids));
///     }
/// });
/// # Ok(()) }
/// ```
pub struct Packer {
    shared: Arc<Shared>,
}

/// The claim on the answer of one row.
///
/// ```no_run
/// # fn f(packer: &trefoil::Packer, ids: &[i64]) -> Result<(), trefoil::Error> {
/// let ticket = packer.submit(&[("input_ids", ids)])?;
/// println!("{:?}", ticket.wait()?.port::<f32>("embedding")?);
/// # Ok(()) }
/// ```
#[must_use = "a dropped ticket abandons its answer"]
pub struct PackedTicket(mpsc::Receiver<Result<PackedRow, Error>>);

/// The answer of one row: a copy of its part of each output of each model.
///
/// ```no_run
/// # fn f(row: trefoil::PackedRow) -> Result<(), trefoil::Error> {
/// let vector: &[f32] = row.port("embedding")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct PackedRow(Vec<Outputs>);

/// The outputs of one model for a row, by name.
type Outputs = Vec<(Arc<str>, Tensor)>;

/// The state that the threads share.
struct Shared {
    core: Arc<Core>,
    /// The sizes of packs with the numbers of their buckets, ascending by tokens.
    sizes: Vec<(Packing, usize)>,
    state: Mutex<PackerState>,
    /// Signalled when there is room for rows.
    room: Condvar,
    /// Signalled when a pack is under way, or the packer is dropped.
    sent: Condvar,
}

struct PackerState {
    queue: Queue<Waiting>,
    /// Submitted packs whose answers are not handed out yet, in the order of submission.
    under_way: VecDeque<Sent>,
    is_closed: bool,
}

/// A row that waits to leave in a pack.
struct Waiting {
    inputs: Vec<(String, Vec<i64>)>,
    answer: Answer,
}

type Answer = mpsc::SyncSender<Result<PackedRow, Error>>;

/// A pack that was submitted, and the senders of its rows' answers.
struct Sent {
    ticket: Ticket,
    packed: Packed,
    answers: Vec<Answer>,
}

impl Packer {
    /// Makes a packer for an engine of packed rows. If the engine has several sizes, rows gather for the largest, and a
    /// pack takes the smallest size that holds its rows.
    ///
    /// # Errors
    /// [`Error::Option`] for an engine of other rows; [`Error::Thread`] if the packer's thread cannot be started.
    pub fn new(engine: &Engine) -> Result<Self, Error> {
        let core = engine.core.clone();
        let mut sizes = Vec::new();
        for size in engine.sizes() {
            sizes.extend(Packing::of(size.dims()).zip(Some(core.spec().buckets.holding(&size)?)));
        }
        sizes.sort_by_key(|(size, _)| size.tokens);
        let Some(&(largest, _)) = sizes.last() else {
            return Err(Error::option("engine", engine.input(), "one of packed rows, as `Embedding::packed` asks for"));
        };
        let queue = Queue::new(largest, engine.slots());
        let state = PackerState { queue, under_way: VecDeque::new(), is_closed: false };
        let (room, sent) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { core, sizes, state: Mutex::new(state), room, sent });
        let answering = shared.clone();
        spawn("trefoil-pack", move || answering.answer_all())?;
        Ok(Self { shared })
    }

    /// Submits a row. `inputs` has the name of each input with a number for each of the row's tokens; inputs that are
    /// not named have zeros. While rows for several packs wait, the call waits for room. It also acquires batches for
    /// the packs that are due, and submits them.
    ///
    /// # Errors
    /// [`Error::Option`] as for [`Pack::push`]; [`Error::Closed`] if the packer's thread has ended. The row's ticket
    /// returns the errors of the pack that the row leaves in.
    pub fn submit(&self, inputs: &[(&str, &[i64])]) -> Result<PackedTicket, Error> {
        let (largest, bucket) = self.shared.sizes[self.shared.sizes.len() - 1];
        let tokens = length(&self.shared.core.bucket(bucket).input, largest, inputs)?;
        let inputs = inputs.iter().map(|(name, values)| ((*name).to_owned(), values.to_vec())).collect();
        let (answer, ticket) = mpsc::sync_channel(1);
        let mut state = lock(&self.shared.state);
        while !state.queue.has_room(tokens) && !state.is_closed {
            state = wait(&self.shared.room, state);
        }
        if state.is_closed {
            return Err(Error::Closed);
        }
        state.queue.push(tokens, Waiting { inputs, answer });
        drop(state);
        self.shared.send();
        Ok(PackedTicket(ticket))
    }
}

impl Drop for Packer {
    fn drop(&mut self) {
        lock(&self.shared.state).is_closed = true;
        self.shared.sent.notify_all();
    }
}

impl Shared {
    /// Submits the packs that are due.
    fn send(&self) {
        while let Some(rows) = { lock(&self.state).queue.take() } {
            let (inputs, answers): (Vec<_>, Vec<_>) = rows.into_iter().map(|row| (row.inputs, row.answer)).unzip();
            self.room.notify_all();
            let under_way = UnderWay(self);
            match self.submit(&inputs) {
                Ok((ticket, packed)) => {
                    std::mem::forget(under_way);
                    lock(&self.state).under_way.push_back(Sent { ticket, packed, answers });
                }
                Err(error) => {
                    drop(under_way);
                    answers.iter().for_each(|answer| tell(answer, Err(error.clone())));
                }
            }
            self.sent.notify_all();
        }
    }

    fn submit(&self, rows: &[Vec<(String, Vec<i64>)>]) -> Result<(Ticket, Packed), Error> {
        let (size, bucket) = self.size_for(rows);
        let mut pack = Pack::new(self.core.acquire(self.core.spec().acquire_limit)?.in_bucket(bucket), size)?;
        for row in rows {
            let inputs: Vec<(&str, &[i64])> = row.iter().map(|(name, values)| (&**name, &**values)).collect();
            pack.push(&inputs)?.expect("a size that holds the rows");
        }
        pack.submit()
    }

    /// The smallest size that holds these rows; the largest one always does.
    fn size_for(&self, rows: &[Vec<(String, Vec<i64>)>]) -> (Packing, usize) {
        let lengths = || rows.iter().map(|row| row[0].1.len());
        let (tokens, longest): (usize, _) = (lengths().sum(), lengths().max().unwrap_or(0));
        let holds = |size: &Packing| size.tokens >= tokens && size.rows >= rows.len() && size.longest >= longest;
        let found = self.sizes.iter().find(|(size, _)| holds(size));
        *found.expect("the queue gives what the largest size holds")
    }

    /// Hands answers out until the packer is dropped and all its rows are answered.
    fn answer_all(&self) {
        let _ended = Ended(self);
        while let Some(Sent { ticket, packed, answers }) = self.next() {
            let copies = copies(ticket.wait(), &packed); // which frees the output for the next pack
            lock(&self.state).queue.done();
            answers.iter().zip(copies).for_each(|(answer, copy)| tell(answer, copy));
            self.send();
        }
    }

    /// Waits for the pack that was submitted first; `None` if the packer is closed and no row is left.
    fn next(&self) -> Option<Sent> {
        let mut state = lock(&self.state);
        loop {
            match state.under_way.pop_front() {
                None if state.is_closed && state.queue.is_empty() => return None,
                None => state = wait(&self.sent, state),
                sent => return sent,
            }
        }
    }
}

/// A pack that left the queue and has no ticket yet. If the submission fails or panics, the drop tells the queue that
/// the pack is done.
struct UnderWay<'s>(&'s Shared);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).queue.done();
    }
}

/// Its drop at the end of the packer's thread, also after a panic, makes sure that no thread waits for an answer.
struct Ended<'s>(&'s Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.is_closed = true;
        state.queue.clear();
        state.under_way.clear();
        drop(state);
        self.0.room.notify_all();
    }
}

/// The answer for each row of a pack.
fn copies(output: Result<Output, Error>, packed: &Packed) -> Vec<Result<PackedRow, Error>> {
    let copy = |row| match &output {
        Ok(output) => PackedRow::of(output, packed, row),
        Err(error) => Err(error.clone()),
    };
    (0..packed.len()).map(copy).collect()
}

/// Sends a row its answer; the row's ticket may have been dropped.
fn tell(answer: &Answer, result: Result<PackedRow, Error>) {
    drop(answer.try_send(result));
}

impl PackedTicket {
    /// Waits for the answer.
    ///
    /// # Errors
    /// Those of [`Engine::acquire`] and of [`Ticket::wait`], for the pack that the row was in.
    pub fn wait(self) -> Result<PackedRow, Error> {
        self.0.recv().unwrap_or(Err(Error::Closed))
    }
}

impl PackedRow {
    fn of(output: &Output, packed: &Packed, row: usize) -> Result<Self, Error> {
        let copied = |part: OutputPart<'_>| -> Result<Outputs, Error> {
            let copied = |port: &RowPort| {
                let (bytes, dims) = packed.bytes(&part, row, port)?;
                Ok((port.name.clone(), Tensor::from_bytes(ValueType::new(port.dtype, &dims), bytes)))
            };
            part.spec().ports().iter().map(copied).collect()
        };
        (0..output.parts()).map(|index| copied(output.part(index))).collect::<Result<_, Error>>().map(Self)
    }

    /// The number of models that gave outputs: one, or for an engine of several models as many as [`Output::parts`] says.
    pub fn parts(&self) -> usize {
        self.0.len()
    }

    /// The elements of an output for the row: from the output `tokens` the vectors of the row's tokens, from any other
    /// output the row's own vector. For an engine of several models these are outputs of the first; see
    /// [`PackedRow::port_of`].
    ///
    /// # Errors
    /// [`Error::Option`] for an unknown output, or one of another type.
    pub fn port<T: Element>(&self, name: &str) -> Result<&[T], Error> {
        self.port_of(0, name)
    }

    /// The elements of an output of one of an engine's models. `part` is the model's number in the order in which the
    /// builder named the models with outputs.
    ///
    /// # Errors
    /// [`Error::Option`] for an unknown output, or one of another type.
    ///
    /// # Panics
    /// If `part` is not below [`PackedRow::parts`].
    pub fn port_of<T: Element>(&self, part: usize, name: &str) -> Result<&[T], Error> {
        let outputs = &self.0[part];
        let known = || outputs.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let found = outputs.iter().find(|(other, _)| **other == *name);
        let (_, value) =
            found.ok_or_else(|| Error::option("port", format!("`{name}`"), format!("one of {}", known())))?;
        let of = value.value_type();
        match T::DTYPES.contains(&of.dtype) {
            true => Ok(value.elems()),
            false => Err(Error::option("port", format!("`{name}` of {of}"), "elements of that type")),
        }
    }
}
