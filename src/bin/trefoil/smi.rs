//! What nvidia-smi says of a GPU, where there is one: the program's own figures never depend on it.

use std::process::Command;

/// What nvidia-smi calls the GPU that CUDA gives this number.
pub fn visible(ordinal: &str) -> String {
    let list = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let named = ordinal.parse().ok().and_then(|index: usize| list.split(',').nth(index));
    named.filter(|name| !name.is_empty()).unwrap_or(ordinal).trim().to_owned()
}

/// Fields of a GPU; nothing where there is no nvidia-smi, and for a field that it does not have.
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
        // A field that this nvidia-smi does not have fails all.
        _ => {
            let each: Vec<_> = fields.iter().map(|field| ask(&[field]).as_deref().and_then(known)).collect();
            each.iter().any(Option::is_some).then_some(each)
        }
    }
}

/// The first line of what a command prints, if it succeeds.
pub fn said(command: &mut Command) -> Option<String> {
    let line = all_said(command)?.lines().next()?.trim().to_owned();
    Some(line).filter(|line| !line.is_empty())
}

/// All that it prints.
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
