//! The programs that a ring runs on each batch: one, or several, of which some read what others give.

use std::sync::Arc;

use crate::device::{Device, Event, Priority, Program, Run, Stream};
use crate::error::Error;

/// A program of a ring. All programs of one ring have the same slots and batch sizes.
pub(crate) struct Node {
    pub program: Arc<dyn Program>,
    /// The programs before it whose outputs it reads; none: it reads the rows that were uploaded.
    pub reads: Vec<usize>,
}

/// A program with what a ring has for it.
pub(super) struct Runner {
    pub program: Arc<dyn Program>,
    pub stream: Stream,
    /// Of each slot: what its last run reads has been read, and what it writes is there.
    pub computed: Vec<Event>,
    pub reads: Vec<usize>,
    /// Programs after it that read its output; if there is none, the output is downloaded.
    pub readers: Vec<usize>,
}

impl Runner {
    /// The runners of `nodes`.
    pub fn all(device: &Device, priority: Priority, nodes: Vec<Node>) -> Result<Vec<Self>, Error> {
        let slots = nodes[0].program.slots();
        let readers = |index| (0..nodes.len()).filter(|&reader: &usize| nodes[reader].reads.contains(&index)).collect();
        let readers: Vec<Vec<usize>> = (0..nodes.len()).map(readers).collect();
        let runner = |(index, (Node { program, reads }, readers)): (usize, (Node, Vec<usize>))| {
            assert!(
                reads.iter().all(|&read| read < index) && program.slots() == slots,
                "programs in order, of one ring"
            );
            let name = if index == 0 { "trefoil-compute".into() } else { format!("trefoil-compute-{index}") };
            let computed = (0..slots).map(|_| Event::new(device)).collect::<Result<_, _>>()?;
            Ok(Self { program, stream: Stream::new(device, priority, &name)?, computed, reads, readers })
        };
        nodes.into_iter().zip(readers).enumerate().map(runner).collect()
    }

    /// Whether it reads the rows that were uploaded.
    pub fn reads_upload(&self) -> bool {
        self.reads.is_empty()
    }

    /// Whether its output is downloaded.
    pub fn is_downloaded(&self) -> bool {
        self.readers.is_empty()
    }

    /// Enqueues a run between the others, behind `uploaded` and, where the slot's output is downloaded, behind the `last`
    /// download of it.
    pub fn enqueue(&self, all: &[Self], run: Run, uploaded: &Event, last: Option<&Event>) -> Result<(), Error> {
        if self.reads_upload() {
            self.stream.wait(uploaded)?;
        }
        for &other in self.reads.iter().chain(&self.readers) {
            self.stream.wait(&all[other].computed[run.slot])?;
        }
        if let Some(last) = last.filter(|_| self.is_downloaded()) {
            self.stream.wait(last)?;
        }
        self.stream.launch(&self.program, run)?;
        self.computed[run.slot].record(&self.stream)
    }
}
