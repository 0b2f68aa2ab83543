//! The functions of `kernels/functions/math.cu` as PTX text, which the pinned compiler has made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use super::text::{Class, Reg, Text};

/// The items of the PTX text by name, in its order: functions, declarations and tables.
static ITEMS: LazyLock<Vec<(String, String)>> =
    LazyLock::new(|| items(include_str!("../../../kernels/functions/math.ptx")));

/// The instructions of functions without a branch, by name.
static STRAIGHT: LazyLock<BTreeMap<String, Vec<String>>> = LazyLock::new(|| {
    let straight = |(name, text): &(String, String)| Some((name.clone(), straight(text)?));
    ITEMS.iter().filter_map(straight).collect()
});

/// The instructions of a function without a branch; `None` for any other function.
pub(super) fn lines(name: &str) -> Option<Vec<String>> {
    STRAIGHT.get(name).cloned()
}

/// The text of these functions and of all items that they use, for a module that calls them.
pub(super) fn text(functions: &BTreeSet<String>) -> String {
    let mut wanted: BTreeSet<&str> = functions.iter().map(String::as_str).collect();
    let mut left: Vec<&str> = wanted.iter().copied().collect();
    while let Some(name) = left.pop() {
        let of_name = ITEMS.iter().filter(|(of, _)| of == name);
        let used = of_name.flat_map(|(_, text)| words(text)).filter(|word| ITEMS.iter().any(|(of, _)| of == word));
        left.extend(used.collect::<Vec<_>>().into_iter().filter(|word| wanted.insert(*word)));
    }
    let chosen = ITEMS.iter().filter(|(name, _)| wanted.contains(name.as_str()));
    chosen.map(|(_, text)| text.replace(".visible ", "") + "\n").collect()
}

/// Writes a function's instructions in place of a call.
pub(super) fn paste(text: &mut Text, name: &str, lines: &[String], to: Reg, args: &[Reg]) {
    let mut known: BTreeMap<String, Reg> = BTreeMap::new();
    for line in lines {
        let mut renamed = String::new();
        let mut rest = line.as_str();
        while let Some((before, behind)) = rest.split_once('%') {
            let end = behind.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(behind.len());
            let reg = known.entry(behind[..end].to_owned()).or_insert_with(|| text.reg(class(&behind[..end])));
            renamed += &format!("{before}{reg}");
            rest = &behind[end..];
        }
        renamed += rest;
        for (number, arg) in args.iter().enumerate() {
            renamed = renamed.replace(&format!("[{name}_param_{number}]"), &arg.to_string());
        }
        let moved = renamed.strip_prefix("ld.param.").map(|rest| format!("mov.{rest}"));
        let moved = moved.or_else(|| stored(&renamed, to)).unwrap_or(renamed);
        text.put(format_args!("{moved}"));
    }
}

/// The move that replaces the store of a function's result; `None` for any other instruction.
fn stored(line: &str, to: Reg) -> Option<String> {
    let (kind, value) = line.strip_prefix("st.param.")?.split_once("[func_retval0+0], ")?;
    Some(format!("mov.{} {to}, {value}", kind.trim()))
}

/// The class of a register, by its name without `%`.
fn class(name: &str) -> Class {
    match name.trim_end_matches(|c: char| c.is_ascii_digit()) {
        "fd" | "rd" => Class::Long,
        "rs" => Class::Half,
        "p" => Class::Pred,
        _ => Class::Word,
    }
}

/// The words of a text that may be names.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

/// Splits a module into its declarations and definitions, by name. The directives before them are left out.
fn items(module: &str) -> Vec<(String, String)> {
    let mut items = Vec::new();
    let mut item = String::new();
    for line in module.lines().filter(|line| !line.trim_start().starts_with("//")) {
        let starts = [".func", ".visible", ".global"].iter().any(|word| line.starts_with(word));
        if item.is_empty() && !starts {
            continue;
        }
        item += line;
        item.push('\n');
        if line == "}" || line == ";" || (starts && line.ends_with(';')) {
            items.push((name(&item).to_owned(), std::mem::take(&mut item)));
        }
    }
    items
}

/// The name of an item.
fn name(item: &str) -> &str {
    let behind = match item.split_once("func_retval0") {
        Some((_, rest)) => rest.split_once(')').map_or(rest, |(_, rest)| rest),
        None => item.split_once(".b8").map_or(item, |(_, rest)| rest),
    };
    words(behind).next().unwrap_or("")
}

/// The instructions of a function; `None` unless it has one end and no branch, no call and no memory of its own.
fn straight(item: &str) -> Option<Vec<String>> {
    let (_, body) = item.split_once("\n{\n")?;
    let lines: Vec<&str> = body.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "}").collect();
    let (end, lines) = lines.split_last()?;
    let plain =
        |line: &&str| !["bra", "call", "ret;", "$", "{", ".local", ".param", "global"].iter().any(|w| has(line, w));
    let code: Vec<&str> = lines.iter().copied().filter(|line| !line.starts_with(".reg")).collect();
    (*end == "ret;" && code.iter().all(plain)).then(|| {
        let tidy = |line: &&str| line.trim_end_matches(';').split_whitespace().collect::<Vec<_>>().join(" ");
        code.iter().map(tidy).collect()
    })
}

fn has(line: &str, word: &str) -> bool {
    let of_parameter = line.starts_with("ld.param") || line.starts_with("st.param");
    line.contains(word) && !(of_parameter && word == ".param")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_comes_with_what_it_uses() {
        let names = |of: &str| -> Vec<String> {
            items(&text(&BTreeSet::from([of.to_owned()]))).into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names("trefoil_erf_f64"), ["trefoil_erf_f64"]);
        assert_eq!(names("trefoil_pow_s64"), ["trefoil_pow_s64"]);
        let of_sine = names("trefoil_sin_f64");
        assert!(of_sine.contains(&"__cudart_i2opi_d".to_owned()), "{of_sine:?}");
        assert_eq!(of_sine.iter().filter(|name| *name == "__internal_trig_reduction_slowpathd").count(), 2);
    }

    #[test]
    fn short_functions_are_put_in_place() {
        let lines = lines("trefoil_exp_f32").expect("it has no branch");
        assert!(lines.len() > 5 && lines.iter().all(|line| !line.contains(';')), "{lines:?}");
        let mut text = Text::default();
        let x = text.reg(Class::Word);
        text.function("trefoil_exp_f32", Class::Word, &[x]);
        let text = text.finish();
        assert!(!text.contains("param") && !text.contains("%f"), "{text}");
    }
}
