//! Opcodes in parts, so that no modifier of an instruction is overlooked.

use super::types::Type;

/// An opcode such as `fma.rn.ftz.f32`: its name, the modifiers that were not read yet, and its types.
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

    /// The only type, or the first of two.
    pub fn ty(&self) -> Result<Type, String> {
        self.types.first().copied().ok_or_else(|| "it has no type".into())
    }

    /// Reads a modifier if it is there; returns whether it was.
    pub fn takes(&mut self, modifier: &str) -> bool {
        let found = self.modifiers.iter().position(|known| *known == modifier);
        found.map(|index| self.modifiers.remove(index)).is_some()
    }

    /// Whether the modifier is there and was not read yet.
    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers.contains(&modifier)
    }

    /// Reads one of several modifiers; returns the value that belongs to it.
    pub fn one_of<T: Copy>(&mut self, modifiers: &[(&str, T)]) -> Option<T> {
        modifiers.iter().find(|(name, _)| self.takes(name)).map(|(_, value)| *value)
    }

    /// Reads a modifier for which `find` returns a value.
    pub fn find<T>(&mut self, find: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (index, found) = self.modifiers.iter().enumerate().find_map(|(i, name)| find(name).map(|f| (i, f)))?;
        self.modifiers.remove(index);
        Some(found)
    }

    /// Skips modifiers that make no difference to this interpreter.
    pub fn ignore(&mut self, modifiers: &[&str]) {
        self.modifiers.retain(|known| !modifiers.contains(known));
    }

    /// Fails for a modifier that was not read, or another number of types.
    pub fn finish(&self, types: usize) -> Result<(), String> {
        match (self.modifiers.first(), self.types.len() == types) {
            (Some(modifier), _) => Err(format!("the modifier .{modifier} is not known here")),
            (None, false) => Err(format!("it has {} types in place of {types}", self.types.len())),
            (None, true) => Ok(()),
        }
    }
}
