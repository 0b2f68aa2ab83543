//! Handles of one kind, named in the order of creation and never reused, so that a stale handle is recognised.

use std::collections::BTreeSet;

use crate::ffi::Handle;

pub struct Table<T> {
    kind: &'static str,
    base: Handle,
    entries: Vec<Entry<T>>,
    /// The numbers of the live handles: after a long run most have ended.
    live: BTreeSet<usize>,
}

struct Entry<T> {
    value: T,
    alive: bool,
}

impl<T> Table<T> {
    pub const fn new(kind: &'static str, base: Handle) -> Self {
        Self { kind, base, entries: Vec::new(), live: BTreeSet::new() }
    }

    pub fn add(&mut self, value: T) -> Handle {
        self.live.insert(self.entries.len());
        self.entries.push(Entry { value, alive: true });
        self.base + self.entries.len() - 1
    }

    pub fn name(&self, handle: Handle) -> String {
        format!("{}{}", self.kind, handle.wrapping_sub(self.base))
    }

    /// The value of a live handle, or an error text.
    pub fn get(&mut self, handle: Handle) -> Result<&mut T, String> {
        let kind = self.kind;
        match self.entries.get_mut(handle.wrapping_sub(self.base)) {
            Some(Entry { value, alive: true }) => Ok(value),
            Some(_) => Err(format!("{kind}{} is used after its end", handle - self.base)),
            None => Err(format!("{handle:#x} is no {kind}")),
        }
    }

    /// Ends a live handle; returns its value.
    pub fn end(&mut self, handle: Handle) -> Result<&mut T, String> {
        self.get(handle)?;
        self.live.remove(&(handle - self.base));
        let entry = &mut self.entries[handle - self.base];
        entry.alive = false;
        Ok(&mut entry.value)
    }

    /// The value of a handle that existed at some time, even if it has ended: work in flight may still refer to it.
    pub fn ever(&mut self, handle: Handle) -> &mut T {
        &mut self.entries[handle - self.base].value
    }

    pub fn live(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.live.iter().map(|&index| (self.base + index, &self.entries[index].value))
    }

    /// Changes all live values.
    pub fn each_live(&mut self, mut change: impl FnMut(&mut T)) {
        self.live.iter().for_each(|&index| change(&mut self.entries[index].value));
    }
}
