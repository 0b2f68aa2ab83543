//! Every kernel by name, so that a program can load all of them before it runs.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::launch::{Launch, unsupported};
use super::steps::Operands;
use super::{LAUNCHERS, mean};
use crate::error::Error;
use crate::tensor::Dtype;

/// Launches a kernel of `crate::plan::kernels`.
pub(super) trait Launcher: Sync {
    /// The stem of the kernel's files, which is also the planner's name of the kernel.
    fn name(&self) -> &'static str;

    /// The kernel's entry points.
    fn entries(&self) -> Vec<EntryPoint>;

    /// The launch of a step that was planned for the kernel.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a step beyond the kernel's ranges.
    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error>;

    /// The kernel's argument struct, after the structs that are parts of it.
    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments>;
}

/// One entry point of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryPoint {
    /// The stem of the module that contains it, as in `MODULES`.
    pub(crate) module: &'static str,
    /// The name of the entry point.
    pub(crate) name: &'static str,
    /// Threads of a block, at most.
    pub(crate) threads: u32,
    /// Dynamic shared memory of a block, at most; above 48 KiB the function must be told, and the device must grant it.
    pub(crate) shared_bytes: u32,
    /// Blocks of a cluster, at most; above 8 the function must be told.
    pub(crate) cluster: u32,
}

impl EntryPoint {
    /// Entry points without dynamic shared memory and without clusters.
    pub(super) fn flat(module: &'static str, names: &[&'static str], threads: u32) -> Vec<Self> {
        names.iter().map(|name| Self { module, name, threads, shared_bytes: 0, cluster: 1 }).collect()
    }
}

/// The first of two values for f16, the second for bf16.
///
/// # Errors
/// [`Error::Unsupported`] for another type.
pub(super) fn of_half<T>(dtype: Dtype, [f16, bf16]: [T; 2]) -> Result<T, Error> {
    match dtype {
        Dtype::F16 => Ok(f16),
        Dtype::Bf16 => Ok(bf16),
        _ => Err(unsupported("operands of a kernel", dtype, "they are of f16 or bf16")),
    }
}

/// All entry points, by name: those of steps, and that of the mean of several models.
static ENTRIES: LazyLock<BTreeMap<&str, EntryPoint>> = LazyLock::new(|| {
    let of_steps = LAUNCHERS.iter().flat_map(|launcher| launcher.entries());
    let of_mean = EntryPoint::flat("mean", &[mean::ENTRY], mean::THREADS);
    of_steps.chain(of_mean).map(|entry| (entry.name, entry)).collect()
});

/// The entry point of this name.
pub(super) fn find(name: &str) -> Option<&'static EntryPoint> {
    ENTRIES.get(name)
}

/// An argument struct, as the kernel's source declares it.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Arguments {
    /// The file in `kernels/`.
    pub file: &'static str,
    /// The struct's name in that file.
    pub name: &'static str,
    /// Name, offset and size of each field.
    pub fields: &'static [(&'static str, usize, usize)],
    /// The size of the struct.
    pub bytes: usize,
    /// Whether it is the whole argument, not a part of another struct.
    pub is_whole: bool,
}

#[cfg(test)]
impl Arguments {
    pub(super) const fn of<A>(
        file: &'static str,
        name: &'static str,
        fields: &'static [(&'static str, usize, usize)],
    ) -> Self {
        Self { file, name, fields, bytes: size_of::<A>(), is_whole: true }
    }

    pub(super) const fn part(self) -> Self {
        Self { is_whole: false, ..self }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::fnv::fnv1a64;
    use crate::plan::kernels::KERNELS;

    /// Each argument struct, with its module.
    fn structs() -> Vec<(&'static str, Arguments)> {
        let of_steps = LAUNCHERS.iter().flat_map(|l| l.arguments().into_iter().map(|found| (l.name(), found)));
        let mean = Arguments::of::<mean::MeanArgs>("mean.cu", "MeanArgs", mean::MeanArgs::FIELDS);
        of_steps.chain([("mean", mean)]).collect()
    }

    /// Bytes of the argument of each module's kernels.
    fn argument_bytes() -> BTreeMap<&'static str, usize> {
        structs().into_iter().filter(|(_, found)| found.is_whole).map(|(module, found)| (module, found.bytes)).collect()
    }

    /// The planner's kernels and their launchers have the same names.
    #[test]
    fn every_kernel_of_the_planner_has_its_launcher() {
        let names = |all: Vec<&'static str>| all.into_iter().collect::<BTreeSet<_>>();
        let planned = KERNELS.iter().map(|def| def.name()).filter(|&name| name != "cpu");
        let launched: Vec<_> = LAUNCHERS.iter().map(|launcher| launcher.name()).collect();
        assert_eq!(names(launched.clone()).len(), launched.len());
        assert_eq!(names(planned.collect()), names(launched));
        let entries = LAUNCHERS.iter().map(|launcher| launcher.entries().len()).sum::<usize>();
        assert_eq!(entries + 1, ENTRIES.len(), "two entry points have one name");
        for launcher in LAUNCHERS {
            let (name, few) = (launcher.name(), format!("{}_few", launcher.name()));
            assert!(launcher.entries().iter().all(|entry| [name, &few].contains(&stem(entry.module))));
        }
    }

    /// The name of the launcher of a module: that of the module's files, but that those for few rows may be apart.
    fn launcher_of(module: &str) -> &str {
        let is_its = |of: &&&dyn Launcher| of.entries().iter().any(|entry| entry.module == module);
        LAUNCHERS.iter().find(is_its).map_or(stem(module), |of| of.name())
    }

    /// The includes of sources that are compiled once more, each with the suffix of the further module.
    const TWINS: [(&str, &str); 3] = [
        ("#include \"element.cuh\"", "_bf16"),
        ("#include \"activation.cuh\"", "_silu"),
        ("#include \"gelu.cuh\"", "_gelu"),
    ];

    /// The stem of the files that a module is compiled from.
    fn stem(module: &str) -> &str {
        TWINS.iter().find_map(|(_, suffix)| module.strip_suffix(suffix)).unwrap_or(module)
    }

    /// Checks that a kernel of two types or activations, which is compiled twice from one source, has each entry point
    /// in both modules. Results in codes of e4m3 are of f16 only.
    #[test]
    fn what_is_compiled_twice_has_the_same_entries() {
        let entries: Vec<EntryPoint> = ENTRIES.values().copied().collect();
        for (include, suffix) in TWINS {
            let twins: Vec<_> = entries.iter().filter(|entry| entry.module.ends_with(suffix)).collect();
            assert!(!twins.is_empty());
            for entry in &entries {
                let has_both = twins.iter().any(|of| stem(of.module) == stem(entry.module));
                assert_eq!(read_source(entry.module).contains(include), has_both, "{}", entry.name);
                assert_eq!(entry.name.ends_with(suffix), entry.module.ends_with(suffix), "{}", entry.name);
                let name = format!("{}{suffix}", entry.name);
                let twin = entries.iter().find(|other| other.name == name);
                let same = |of: &EntryPoint| (of.threads, of.shared_bytes, of.cluster);
                let is_of_f16 = ["_e4m3", "_both", "_first_96"].iter().any(|end| entry.name.ends_with(end));
                let needs_twin = has_both && entry.module == stem(entry.module) && !is_of_f16;
                assert_eq!(twin.map(same), needs_twin.then(|| same(entry)), "{}", entry.name);
            }
        }
    }

    fn read_source(module: &str) -> String {
        read(&format!("{}.cu", stem(module)))
    }

    #[test]
    fn only_types_of_16_bits_have_such_entries() {
        assert_eq!([Dtype::F16, Dtype::Bf16].map(|of| of_half(of, [1, 2]).ok()), [Some(1), Some(2)]);
        assert!([Dtype::F32, Dtype::U16].iter().all(|&of| of_half(of, [1, 2]).is_err()));
    }

    fn kernels() -> &'static Path {
        Path::new("kernels")
    }

    /// What `kernels/build.py` wrote about each entry point.
    pub fn manifest() -> serde_json::Value {
        serde_json::from_str(&read("ptx/manifest.json")).unwrap()
    }

    /// A file of `kernels/`.
    pub fn read(name: &str) -> String {
        fs::read_to_string(kernels().join(name)).unwrap_or_else(|e| panic!("kernels/{name}: {e}"))
    }

    /// Name, bytes of arguments and threads of each entry point of a PTX text.
    fn ptx_entries(ptx: &str) -> Vec<(String, usize, u32)> {
        let parse = |part: &str| {
            let bytes = part.split_once("_param_0[")?.1.split_once(']')?.0.parse().ok()?;
            let threads = part.split_once(".maxntid ")?.1.split_once(',')?.0.parse().ok()?;
            Some((part.split_once('(')?.0.trim().to_owned(), bytes, threads))
        };
        ptx.split(".visible .entry").skip(1).map(|part| parse(part).expect("an entry point")).collect()
    }

    #[test]
    fn kept_ptx_has_exactly_the_entries_that_are_launched() {
        let args = argument_bytes();
        let mut launched: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for entry in ENTRIES.values() {
            let listed = (entry.name.to_owned(), args[launcher_of(entry.module)], entry.threads);
            launched.entry(entry.module).or_default().push(listed);
        }
        for (module, mut expected) in launched.into_iter().filter(|(module, _)| !is_cubin(module)) {
            let ptx = read(&format!("ptx/{module}.ptx"));
            assert!(ptx.contains(".version 9.0\n") && ptx.contains(".target sm_80\n"), "{module}");
            let mut found = ptx_entries(&ptx);
            found.sort();
            expected.sort();
            assert_eq!(found, expected, "{module}");
        }
    }

    /// Kernels that need compute capability 9.0 exactly are kept as cubins.
    fn is_cubin(module: &str) -> bool {
        module.starts_with("sm90_")
    }

    #[test]
    fn kept_cubins_have_exactly_the_entries_that_are_launched() {
        let manifest = manifest();
        let args = argument_bytes();
        let mut launched: BTreeMap<&str, BTreeMap<String, _>> = BTreeMap::new();
        for entry in ENTRIES.values().filter(|entry| is_cubin(entry.module)) {
            let listed = [args[launcher_of(entry.module)] as u64, u64::from(entry.threads)];
            launched.entry(entry.module).or_default().insert(entry.name.to_owned(), listed);
        }
        assert!(!launched.is_empty());
        for (module, expected) in launched {
            let cubin = fs::read(kernels().join(format!("cubin/{module}.cubin"))).unwrap();
            assert!(cubin.starts_with(b"\x7fELF"), "{module}");
            assert_eq!(manifest["cubins_fnv1a64"][module], fnv1a64(&cubin), "{module}");
            let number = |entry: &serde_json::Value, field: &str| entry[field].as_u64().expect("a number");
            let found: BTreeMap<String, _> = manifest["modules"][module]
                .as_object()
                .unwrap()
                .iter()
                .map(|(name, entry)| (name.clone(), [number(entry, "param_bytes"), number(entry, "threads")]))
                .collect();
            assert_eq!(found, expected, "{module}");
        }
    }

    #[test]
    fn embedded_modules_are_those_of_the_entries() {
        let modules: BTreeMap<_, _> = super::super::MODULES.iter().copied().collect();
        assert!(ENTRIES.values().all(|entry| modules.contains_key(entry.module)));
        assert!(modules.values().all(|image| image.last() == Some(&0) && image.as_ptr().addr().is_multiple_of(16)));
    }

    #[test]
    fn argument_structs_agree_with_the_sources_field_by_field() {
        let parts = structs().into_iter().filter(|(_, found)| !found.is_whole);
        let parts: BTreeMap<_, _> = parts.map(|(_, part)| (part.name, part.bytes)).collect();
        for (_, Arguments { file, name, fields, bytes, is_whole }) in structs() {
            let source = read(file);
            let body = source.split_once(&format!("struct {name} {{")).expect(name).1.split_once("};").expect(name).0;
            let mut offset = 0;
            let mut found = Vec::new();
            for line in body.lines() {
                let line = line.split("//").next().unwrap_or("").trim();
                let Some((kind, field)) = line.strip_suffix(';').and_then(|l| l.rsplit_once([' ', '*'])) else {
                    continue;
                };
                let (size, align) = match kind.trim() {
                    _ if line.contains('*') => (8, 8),
                    "FastDivide" => (8, 4),
                    "int32_t" | "uint32_t" => (4, 4),
                    "int64_t" | "uint64_t" => (8, 8),
                    "float" => (4, 4),
                    "TensorMap" => (128, 64),
                    // A struct that is a part of another one: it consists of 4-byte words, or begins at a multiple of 8.
                    other => (*parts.get(other).unwrap_or_else(|| panic!("{name}: unknown type {other}")), 4),
                };
                let count = match field.trim_end_matches(']').split_once('[') {
                    None => 1,
                    Some((_, "kMaxMeans" | "kMaxSources")) => 8,
                    Some((_, count)) => count.parse().expect("a number of elements"),
                };
                let size = count * size;
                offset = usize::next_multiple_of(offset, align);
                found.push((field.split('[').next().unwrap_or(field).to_owned(), offset, size));
                offset += size;
            }
            let fields: Vec<_> =
                fields.iter().map(|(name, offset, size)| ((*name).to_owned(), *offset, *size)).collect();
            assert_eq!(found, fields, "{name}");
            assert_eq!(offset.next_multiple_of(if is_whole { 8 } else { 4 }), bytes, "{name}");
        }
    }

    #[test]
    fn manifest_is_of_these_sources_and_reports_no_spills() {
        let manifest = manifest();
        let sources = manifest["sources_fnv1a64"].as_object().unwrap();
        for (name, hash) in sources {
            let bytes = fs::read(kernels().join(name)).unwrap();
            assert_eq!(hash, &fnv1a64(&bytes), "{name} changed: run python3 kernels/build.py");
        }
        for entry in ENTRIES.values() {
            let resources = &manifest["modules"][entry.module][entry.name];
            let all = ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"];
            for arch in if is_cubin(entry.module) { &["sm_90a"] } else { &all[..] } {
                assert_eq!(resources[arch]["spill_bytes"], 0, "{} on {arch}", entry.name);
                let registers = resources[arch]["registers"].as_u64().unwrap();
                assert!(registers * u64::from(entry.threads) <= 65_536, "{} on {arch}", entry.name);
            }
        }
    }
}
