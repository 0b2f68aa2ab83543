//! Queries nvidia-smi where it is installed: the program's own figures never depend on it.

use std::process::Command;

/// The name for nvidia-smi of the GPU with this CUDA ordinal.
pub fn visible(ordinal: &str) -> String {
    let list = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let named = ordinal.parse().ok().and_then(|index: usize| list.split(',').nth(index));
    named.filter(|name| !name.is_empty()).unwrap_or(ordinal).trim().to_owned()
}

/// Fields of a GPU: `None` without nvidia-smi, and for a field that it does not have.
pub fn query(id: &str, fields: &[&str]) -> Option<Vec<Option<String>>> {
    let ask = |fields: &[&str]| {
        let mut smi = Command::new("nvidia-smi");
        smi.arg(format!("--id={id}")).arg(format!("--query-gpu={}", fields.join(",")));
        said(smi.arg("--format=csv,noheader,nounits"))
    };
    let known = |value: &str| Some(value.trim().to_owned()).filter(|value| !value.starts_with('['));
    match ask(fields) {
        Some(line) if line.split(',').count() == fields.len() => Some(line.split(',').map(known).collect()),
        _ if fields.len() == 1 => None,
        // One unknown field makes the whole query fail: ask for each field alone.
        _ => {
            let each: Vec<_> = fields.iter().map(|field| ask(&[field]).as_deref().and_then(known)).collect();
            each.iter().any(Option::is_some).then_some(each)
        }
    }
}

/// The first line of a command's output; `None` if the command fails.
pub fn said(command: &mut Command) -> Option<String> {
    let line = all_said(command)?.lines().next()?.trim().to_owned();
    Some(line).filter(|line| !line.is_empty())
}

/// The whole output of a command; `None` if the command fails.
pub fn all_said(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_says_nothing() {
        assert_eq!(said(&mut Command::new("no-such-command-anywhere")), None);
        assert_eq!(said(Command::new("sh").args(["-c", "echo a; exit 3"])), None);
        assert_eq!(said(Command::new("sh").args(["-c", "echo ' a '; echo b"])), Some("a".into()));
    }
}
