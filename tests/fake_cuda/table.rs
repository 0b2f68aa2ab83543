//! Handles of one kind, named in the order of their making and never reused, so that a stale one is recognised.

use crate::ffi::Handle;

pub struct Table<T> {
    kind: &'static str,
    base: Handle,
    entries: Vec<Entry<T>>,
}

struct Entry<T> {
    value: T,
    alive: bool,
}

impl<T> Table<T> {
    pub const fn new(kind: &'static str, base: Handle) -> Self {
        Self { kind, base, entries: Vec::new() }
    }

    pub fn add(&mut self, value: T) -> Handle {
        self.entries.push(Entry { value, alive: true });
        self.base + self.entries.len() - 1
    }

    pub fn name(&self, handle: Handle) -> String {
        format!("{}{}", self.kind, handle.wrapping_sub(self.base))
    }

    /// The value of a live handle, or what is wrong with the handle.
    pub fn get(&mut self, handle: Handle) -> Result<&mut T, String> {
        let kind = self.kind;
        match self.entries.get_mut(handle.wrapping_sub(self.base)) {
            Some(Entry { value, alive: true }) => Ok(value),
            Some(_) => Err(format!("{kind}{} is used after its end", handle - self.base)),
            None => Err(format!("{handle:#x} is no {kind}")),
        }
    }

    /// Ends a live handle.
    pub fn end(&mut self, handle: Handle) -> Result<&mut T, String> {
        self.get(handle)?;
        let entry = &mut self.entries[handle - self.base];
        entry.alive = false;
        Ok(&mut entry.value)
    }

    /// The value of a handle that was made once, also after its end: work under way may still refer to it.
    pub fn ever(&mut self, handle: Handle) -> &mut T {
        &mut self.entries[handle - self.base].value
    }

    /// All values that were ever made.
    pub fn all(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.entries.iter().enumerate().map(|(index, entry)| (self.base + index, &entry.value))
    }

    /// The same to change.
    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().map(|entry| &mut entry.value)
    }

    pub fn live(&self) -> impl Iterator<Item = (Handle, &T)> {
        let alive = self.entries.iter().enumerate().filter(|(_, entry)| entry.alive);
        alive.map(|(index, entry)| (self.base + index, &entry.value))
    }
}
