//! Modules, kernels and the nodes of graphs: PTX and cubins are read as far as a launch can be checked against them.

use std::collections::BTreeSet;
use std::ffi::CStr;

use crate::cubin;
use crate::driver::Driver;
use crate::ffi::*;

pub struct Module {
    pub kernels: Vec<Kernel>,
    /// The one compute capability that it runs on; PTX runs on more.
    pub capability: Option<i32>,
}

/// What PTX or a cubin says of an entry point.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    pub name: String,
    /// Size of its one parameter.
    pub argument_bytes: usize,
    /// Threads that a block may have.
    pub threads: u32,
}

#[derive(Clone)]
pub struct Function {
    pub module: Handle,
    pub kernel: Kernel,
    /// Dynamic shared memory that it may have.
    pub shared_bytes: u32,
    /// Blocks of a cluster: 8, which any device takes, or 16 when that was asked for.
    pub most_cluster: u32,
    pub loaded: bool,
}

/// What a graph does.
#[derive(Clone)]
pub enum Node {
    Launch(Launch),
    /// An event recorded in every run.
    Record(Handle),
}

/// A kernel that is launched.
#[derive(Clone)]
pub struct Launch {
    kernel: String,
    module: Handle,
    /// The device blocks that its argument points into.
    blocks: Vec<usize>,
    /// The nodes of its graph that come before it.
    pub behind: BTreeSet<usize>,
    /// Whether its stream has waited for another one's, since that one's last node.
    pub joins: bool,
}

impl Module {
    /// Reads an image: a cubin, which is an ELF file, or PTX.
    ///
    /// # Safety
    /// `image` is a whole cubin, or text that ends with a NUL.
    pub unsafe fn read(image: *const u8) -> Option<Self> {
        // SAFETY: by the caller; a cubin's first NUL is past its magic number.
        let text = unsafe { CStr::from_ptr(image.cast()) };
        if text.to_bytes().starts_with(b"\x7fELF") {
            // SAFETY: by the caller.
            let kernels = unsafe { cubin::kernels(image) }?;
            return Some(Self { kernels, capability: Some(90) });
        }
        Self::parse(&text.to_string_lossy())
    }

    /// Reads the entry points of PTX text: `.entry NAME( .param ... NAME_param_0[BYTES] ) .maxntid X, Y, Z`.
    fn parse(ptx: &str) -> Option<Self> {
        ptx.lines().find(|line| line.starts_with(".version "))?;
        let kernels = ptx.split(".entry ").skip(1).map(|entry| {
            let (name, rest) = entry.split_once('(')?;
            let (parameters, rest) = rest.split_once(')')?;
            let argument_bytes = parameters.split_once('[')?.1.split_once(']')?.0.parse().ok()?;
            let bounds = rest.split_once(".maxntid ")?.1.lines().next()?;
            let threads = bounds.split(',').map(|n| n.trim().parse::<u32>()).product::<Result<u32, _>>().ok()?;
            Some(Kernel { name: name.trim().to_owned(), argument_bytes, threads })
        });
        kernels.collect::<Option<Vec<_>>>().map(|kernels| Self { kernels, capability: None })
    }
}

impl Driver {
    /// Checks a launch against its kernel, and notes what its argument addresses.
    pub fn node(&mut self, config: &LaunchConfig, function: Handle, argument: *const u8) -> Result<Node, Code> {
        let found = self.functions.get(function).cloned();
        let Function { kernel, module, shared_bytes: most_shared, most_cluster, loaded } = self.valid(found)?;
        let live = self.modules.get(module).map(|_| ());
        self.valid(live)?;
        let threads: u32 = config.block.iter().product();
        let wrong = if !loaded {
            Some("a function that is not loaded yet")
        } else if config.grid.contains(&0) || threads == 0 {
            Some("an empty grid or block")
        } else if threads > kernel.threads {
            Some("more threads than .maxntid")
        } else if config.shared_bytes > most_shared {
            Some("more shared memory than was asked for")
        } else if argument.is_null() || !argument.addr().is_multiple_of(64) {
            Some("an argument that is not aligned to 64 bytes")
        } else if !config.attributes_are_known(most_cluster) {
            Some("attributes that the fake does not know")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            return self.refuse(format!("launch of {} with {wrong}", kernel.name), INVALID_VALUE);
        }
        // SAFETY: the driver's contract: the argument is as long as the kernel's parameter.
        let argument = unsafe { std::slice::from_raw_parts(argument, kernel.argument_bytes) };
        let words = argument.chunks_exact(8).map(|word| usize::from_ne_bytes(word.try_into().expect("eight bytes")));
        let mut blocks: Vec<usize> = words.filter_map(|word| self.device.index_of(word)).collect();
        blocks.sort_unstable();
        blocks.dedup();
        Ok(Node::Launch(Launch { kernel: kernel.name, module, blocks, behind: BTreeSet::new(), joins: false }))
    }

    /// Kernels do nothing, but what they run from and address must still be there.
    pub fn check_run(&mut self, nodes: &[Node]) {
        let start_ms = self.clock_ms;
        let mut ends_ms: Vec<f64> = Vec::with_capacity(nodes.len());
        for node in nodes {
            match node {
                Node::Launch(Launch { kernel, module, blocks, behind, joins }) => {
                    let unloaded = self.modules.get(*module).err();
                    let freed = blocks.iter().any(|&block| !self.device.is_live(block));
                    if let Some(what) = unloaded.or(freed.then(|| "it addresses freed memory".into())) {
                        self.write(&format!("VIOLATION {kernel} runs: {what}"));
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
                    ends_ms.push(begin_ms + taken_ms);
                }
                Node::Record(event) => {
                    ends_ms.push(self.clock_ms);
                    match self.events.get(*event) {
                        Ok(event) => {
                            event.recorded += 1;
                            (event.done, event.at_ms) = (event.recorded, self.clock_ms);
                        }
                        Err(what) => self.write(&format!("VIOLATION a graph records: {what}")),
                    }
                }
            }
        }
    }
}

/// What a kernel takes by the stand-in's clock.
const KERNEL_MS: f64 = 0.01;
