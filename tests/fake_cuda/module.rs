//! Modules, kernels and the nodes of graphs: PTX and cubins of `kernels/` are read as far as launches are checked
//! against them, other PTX so that it can be run.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::iter::once;
use std::ops::Range;
use std::sync::Arc;

use crate::cubin;
use crate::driver::Driver;
use crate::ffi::*;
use crate::ptx::{self, Grid, Program};

pub struct Module {
    pub kernels: Vec<Kernel>,
    /// The only compute capability on which a cubin runs; `None` for PTX.
    pub capability: Option<i32>,
}

/// An entry point of PTX or of a cubin.
#[derive(Clone)]
pub struct Kernel {
    pub name: String,
    /// The range of each parameter in the block of all parameters.
    parameters: Vec<Range<usize>>,
    /// The most threads of a block.
    threads: u32,
    /// The program that contains the entry point; `None` for a kernel that does nothing.
    program: Option<Arc<Program>>,
}

#[derive(Clone)]
pub struct Function {
    pub module: Handle,
    pub kernel: Kernel,
    /// The most bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// The most blocks of a cluster: 8, which every device allows, or 16 if the program has asked for it.
    pub most_cluster: u32,
    pub loaded: bool,
}

/// A node of a graph.
#[derive(Clone)]
pub enum Node {
    Launch(Launch),
    /// An event that is recorded in every run.
    Record(Handle),
}

/// A launch of a kernel in a graph.
#[derive(Clone)]
pub struct Launch {
    kernel: String,
    module: Handle,
    /// The device blocks that the launch's arguments point into.
    blocks: Vec<usize>,
    /// The program to run; `None` for a kernel that does nothing.
    work: Option<Work>,
    /// The nodes of its graph on which the launch depends.
    pub behind: BTreeSet<usize>,
    /// Whether the launch's stream has waited for another stream since its own last node.
    pub joins: bool,
}

/// A program with the shape and the arguments of a launch.
#[derive(Clone)]
struct Work {
    program: Arc<Program>,
    grid: Grid,
    arguments: Vec<u8>,
}

impl Module {
    /// Reads an image: a cubin, which is an ELF file, or PTX.
    ///
    /// # Errors
    /// What a compiler would say.
    ///
    /// # Safety
    /// `image` is a whole cubin, or text that ends with a NUL.
    pub unsafe fn read(image: *const u8) -> Result<Self, String> {
        // SAFETY: by the caller; a cubin's first NUL is past its magic number.
        let text = unsafe { CStr::from_ptr(image.cast()) };
        if text.to_bytes().starts_with(b"\x7fELF") {
            // SAFETY: by the caller.
            let kernels = unsafe { cubin::kernels(image) }.ok_or("a cubin that the fake cannot read")?;
            return Ok(Self { kernels, capability: Some(90) });
        }
        let text = text.to_str().map_err(|error| error.to_string())?;
        // The names of the kernels of `kernels/` begin so.
        match entries(text).any(|entry| entry.starts_with("sm80_")) {
            true => Self::precompiled(text).ok_or("PTX that the fake cannot read".into()),
            false => Self::interpreted(text),
        }
    }

    fn interpreted(text: &str) -> Result<Self, String> {
        let program = Arc::new(Program::read(text).map_err(|failure| failure.to_string())?);
        let kernels = program.entries.iter().map(|(name, entry)| Kernel {
            name: name.clone(),
            parameters: entry.parameters.clone(),
            threads: entry.most_threads,
            program: Some(program.clone()),
        });
        Ok(Self { kernels: kernels.collect(), capability: None })
    }

    /// Reads the entry points of PTX text: `.entry NAME( .param ... NAME_param_0[BYTES] ) .maxntid X, Y, Z`.
    fn precompiled(ptx: &str) -> Option<Self> {
        ptx.lines().find(|line| line.starts_with(".version "))?;
        let kernels = entries(ptx).map(|entry| {
            let (name, rest) = entry.split_once('(')?;
            let (parameters, rest) = rest.split_once(')')?;
            let argument_bytes = parameters.split_once('[')?.1.split_once(']')?.0.parse().ok()?;
            let bounds = rest.split_once(".maxntid ")?.1.lines().next()?;
            let threads = bounds.split(',').map(|n| n.trim().parse::<u32>()).product::<Result<u32, _>>().ok()?;
            Some(Kernel::precompiled(name.trim(), argument_bytes, threads))
        });
        kernels.collect::<Option<Vec<_>>>().map(|kernels| Self { kernels, capability: None })
    }
}

/// Parts of PTX text, each from the name of an entry point on. The text is long, so the search uses the C library.
fn entries(ptx: &str) -> impl Iterator<Item = &str> {
    unsafe extern "C" {
        fn memmem(text: *const u8, bytes: usize, word: *const u8, word_bytes: usize) -> *const u8;
    }
    const VISIBLE: &str = ".visible .entry ";
    let mut rest = ptx;
    std::iter::from_fn(move || {
        // SAFETY: both are as long as it is said.
        let found = unsafe { memmem(rest.as_ptr(), rest.len(), VISIBLE.as_ptr(), VISIBLE.len()) };
        let at = found.addr().checked_sub(rest.as_ptr().addr())?;
        rest = &rest[at + VISIBLE.len()..];
        Some(rest)
    })
}

impl Kernel {
    /// A kernel that does nothing, with one parameter of this many bytes.
    pub fn precompiled(name: &str, argument_bytes: usize, threads: u32) -> Self {
        Self { name: name.to_owned(), parameters: once(0..argument_bytes).collect(), threads, program: None }
    }

    /// Copies the block of its parameters.
    ///
    /// # Safety
    /// There is a pointer to each of them.
    unsafe fn arguments(&self, pointers: *const *const u8) -> Vec<u8> {
        let mut arguments = vec![0; self.parameters.last().map_or(0, |last| last.end)];
        for (index, range) in self.parameters.iter().enumerate() {
            // SAFETY: by the caller; the driver's contract: each is as long as the kernel's parameter.
            let argument = unsafe { std::slice::from_raw_parts(*pointers.add(index), range.len()) };
            arguments[range.clone()].copy_from_slice(argument);
        }
        arguments
    }

    /// The reason why a launch is not allowed; `None` if it is.
    fn refuses(&self, config: &LaunchConfig) -> Option<&'static str> {
        let threads: u32 = config.block.iter().product();
        let exact = self.program.as_ref().and_then(|program| program.entries[&self.name].threads);
        if config.grid.contains(&0) || threads == 0 {
            Some("an empty grid or block")
        } else if threads > self.threads {
            Some("more threads than .maxntid")
        } else if exact.is_some_and(|exact| exact != config.block) {
            Some("other threads than .reqntid")
        } else {
            None
        }
    }
}

impl Driver {
    /// Checks a launch against its kernel, and notes what its arguments address.
    ///
    /// # Safety
    /// There is a pointer to each of the kernel's parameters.
    pub unsafe fn node(
        &mut self,
        config: &LaunchConfig,
        function: Handle,
        arguments: *const *const u8,
    ) -> Result<Node, Code> {
        let found = self.functions.get(function).cloned();
        let Function { kernel, module, shared_bytes: most_shared, most_cluster, loaded } = self.valid(found)?;
        let live = self.modules.get(module).map(|_| ());
        self.valid(live)?;
        // SAFETY: by the caller; a kernel that does nothing has one parameter.
        let argument = unsafe { kernel.program.is_none().then(|| *arguments) };
        let wrong = if !loaded {
            Some("a function that is not loaded yet")
        } else if let Some(wrong) = kernel.refuses(config) {
            Some(wrong)
        } else if config.shared_bytes > most_shared {
            Some("more shared memory than was asked for")
        } else if argument.is_some_and(|argument| argument.is_null() || !argument.addr().is_multiple_of(64)) {
            Some("an argument that is not aligned to 64 bytes")
        } else if !config.attributes_are_known(most_cluster) {
            Some("attributes that the fake does not know")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            return self.refuse(format!("launch of {} with {wrong}", kernel.name), INVALID_VALUE);
        }
        // SAFETY: by the caller.
        let arguments = unsafe { kernel.arguments(arguments) };
        let words = arguments.chunks_exact(8).map(|word| usize::from_ne_bytes(word.try_into().expect("eight bytes")));
        let mut blocks: Vec<usize> = words.filter_map(|word| self.device.index_of(word)).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let grid = Grid { blocks: config.grid, threads: config.block, shared_bytes: config.shared_bytes };
        let work = kernel.program.map(|program| Work { program, grid, arguments });
        Ok(Node::Launch(Launch { kernel: kernel.name, module, blocks, work, behind: BTreeSet::new(), joins: false }))
    }

    /// Runs nodes until one faults. The modules and the memory of their kernels must still be alive.
    pub fn run_nodes(&mut self, nodes: &[Node]) {
        let start_ms = self.clock_ms;
        let mut ends_ms: Vec<f64> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let end_ms = match node {
                Node::Launch(launch) => self.run_launch(launch, start_ms, &ends_ms),
                Node::Record(event) => self.run_record(*event),
            };
            if self.fault.is_some() {
                return;
            }
            ends_ms.push(end_ms);
        }
    }

    /// Runs one kernel; returns the time of its end by the stand-in's clock.
    fn run_launch(&mut self, launch: &Launch, start_ms: f64, ends_ms: &[f64]) -> f64 {
        let Launch { kernel, module, blocks, work, behind, joins } = launch;
        let unloaded = self.modules.get(*module).err();
        let freed = blocks.iter().any(|&block| !self.device.is_live(block));
        if let Some(what) = unloaded.or(freed.then(|| "it addresses freed memory".into())) {
            self.write(&format!("VIOLATION {kernel} runs: {what}"));
        }
        if let Some(work) = work {
            self.compute(kernel, work);
        }
        let slow = self.config.slow.as_ref().is_some_and(|slow| kernel.contains(slow.as_str()));
        let taken_ms = if slow { 10.0 * KERNEL_MS } else { KERNEL_MS };
        let begin_ms = match self.config.join_ms {
            None => self.clock_ms, // all one after the other
            Some(join_ms) => {
                let behind = behind.iter().map(|&node| ends_ms[node]).fold(start_ms, f64::max);
                if *joins { behind + join_ms } else { behind }
            }
        };
        self.clock_ms = self.clock_ms.max(begin_ms + taken_ms);
        begin_ms + taken_ms
    }

    /// Interprets a kernel. A forbidden access is a fault, which lasts.
    fn compute(&mut self, kernel: &str, work: &Work) {
        let live: Vec<Range<usize>> = self.device.ranges().chain(self.host.ranges()).collect();
        let entry = &work.program.entries[kernel];
        // SAFETY: the blocks are alive; nobody but the driver, whose lock is held, touches device memory, and nobody
        // may touch page-locked memory while enqueued work does.
        let done = unsafe { work.program.run(entry, &work.grid, &work.arguments, &live) };
        if let Err(fault) = done {
            self.write(&format!("VIOLATION {kernel} runs: {}", fault.what));
            self.fault = Some(code_of(fault.kind));
        }
    }

    fn run_record(&mut self, event: Handle) -> f64 {
        match self.events.get(event) {
            Ok(event) => {
                event.recorded += 1;
                (event.done, event.at_ms) = (event.recorded, self.clock_ms);
            }
            Err(what) => self.write(&format!("VIOLATION a graph records: {what}")),
        }
        self.clock_ms
    }
}

/// The driver's status for a kind of fault.
fn code_of(kind: ptx::Kind) -> Code {
    match kind {
        ptx::Kind::Address => ILLEGAL_ADDRESS,
        ptx::Kind::Misaligned => MISALIGNED_ADDRESS,
        ptx::Kind::Trap => LAUNCH_FAILED,
        ptx::Kind::Endless => LAUNCH_TIMEOUT,
    }
}

/// The time of a kernel by the stand-in's clock.
const KERNEL_MS: f64 = 0.01;
