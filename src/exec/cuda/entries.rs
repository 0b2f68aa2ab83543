//! Every kernel by name, so that a program can load all of them before it runs.

use super::launch::SM90_SHARED_BYTES;
use super::{add, conv2d_depthwise, conv2d_fprop, emit, global_avg_pool, linear, mean, normalize, pool2d};
use super::{
    sm90_attention, sm90_conv2d_chain, sm90_conv2d_depthwise, sm90_conv2d_fprop, sm90_conv2d_halo, sm90_linear,
    sm90_stem, sm90_tail,
};
use crate::plan::{ConvTile, Sm90Tile};

/// One entry point of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Stem of the module that has it, as in `MODULES`.
    pub(crate) module: &'static str,
    /// Its name.
    pub(crate) name: &'static str,
    /// Threads of a block, at most.
    pub(crate) threads: u32,
    /// Dynamic shared memory of a block, at most; above 48 KiB the function must be told, and the device must grant it.
    pub(crate) shared_bytes: u32,
    /// Blocks of a cluster, at most; above 8 the function must be told.
    pub(crate) cluster: u32,
}

/// All entry points.
pub(crate) fn entries() -> Vec<Entry> {
    let mut all = Vec::new();
    all.extend(conv2d_fprop::ENTRIES.map(|(tile, name): (ConvTile, _)| {
        let pipeline = tile.pipeline().expect("every compiled tile has one");
        let (threads, shared_bytes) = (pipeline.threads as u32, pipeline.shared_bytes as u32);
        Entry { module: "conv2d_fprop", name, threads, shared_bytes, cluster: 8 }
    }));
    all.extend(sm90_conv2d_fprop::ENTRIES.map(|(tile, name): (Sm90Tile, _)| {
        let pipeline = tile.pipeline().expect("every compiled tile has one");
        let (threads, shared_bytes) = (pipeline.threads() as u32, pipeline.shared_bytes() as u32);
        Entry { module: "sm90_conv2d_fprop", name, threads, shared_bytes, cluster: 8 }
    }));
    all.extend(sm90_conv2d_chain::ENTRIES.map(|(_, _, name)| {
        let (threads, shared_bytes) = (sm90_conv2d_chain::THREADS, SM90_SHARED_BYTES);
        Entry { module: "sm90_conv2d_chain", name, threads, shared_bytes, cluster: 1 }
    }));
    all.push(Entry {
        module: "sm90_conv2d_halo",
        name: sm90_conv2d_halo::ENTRY,
        threads: sm90_conv2d_halo::THREADS,
        shared_bytes: SM90_SHARED_BYTES,
        cluster: 1,
    });
    all.extend(sm90_stem::ENTRIES.map(|(layers, columns, name)| {
        let shared_bytes = layers.shared_bytes(columns) as u32;
        Entry { module: "sm90_stem", name, threads: sm90_stem::THREADS, shared_bytes, cluster: 1 }
    }));
    all.extend(sm90_conv2d_depthwise::ENTRIES.map(|(.., name)| {
        let (threads, shared_bytes) = (sm90_conv2d_depthwise::MOST_THREADS, sm90_conv2d_depthwise::MOST_SHARED_BYTES);
        Entry { module: "sm90_conv2d_depthwise", name, threads, shared_bytes, cluster: 8 }
    }));
    all.extend(sm90_linear::ENTRIES.map(|(tile, name)| {
        let (threads, shared_bytes) = (sm90_linear::threads(tile), SM90_SHARED_BYTES);
        Entry { module: "sm90_linear", name, threads, shared_bytes, cluster: 8 }
    }));
    all.extend(sm90_tail::ENTRIES.map(|(_, name)| {
        let (threads, shared_bytes) = (sm90_tail::THREADS, sm90_tail::MOST_SHARED_BYTES);
        Entry { module: "sm90_tail", name, threads, shared_bytes, cluster: 16 }
    }));
    for (tile, names) in sm90_attention::ENTRIES {
        let (threads, shared_bytes) = (sm90_attention::threads(tile), tile.shared_bytes() as u32);
        let entry = |name| Entry { module: "sm90_attention", name, threads, shared_bytes, cluster: 1 };
        all.extend(names.map(entry));
    }
    let mut add = |module, names: &[&'static str], threads| {
        all.extend(names.iter().map(|name| Entry { module, name, threads, shared_bytes: 0, cluster: 1 }));
    };
    add("conv2d_depthwise", &conv2d_depthwise::ENTRIES, conv2d_depthwise::THREADS);
    add("linear", &linear::ENTRIES.map(|(_, name)| name), linear::THREADS);
    add("pool2d", &pool2d::ENTRIES, pool2d::THREADS);
    add("global_avg_pool", &[global_avg_pool::ENTRY], global_avg_pool::THREADS);
    add("normalize", &normalize::ENTRIES, normalize::THREADS);
    add("add", &[add::ENTRY], add::THREADS);
    add("emit", &emit::ENTRIES, emit::THREADS);
    add("mean", &[mean::ENTRY], mean::THREADS);
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    use super::super::implicit_gemm::ImplicitGemmArgs;
    use super::*;
    use crate::plan::{AttentionTile, ChainTile, LINEAR_OUTPUTS, LinearTile, StemLayers, StemTile, TailTile};

    type Fields = &'static [(&'static str, usize, usize)];

    /// Each argument struct: its module, the file and name of its twin, its fields and size.
    const STRUCTS: [(&str, &str, &str, Fields, usize); 19] = [
        twin::<ImplicitGemmArgs>("conv2d_fprop", "implicit_gemm.cuh", "ImplicitGemmArgs", ImplicitGemmArgs::FIELDS),
        twin::<linear::LinearArgs>("linear", "linear.cu", "LinearArgs", linear::LinearArgs::FIELDS),
        // A part of the next one.
        twin::<sm90_conv2d_fprop::Sm90Source>(
            "",
            "sm90_conv2d_fprop.cuh",
            "Sm90Source",
            sm90_conv2d_fprop::Sm90Source::FIELDS,
        ),
        twin::<sm90_conv2d_fprop::Sm90ConvArgs>(
            "sm90_conv2d_fprop",
            "sm90_conv2d_fprop.cuh",
            "Sm90ConvArgs",
            sm90_conv2d_fprop::Sm90ConvArgs::FIELDS,
        ),
        // A part of the next one.
        twin::<sm90_conv2d_chain::Sm90ChainSource>(
            "",
            "sm90_conv2d_chain.cu",
            "Sm90ChainSource",
            sm90_conv2d_chain::Sm90ChainSource::FIELDS,
        ),
        twin::<sm90_conv2d_chain::Sm90ChainArgs>(
            "sm90_conv2d_chain",
            "sm90_conv2d_chain.cu",
            "Sm90ChainArgs",
            sm90_conv2d_chain::Sm90ChainArgs::FIELDS,
        ),
        twin::<sm90_conv2d_halo::Sm90HaloArgs>(
            "sm90_conv2d_halo",
            "sm90_conv2d_halo.cu",
            "Sm90HaloArgs",
            sm90_conv2d_halo::Sm90HaloArgs::FIELDS,
        ),
        twin::<sm90_conv2d_depthwise::Sm90DepthwiseArgs>(
            "sm90_conv2d_depthwise",
            "sm90_conv2d_depthwise.cu",
            "Sm90DepthwiseArgs",
            sm90_conv2d_depthwise::Sm90DepthwiseArgs::FIELDS,
        ),
        twin::<sm90_linear::Sm90LinearArgs>(
            "sm90_linear",
            "sm90_linear.cu",
            "Sm90LinearArgs",
            sm90_linear::Sm90LinearArgs::FIELDS,
        ),
        twin::<sm90_attention::Sm90AttentionArgs>(
            "sm90_attention",
            "sm90_attention.cu",
            "Sm90AttentionArgs",
            sm90_attention::Sm90AttentionArgs::FIELDS,
        ),
        twin::<sm90_stem::StemArgs>("sm90_stem", "sm90_stem.cu", "StemArgs", sm90_stem::StemArgs::FIELDS),
        twin::<sm90_tail::TailArgs>("sm90_tail", "sm90_tail.cu", "TailArgs", sm90_tail::TailArgs::FIELDS),
        twin::<conv2d_depthwise::DepthwiseArgs>(
            "conv2d_depthwise",
            "conv2d_depthwise.cu",
            "DepthwiseArgs",
            conv2d_depthwise::DepthwiseArgs::FIELDS,
        ),
        twin::<pool2d::Pool2dArgs>("pool2d", "pool2d.cu", "Pool2dArgs", pool2d::Pool2dArgs::FIELDS),
        twin::<global_avg_pool::GlobalAvgPoolArgs>(
            "global_avg_pool",
            "global_avg_pool.cu",
            "GlobalAvgPoolArgs",
            global_avg_pool::GlobalAvgPoolArgs::FIELDS,
        ),
        twin::<normalize::NormalizeArgs>(
            "normalize",
            "normalize.cu",
            "NormalizeArgs",
            normalize::NormalizeArgs::FIELDS,
        ),
        twin::<add::AddArgs>("add", "add.cu", "AddArgs", add::AddArgs::FIELDS),
        twin::<emit::EmitArgs>("emit", "emit.cu", "EmitArgs", emit::EmitArgs::FIELDS),
        twin::<mean::MeanArgs>("mean", "mean.cu", "MeanArgs", mean::MeanArgs::FIELDS),
    ];

    const fn twin<A>(
        module: &'static str,
        file: &'static str,
        name: &'static str,
        fields: Fields,
    ) -> (&'static str, &'static str, &'static str, Fields, usize) {
        (module, file, name, fields, size_of::<A>())
    }

    fn kernels() -> &'static Path {
        Path::new("kernels")
    }

    fn manifest() -> serde_json::Value {
        serde_json::from_str(&read("ptx/manifest.json")).unwrap()
    }

    fn read(name: &str) -> String {
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
        let args: BTreeMap<_, _> = STRUCTS.iter().map(|s| (s.0, s.4)).collect();
        let mut launched: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for entry in entries() {
            let listed = (entry.name.to_owned(), args[entry.module], entry.threads);
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

    fn fnv1a64(bytes: &[u8]) -> String {
        let hash =
            bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
        format!("{hash:016x}")
    }

    #[test]
    fn kept_cubins_have_exactly_the_entries_that_are_launched() {
        let manifest = manifest();
        let args: BTreeMap<_, _> = STRUCTS.iter().map(|s| (s.0, s.4)).collect();
        let mut launched: BTreeMap<&str, BTreeMap<String, _>> = BTreeMap::new();
        for entry in entries().into_iter().filter(|entry| is_cubin(entry.module)) {
            let listed = [args[entry.module] as u64, u64::from(entry.threads)];
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
        assert!(entries().iter().all(|entry| modules.contains_key(entry.module)));
        assert!(modules.values().all(|image| image.last() == Some(&0) && image.as_ptr().addr().is_multiple_of(16)));
    }

    #[test]
    fn argument_structs_agree_with_the_sources_field_by_field() {
        for (_, file, name, fields, bytes) in STRUCTS {
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
                    "Sm90Source" => (40, 4),
                    "Sm90ChainSource" => (16, 4),
                    "int32_t" | "uint32_t" => (4, 4),
                    "uint64_t" => (8, 8),
                    "float" => (4, 4),
                    "TensorMap" => (128, 64),
                    other => panic!("{name}: unknown type {other}"),
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
            assert_eq!(offset.next_multiple_of(8), bytes, "{name}");
        }
    }

    #[test]
    fn tiles_agree_with_the_sources() {
        let source = read("gemm_tiles.cuh");
        let numbers = |line: &str| -> Vec<usize> {
            let list = line.split_once("GemmTile<").expect("a tile").1.split_once('>').expect("a tile").0;
            list.split(',').map(|n| n.trim().parse().expect("a number")).collect()
        };
        let lines: Vec<_> = source.lines().filter(|line| line.starts_with("using Tile")).map(numbers).collect();
        assert_eq!(lines.len(), ConvTile::ALL.len());
        for line in lines {
            let [m, n, k, warps_m, warps_n, stages, _] = line[..] else { panic!("{line:?}") };
            let pipeline = ConvTile { m, n }.pipeline().unwrap_or_else(|| panic!("{m}x{n}"));
            assert_eq!([pipeline.k, pipeline.stages, pipeline.threads], [k, stages, 32 * warps_m * warps_n]);
        }
        assert_eq!(conv2d_fprop::ENTRIES.map(|(tile, _)| tile), ConvTile::ALL);
    }

    #[test]
    fn linear_tiles_agree_with_the_source() {
        let source = read("linear.cu");
        let tiles = source.lines().filter_map(|line| line.strip_prefix("TREFOIL_LINEAR(")?.strip_suffix(')'));
        let tiles: Vec<_> = tiles.map(|tile| tile.replace(", ", "x")).collect();
        assert_eq!(tiles, ConvTile::LINEAR.map(|tile| tile.to_string()));
        assert_eq!(linear::ENTRIES.map(|(tile, _)| tile), ConvTile::LINEAR);
    }

    #[test]
    fn sm90_tiles_agree_with_the_source() {
        let source = read("sm90_conv2d_fprop.cu");
        let line = |line: &str| -> (String, Vec<usize>) {
            let (name, list) = line.split_once(" = Sm90Tile<").expect("a tile");
            let numbers = list.trim_end_matches(">;").split(',').map(|n| n.trim().parse().expect("a number"));
            (name.trim_start_matches("using Tile").to_owned(), numbers.collect())
        };
        let lines: Vec<_> = source.lines().filter(|line| line.starts_with("using Tile")).map(line).collect();
        assert_eq!(lines.len(), Sm90Tile::ALL.len());
        for ((name, numbers), tile) in lines.into_iter().zip(Sm90Tile::ALL) {
            assert_eq!(name, tile.to_string());
            let p = tile.pipeline().unwrap();
            let expected = [p.slabs, p.parts, p.part_pixels, p.stages, p.chunk_pixels, p.chunks, p.blocks];
            assert_eq!(numbers, expected, "{name}");
        }
        assert_eq!(sm90_conv2d_fprop::ENTRIES.map(|(tile, _)| tile), Sm90Tile::ALL);
    }

    #[test]
    fn chain_kernels_agree_with_the_source() {
        let source = read("sm90_conv2d_chain.cu");
        let found = source.lines().filter_map(|line| line.strip_prefix("TREFOIL_SM90_CHAIN(")?.strip_suffix(')'));
        let listed = sm90_conv2d_chain::ENTRIES.map(|(tile, next, name)| {
            assert_eq!(name, format!("sm90_conv2d_chain_{tile}_{next}"));
            format!("{}, {next}", tile.pixels)
        });
        assert!(found.eq(listed));
        let compiled =
            ChainTile::ALL.into_iter().flat_map(|tile| tile.next_slabs().iter().map(move |&next| (tile, next)));
        assert!(compiled.eq(sm90_conv2d_chain::ENTRIES.map(|(tile, next, _)| (tile, next))));
    }

    #[test]
    fn stem_kernels_agree_with_the_source() {
        let source = read("sm90_stem.cu");
        let manifest = manifest();
        let lines = source.lines().filter_map(|line| line.strip_prefix("TREFOIL_SM90_STEM(")?.strip_suffix(')'));
        let mut found = Vec::new();
        for line in lines {
            // A thread of each warpgroup begins with what both have together, halved: none waits for the other's.
            let [product, image, launched]: [&str; 3] = line.rsplitn(3, ", ").collect::<Vec<_>>().try_into().unwrap();
            let both: u64 = [image, product].iter().map(|count| count.parse::<u64>().unwrap()).sum();
            let name = format!("sm90_stem_{}", launched.split(',').next().unwrap());
            assert_eq!(manifest["modules"]["sm90_stem"][&name]["sm_90a"]["registers"], both / 2, "{name}");
            found.push(launched.to_owned());
        }
        let listed = sm90_stem::ENTRIES.map(|(layers, columns, name)| {
            let name = name.strip_prefix("sm90_stem_").expect("the module's name");
            let blocks = layers.resident(columns);
            format!("{name}, {}, {columns}, {}, {blocks}", layers.taps, layers.pools)
        });
        assert_eq!(found, listed);
        assert!(source.contains(&format!("kStages = {};", sm90_stem::STAGES)));
        let compiled = StemLayers::ALL.into_iter().flat_map(|of| StemTile::COLUMNS.map(|columns| (of, columns)));
        assert!(compiled.eq(sm90_stem::ENTRIES.map(|(layers, columns, _)| (layers, columns))));
    }

    #[test]
    fn sm90_linear_kernels_agree_with_the_source() {
        let source = read("sm90_linear.cu");
        let found = source.lines().filter_map(|line| line.strip_prefix("TREFOIL_SM90_LINEAR(")?.strip_suffix(')'));
        let listed = sm90_linear::ENTRIES.map(|(tile, name)| {
            let LinearTile { images, blocks } = tile;
            assert_eq!(name, format!("sm90_linear_{images}_{blocks}"));
            format!("{images}, {blocks}")
        });
        assert!(found.eq(listed));
        assert_eq!(sm90_linear::ENTRIES.map(|(tile, _)| tile), LinearTile::ALL);
        assert!(source.contains(&format!("kTileN = {LINEAR_OUTPUTS};")));
    }

    #[test]
    fn attention_kernels_agree_with_the_source() {
        let source = read("sm90_attention.cu");
        let found = source.lines().filter_map(|line| line.strip_prefix("TREFOIL_SM90_ATTENTION(")?.strip_suffix(')'));
        let listed = sm90_attention::ENTRIES.map(|(tile, [plain, masked])| {
            let AttentionTile { dims, keys } = tile;
            assert_eq!(plain, format!("sm90_attention_{dims}_{keys}"));
            assert_eq!(masked, format!("{plain}_masked"));
            format!("{dims}, {keys}, {}", tile.groups())
        });
        assert!(found.eq(listed));
        assert_eq!(sm90_attention::ENTRIES.map(|(tile, _)| tile), AttentionTile::ALL);
    }

    #[test]
    fn tail_kernels_agree_with_the_source() {
        let source = read("sm90_tail.cu");
        let found = source.lines().filter_map(|line| line.strip_prefix("TREFOIL_SM90_TAIL(")?.strip_suffix(')'));
        let found: Vec<String> = found.map(str::to_owned).collect();
        let listed = sm90_tail::ENTRIES.map(|(images, name)| {
            let [most, stages] = TailTile { images, blocks: 8 }.kernel().unwrap();
            assert_eq!(name, format!("sm90_tail_{most}"));
            format!("{most}, {stages}")
        });
        assert_eq!(found, listed);
    }

    #[test]
    fn manifest_is_of_these_sources_and_reports_no_spills() {
        let manifest = manifest();
        let sources = manifest["sources_fnv1a64"].as_object().unwrap();
        for (name, hash) in sources {
            let bytes = fs::read(kernels().join(name)).unwrap();
            assert_eq!(hash, &fnv1a64(&bytes), "{name} changed: run python3 kernels/build.py");
        }
        for entry in entries() {
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
