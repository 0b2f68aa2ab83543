//! One thread: its registers, its calls, and the instructions that it runs by itself.

use super::space::within;
use super::{Kind, Problem, Shared};
use crate::ptx::program::{Atomic, Call, Carry, Holder, LaneMask, Op, POISON, Pass, Place, Program, Slot, Special};
use crate::ptx::types::Space;

/// The most instructions of a thread: a longer run counts as endless.
const MOST_STEPS: u64 = 1 << 28;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    Runs,
    /// The thread waits at this barrier instruction.
    AtBarrier(usize),
    /// The thread waits at this instruction of its warp.
    AtWarp(usize),
    #[default]
    Ended,
}

#[derive(Default)]
pub struct Thread {
    pub state: State,
    /// The thread's number in the block, and its index along each axis.
    pub number: u32,
    pub place: [u32; 3],
    /// The next instruction.
    next: usize,
    calls: Vec<Frame>,
    slots: Vec<u64>,
    /// The first slot of the running function.
    base: usize,
    params: Vec<u8>,
    locals: Vec<u8>,
    carry: u64,
    steps: u64,
}

/// The caller's state during a call: where its slots, parameters and local memory begin.
#[derive(Clone, Copy)]
struct Frame {
    slots: usize,
    params: usize,
    locals: usize,
    /// The instruction at which the caller goes on.
    back: usize,
}

impl Thread {
    /// Begins a function with these parameters.
    pub fn start(&mut self, program: &Program, function: usize, arguments: &[u8], number: u32, place: [u32; 3]) {
        self.slots.clear();
        self.params.clear();
        self.locals.clear();
        self.calls.clear();
        (self.state, self.number, self.place) = (State::Runs, number, place);
        (self.carry, self.steps) = (POISON & 1, 0);
        self.enter(program, function, 0);
        self.params[..arguments.len()].copy_from_slice(arguments);
    }

    /// Runs the thread to its end, or to where it waits for others.
    pub fn run(&mut self, shared: &mut Shared<'_>) -> Result<(), Problem> {
        while self.state == State::Runs {
            let op = self.next;
            self.next += 1;
            self.steps += 1;
            let done = if self.steps > MOST_STEPS {
                Err((Kind::Endless, "a thread without end".into()))
            } else {
                self.step(op, shared)
            };
            done.map_err(|(kind, what)| Problem { kind, what, op, thread: self.place })?;
        }
        Ok(())
    }

    fn step(&mut self, op: usize, shared: &mut Shared<'_>) -> Result<(), (Kind, String)> {
        let program = shared.program;
        match &program.code[op] {
            Op::Compute { function, to, of } => {
                let [a, b, c, d] = of.map(|slot| self.get(slot));
                self.set(*to, function(a, b, c, d));
            }
            Op::Load { place, bytes, signed, count, to } => {
                let start = self.access(shared, place, *bytes, *count, "a load")?;
                for (lane, slot) in to[..usize::from(*count)].iter().enumerate() {
                    // SAFETY: `access` found as many elements there, which live until the launch ends.
                    self.set(*slot, unsafe { read(start.add(lane * usize::from(*bytes)), *bytes, *signed) });
                }
            }
            Op::Store { place, bytes, count, of } => {
                let start = self.access(shared, place, *bytes, *count, "a store")?;
                for (lane, slot) in of[..usize::from(*count)].iter().enumerate() {
                    // SAFETY: as above.
                    unsafe { write(start.add(lane * usize::from(*bytes)), *bytes, self.get(*slot)) };
                }
            }
            Op::Jump(target) => self.next = *target,
            Op::Branch { predicate, unless, target } => {
                if (self.get(*predicate) != 0) != *unless {
                    self.next = *target;
                }
            }
            Op::Carry(carry) => self.carry(carry),
            Op::Atomic(atomic) => self.atomic(atomic, shared)?,
            Op::Special { which, to } => {
                let value = self.special(*which, shared);
                self.set(*to, value);
            }
            Op::LocalAddress { offset, to } => self.set(*to, self.frame().locals as u64 + offset),
            Op::Table { index, targets } => {
                let index = self.get(*index) as u32 as usize;
                let beyond = || (Kind::Trap, format!("a branch to number {index} of {}", targets.len()));
                self.next = *targets.get(index).ok_or_else(beyond)?;
            }
            Op::Call(call) => self.call(program, call),
            Op::Return => self.leave(program),
            Op::Exit => self.state = State::Ended,
            Op::Trap => return Err((Kind::Trap, "a trap".into())),
            Op::Barrier(_) => self.state = State::AtBarrier(op),
            Op::Warp(_) => self.state = State::AtWarp(op),
        }
        Ok(())
    }

    fn frame(&self) -> &Frame {
        self.calls.last().expect("a thread that runs is in a function")
    }

    pub fn get(&self, slot: Slot) -> u64 {
        self.slots[self.base + slot as usize]
    }

    pub fn set(&mut self, slot: Slot, value: u64) {
        self.slots[self.base + slot as usize] = value;
    }

    /// Checks an access and returns a pointer to its elements.
    fn access(
        &mut self,
        shared: &mut Shared<'_>,
        place: &Place,
        bytes: u8,
        count: u8,
        what: &str,
    ) -> Result<*mut u8, (Kind, String)> {
        let address = self.get(place.base).wrapping_add_signed(place.offset.into());
        let size = u64::from(bytes) * u64::from(count);
        let found = match address.is_multiple_of(size) {
            true => self.find(shared, place.space, address, size),
            false => Err(Kind::Misaligned),
        };
        let why = if found == Err(Kind::Misaligned) { "not a multiple of the size" } else { "outside of live memory" };
        found.map_err(|kind| (kind, format!("{what} of {size} bytes at {:?} address {address:#x}, {why}", place.space)))
    }

    fn find(&mut self, shared: &mut Shared<'_>, space: Space, address: u64, bytes: u64) -> Result<*mut u8, Kind> {
        match space {
            Space::Global => shared.memory.global(address, bytes),
            Space::Shared => shared.memory.shared(address, bytes),
            Space::Local => within(&mut self.locals, address, bytes),
            Space::Param => {
                let start = self.frame().params;
                within(&mut self.params[start..], address, bytes)
            }
            Space::Generic => {
                let space = Space::of(address);
                self.find(shared, space, address - space.window(), bytes)
            }
        }
    }

    fn carry(&mut self, carry: &Carry) {
        let [a, b, c] = carry.of.map(|slot| self.get(slot));
        let (value, out) = (carry.function)(a, b, c, if carry.reads { self.carry } else { 0 });
        self.set(carry.to, value);
        if carry.writes {
            self.carry = out;
        }
    }

    fn atomic(&mut self, atomic: &Atomic, shared: &mut Shared<'_>) -> Result<(), (Kind, String)> {
        let start = self.access(shared, &atomic.place, atomic.bytes, 1, "an atomic operation")?;
        let [a, b] = atomic.of.map(|slot| self.get(slot));
        // SAFETY: `access` found an element there; no other thread runs.
        let old = unsafe {
            let old = read(start, atomic.bytes, false);
            write(start, atomic.bytes, (atomic.function)(old, a, b, 0));
            old
        };
        self.set(atomic.to, old);
        Ok(())
    }

    fn special(&self, which: Special, shared: &Shared<'_>) -> u64 {
        let lane = self.number % 32;
        let threads: u32 = shared.grid.threads.iter().product();
        match which {
            Special::Thread(axis) => self.place[axis].into(),
            Special::Block(axis) => shared.block[axis].into(),
            Special::Threads(axis) => shared.grid.threads[axis].into(),
            Special::Blocks(axis) => shared.grid.blocks[axis].into(),
            Special::Lane => lane.into(),
            Special::Warp => (self.number / 32).into(),
            Special::Warps => threads.div_ceil(32).into(),
            Special::LaneMask(mask) => lanes(mask, lane).into(),
            Special::Clock => self.steps,
            Special::DynamicShared => shared.grid.shared_bytes.into(),
            Special::Always(value) => value,
        }
    }

    /// Makes room for a called function, and begins it.
    fn enter(&mut self, program: &Program, function: usize, back: usize) {
        let callee = &program.functions[function];
        let (slots, params, locals) = (self.slots.len(), self.params.len(), self.locals.len());
        self.calls.push(Frame { slots, params, locals, back });
        self.slots.extend_from_slice(&callee.slots);
        self.params.resize(params + callee.param_bytes, POISON as u8);
        self.locals.resize(locals + callee.local_bytes, POISON as u8);
        (self.base, self.next) = (slots, callee.start);
    }

    fn call(&mut self, program: &Program, call: &Call) {
        let caller = *self.frame();
        self.enter(program, call.function, self.next);
        let callee = *self.frame();
        for Pass { caller: from, callee: to, bytes } in &call.arguments {
            self.pass((caller, *from), (callee, *to), *bytes);
        }
    }

    /// Returns from a function and copies its results to the caller; ends the thread if there is no caller.
    fn leave(&mut self, program: &Program) {
        let callee = *self.frame();
        if self.calls.len() == 1 {
            self.state = State::Ended;
            return;
        }
        self.calls.pop();
        self.next = callee.back;
        let Op::Call(call) = &program.code[callee.back - 1] else {
            unreachable!("a call is before where it goes back")
        };
        let caller = *self.frame();
        self.base = caller.slots;
        for Pass { caller: to, callee: from, bytes } in &call.results {
            self.pass((callee, *from), (caller, *to), *bytes);
        }
        self.slots.truncate(callee.slots);
        self.params.truncate(callee.params);
        self.locals.truncate(callee.locals);
    }

    fn pass(&mut self, (from, held): (Frame, Holder), (to, holder): (Frame, Holder), bytes: usize) {
        let mut value = vec![0; bytes.max(8)];
        match held {
            Holder::Slot(slot) => value[..8].copy_from_slice(&self.slots[from.slots + slot as usize].to_le_bytes()),
            Holder::Param(at) => value[..bytes].copy_from_slice(&self.params[from.params + at..][..bytes]),
        }
        match holder {
            Holder::Slot(slot) => {
                let word = u64::from_le_bytes(value[..8].try_into().expect("eight bytes"));
                self.slots[to.slots + slot as usize] = word;
            }
            Holder::Param(at) => self.params[to.params + at..][..bytes].copy_from_slice(&value[..bytes]),
        }
    }
}

fn lanes(mask: LaneMask, lane: u32) -> u32 {
    let own = 1 << lane;
    match mask {
        LaneMask::Equal => own,
        LaneMask::Less => own - 1,
        LaneMask::LessOrEqual => own | (own - 1),
        LaneMask::Greater => !(own | (own - 1)),
        LaneMask::GreaterOrEqual => !(own - 1),
    }
}

/// An element of memory as a slot, extended by zeros or by its sign.
///
/// # Safety
/// There are as many bytes that may be read.
unsafe fn read(start: *const u8, bytes: u8, signed: bool) -> u64 {
    // SAFETY: by the caller.
    unsafe {
        match (bytes, signed) {
            (1, false) => start.read().into(),
            (1, true) => start.cast::<i8>().read() as u64,
            (2, false) => start.cast::<u16>().read_unaligned().into(),
            (2, true) => start.cast::<i16>().read_unaligned() as u64,
            (4, false) => start.cast::<u32>().read_unaligned().into(),
            (4, true) => start.cast::<i32>().read_unaligned() as u64,
            _ => start.cast::<u64>().read_unaligned(),
        }
    }
}

/// # Safety
/// There are as many bytes that may be written.
unsafe fn write(start: *mut u8, bytes: u8, value: u64) {
    // SAFETY: by the caller.
    unsafe {
        match bytes {
            1 => start.write(value as u8),
            2 => start.cast::<u16>().write_unaligned(value as u16),
            4 => start.cast::<u32>().write_unaligned(value as u32),
            _ => start.cast::<u64>().write_unaligned(value),
        }
    }
}
