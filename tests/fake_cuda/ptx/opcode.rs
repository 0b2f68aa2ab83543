//! An opcode in parts, so that no modifier of it is passed over.

use super::types::Type;

/// `fma.rn.ftz.f32` as a name, modifiers that nobody has read yet, and types.
pub struct Opcode<'t> {
    pub name: &'t str,
    pub types: Vec<Type>,
    modifiers: Vec<&'t str>,
}

impl<'t> Opcode<'t> {
    pub fn of(text: &'t str) -> Self {
        let mut parts = text.split('.');
        let name = parts.next().expect("a split has a first part");
        let (types, modifiers): (Vec<_>, Vec<_>) = parts.partition(|part| Type::named(part).is_some());
        Self { name, types: types.into_iter().filter_map(Type::named).collect(), modifiers }
    }

    /// Its one type, or the first of two.
    pub fn ty(&self) -> Result<Type, String> {
        self.types.first().copied().ok_or_else(|| "it has no type".into())
    }

    /// Reads a modifier: whether it is there.
    pub fn takes(&mut self, modifier: &str) -> bool {
        let found = self.modifiers.iter().position(|known| *known == modifier);
        found.map(|index| self.modifiers.remove(index)).is_some()
    }

    /// Whether a modifier is there that is still to be read.
    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers.contains(&modifier)
    }

    /// Reads one of several modifiers: what stands for it.
    pub fn one_of<T: Copy>(&mut self, modifiers: &[(&str, T)]) -> Option<T> {
        modifiers.iter().find(|(name, _)| self.takes(name)).map(|(_, value)| *value)
    }

    /// Reads a modifier that `find` knows.
    pub fn find<T>(&mut self, find: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (index, found) = self.modifiers.iter().enumerate().find_map(|(i, name)| find(name).map(|f| (i, f)))?;
        self.modifiers.remove(index);
        Some(found)
    }

    /// Reads modifiers that change nothing that this interpreter does.
    pub fn ignore(&mut self, modifiers: &[&str]) {
        self.modifiers.retain(|known| !modifiers.contains(known));
    }

    /// Refuses what nobody has read.
    pub fn finish(&self, types: usize) -> Result<(), String> {
        match (self.modifiers.first(), self.types.len() == types) {
            (Some(modifier), _) => Err(format!("the modifier .{modifier} is not known here")),
            (None, false) => Err(format!("it has {} types in place of {types}", self.types.len())),
            (None, true) => Ok(()),
        }
    }
}
