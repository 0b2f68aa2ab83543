//! Launches of `kernels/sm90_class_attention.cu`.

use std::f64::consts::LOG2_E;

use bytemuck::Zeroable;

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher, of_half};
use super::launch::{ArgBytes, Launch, SM90_SHARED_BYTES, aligned, kernel_args, product, unsupported};
use super::sm90_conv2d_fprop::MapBytes;
use super::steps::Operands;
use crate::device::cuda::{Swizzle, TensorMap};
use crate::error::Error;
use crate::plan::kernels::{CLASS_HEADS, CLASS_KEYS, ClassAttentionLayout};
use crate::plan::{AttentionSizes, ClassAttentionOp, Kernel, Limits, StepOp};
use crate::tensor::Dtype;

kernel_args! {
    /// `ClassAttentionArgs`.
    ClassAttentionArgs, 256 bytes {
        rows: MapBytes,
        x: u64,
        queries: u64,
        keys: u64,
        values: u64,
        query_bias: u64,
        value_bias: u64,
        norm_weight: u64,
        norm_bias: u64,
        y: u64,
        images: i32,
        heads: i32,
        tokens: i32,
        query: i32,
        each: i32,
        scale: f32,
        centred: i32,
        epsilon: f32,
        per_column: f32,
        padding: [i32; 5],
    }
}

/// The modules of f16 and bf16.
const MODULES: [&str; 2] = ["sm90_class_attention", "sm90_class_attention_bf16"];
/// The names of the kernels in the module with this suffix: one for each of `CLASS_HEADS`.
macro_rules! names {
    ($of:literal) => {
        [
            concat!("sm90_class_attention_4", $of),
            concat!("sm90_class_attention_8", $of),
            concat!("sm90_class_attention_12", $of),
            concat!("sm90_class_attention_16", $of),
        ]
    };
}

/// The kernels of f16 and bf16.
const ENTRIES: [[&str; 4]; 2] = [names!(""), names!("_bf16")];
/// Threads of a block.
const THREADS: u32 = 384;

/// Attention of one row with the norm and the product before it.
pub(super) struct Sm90ClassAttention;

impl Launcher for Sm90ClassAttention {
    fn name(&self) -> &'static str {
        "sm90_class_attention"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let of = |module, (name, heads)| {
            let (shared_bytes, cluster) = (SM90_SHARED_BYTES, heads as u32);
            EntryPoint { module, name, threads: THREADS, shared_bytes, cluster }
        };
        let of_type =
            |(module, names): (_, [_; 4])| names.into_iter().zip(CLASS_HEADS).map(move |entry| of(module, entry));
        MODULES.into_iter().zip(ENTRIES).flat_map(of_type).collect()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let (StepOp::ClassAttention(of), Kernel::Sm90ClassAttention) = (step.op(), step.kernel()) else {
            return Err(step.wrong_kernel());
        };
        let mut vectors = (1..step.inputs()).map(|index| step.input_address(index));
        let mut next = |is_there: bool| is_there.then(|| vectors.next()).flatten();
        let operands = ClassOperands {
            dtype: step.x().dtype,
            x: step.input_address(0),
            matrix: step.filter(&of.product.name),
            bias: next(of.bias),
            norm_weight: next(of.norm.is_some()),
            norm_bias: next(of.norm.is_some_and(|norm| norm.bias)),
            y: step.output_address(0),
        };
        launch(of, step.limits(), &operands)
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        let fields = ClassAttentionArgs::FIELDS;
        vec![Arguments::of::<ClassAttentionArgs>("sm90_class_attention.cu", "ClassAttentionArgs", fields)]
    }
}

/// The addresses that a launch reads and writes, with their type.
#[derive(Clone, Copy, Debug)]
struct ClassOperands {
    /// The type of rows, matrix and result: f16 or bf16.
    dtype: Dtype,
    /// Address of the rows.
    x: u64,
    /// Address of the matrix of the product.
    matrix: u64,
    /// Address of a float for each column of the product, if it has biases.
    bias: Option<u64>,
    /// Address of the norm's factors, a float for each column of the rows, if there is a norm.
    norm_weight: Option<u64>,
    /// Address of its biases, if it has any.
    norm_bias: Option<u64>,
    /// Address of the result.
    y: u64,
}

/// The launch of the operation.
fn launch(of: &ClassAttentionOp, limits: &Limits, operands: &ClassOperands) -> Result<Launch, Error> {
    let &ClassOperands { dtype, x, matrix, bias, norm_weight, norm_bias, y } = operands;
    let layout = of.layout(limits);
    let layout = layout.ok_or_else(|| unsupported("class attention", format!("{of:?}"), "the kernel does not"))?;
    let ClassAttentionLayout { most_heads, each, clusters, shared_bytes } = layout;
    let AttentionSizes { images, heads, keys, .. } = of.sizes;
    let entry = CLASS_HEADS.iter().position(|&most| most == most_heads).expect("one of the kernels, by the layout");
    let [queries, of_keys, values] = of.parts.map(|part| matrix + (part * of.columns() * dtype.bytes()) as u64);
    let bias_of = |part: usize| match bias {
        Some(bias) => aligned("bias", bias + (part * size_of::<f32>()) as u64, 16),
        None => Ok(0),
    };
    let has = [norm_weight.is_some(), norm_bias.is_some()];
    if has != [of.norm.is_some(), of.norm.is_some_and(|norm| norm.bias)] {
        return Err(unsupported("vectors of the norm", format!("{has:?}"), "they are those of the operation"));
    }
    let given = |what, address: Option<u64>| address.map_or(Ok(0), |address| aligned(what, address, 16));
    let args = ClassAttentionArgs {
        x: aligned("x", x, 16)?,
        queries: aligned("matrix of queries", queries, 16)?,
        keys: aligned("matrix of keys", of_keys, 16)?,
        values: aligned("matrix of values", values, 16)?,
        query_bias: bias_of(of.parts[0])?,
        value_bias: bias_of(of.parts[2])?,
        norm_weight: given("factors of the norm", norm_weight)?,
        norm_bias: given("biases of the norm", norm_bias)?,
        y: aligned("y", y, 16)?,
        // As the layout has checked.
        images: images as i32,
        heads: heads as i32,
        tokens: keys as i32,
        query: of.query as i32,
        each: each as i32,
        scale: (f64::from(of.scale) * LOG2_E) as f32,
        centred: i32::from(of.norm.is_some_and(|norm| norm.centred)),
        epsilon: of.norm.map_or(0.0, |norm| norm.epsilon),
        per_column: (of.columns() as f32).recip(),
        ..ClassAttentionArgs::zeroed()
    };
    // The columns of a head in all rows, then those of the next head: 128 bytes of each row.
    let rows = TensorMap::Strided {
        address: args.x,
        dims: [of.sizes.dims, keys, heads, images].map(|dim| dim as u64),
        pitches: [of.columns(), of.sizes.dims, keys * of.columns()].map(|pitch| pitch as u64),
        box_dims: [of.sizes.dims, CLASS_KEYS, most_heads, 1].map(|dim| dim as u32),
        swizzle: Swizzle::Rows128,
    };
    Ok(Launch {
        entry: of_half(dtype, ENTRIES)?[entry].into(),
        grid: [product("blocks", &[clusters, heads])?, 1, 1],
        cluster: heads as u32,
        block: [THREADS, 1, 1],
        shared_bytes: shared_bytes as u32,
        args: ArgBytes::new(&args),
        maps: vec![rows],
        waits_itself: true,
    })
}

#[cfg(test)]
mod tests {
    use super::super::entries::tests::read;
    use super::*;
    use crate::model::{Conv2d, Window};
    use crate::plan::{Joined, JoinedNorm};

    const OPERANDS: ClassOperands = ClassOperands {
        dtype: Dtype::F16,
        x: 0x100,
        matrix: 0x1000,
        bias: Some(0x200),
        norm_weight: Some(0x400),
        norm_bias: Some(0x440),
        y: 0x300,
    };

    fn problem() -> ClassAttentionOp {
        let conv = Conv2d::named("qkv", 3 * 192, Window::square(1, 1, 0));
        ClassAttentionOp {
            sizes: AttentionSizes { images: 40, heads: 3, rows: 1, keys: 37, dims: 64 },
            query: 5,
            scale: 0.125,
            product: Joined { name: "qkv".into(), conv },
            parts: [192, 384, 0],
            bias: true,
            norm: Some(JoinedNorm { centred: true, epsilon: 0.5, bias: true }),
        }
    }

    fn of(change: impl Fn(&mut ClassAttentionOp, &mut ClassOperands)) -> Result<Launch, Error> {
        let (mut of, mut operands) = (problem(), OPERANDS);
        change(&mut of, &mut operands);
        launch(&of, &Limits::h200(), &operands)
    }

    #[test]
    fn constants_agree_with_the_source() {
        let source = read("sm90_class_attention.cu");
        let has = |line: &str| assert!(source.contains(line), "{line}");
        has("kWarps = 8, kProductThreads = kWarps * 32, kWeightWarps = 4;");
        has("kThreads = kProductThreads + kWeightWarps * 32;");
        assert_eq!(THREADS, 8 * 32 + 128);
        has("kDims = 64;");
        has("kImages = 16;");
        has(&format!("kKeys = {CLASS_KEYS};"));
        has("kStages = 6;");
        has("kSumPitch = 72, kScorePitch = 20;");
        has("kQueryPitch = 144, kWeightPitch = 48;");
        for (heads, name) in CLASS_HEADS.into_iter().zip(ENTRIES[0]) {
            has(&format!("TREFOIL_SM90_CLASS_ATTENTION({heads})"));
            assert_eq!(name, format!("sm90_class_attention_{heads}"));
        }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = of(|_, _| ()).unwrap();
        let args: ClassAttentionArgs = launch.args.read();
        assert_eq!([args.x, args.y], [0x100, 0x300]);
        let row = 2 * 192;
        assert_eq!([args.queries, args.keys, args.values], [0x1000 + 192 * row, 0x1000 + 384 * row, 0x1000]);
        assert_eq!([args.query_bias, args.value_bias], [0x200 + 4 * 192, 0x200]);
        assert_eq!([args.images, args.heads, args.tokens, args.query, args.each], [40, 3, 37, 5, 2]);
        assert_eq!(args.scale, (0.125 * LOG2_E) as f32);
        assert_eq!((&*launch.entry, launch.grid, launch.cluster), ("sm90_class_attention_4", [60, 1, 1], 3));
        assert_eq!([args.norm_weight, args.norm_bias], [0x400, 0x440]);
        assert_eq!((args.centred, args.epsilon, args.per_column), (1, 0.5, 1.0 / 192.0));
        let rows = TensorMap::Strided {
            address: 0x100,
            dims: [64, 37, 3, 40],
            pitches: [192, 64, 37 * 192],
            box_dims: [64, 16, 4, 1],
            swizzle: Swizzle::Rows128,
        };
        assert_eq!(launch.maps, [rows]);
        // Six parts of 16 rows of 4 heads; scores of 16 heads for each of 8 warps, twice; queries of 16 images; factors and
        // biases of 4 heads; sums of each warp, twice; barriers.
        let bytes = 6 * 16 * 4 * 128 + 2 * 8 * 16 * 20 * 4 + 16 * 144 + 2 * 4 * 64 * 4 + 2 * 8 * 16 * 8 + 8 * 14;
        assert_eq!((launch.block, launch.shared_bytes, launch.waits_itself), ([384, 1, 1], bytes, true));
        let args: ClassAttentionArgs = of(|_, operands| operands.bias = None).unwrap().args.read();
        assert_eq!([args.query_bias, args.value_bias], [0; 2]);
        let without = |of: &mut ClassAttentionOp, operands: &mut ClassOperands| {
            (of.norm, operands.norm_weight, operands.norm_bias) = (None, None, None);
        };
        let args: ClassAttentionArgs = of(without).unwrap().args.read();
        assert_eq!([args.norm_weight, args.norm_bias], [0; 2]);
    }

    #[test]
    fn heads_and_type_choose_the_kernel() {
        let entry = |heads, dtype| {
            let launch = of(|of, operands| {
                (of.sizes.heads, operands.dtype) = (heads, dtype);
                of.parts = [0, 64 * heads, 128 * heads];
                of.product.conv.out_channels = 192 * heads;
            });
            launch.map(|launch| (launch.entry.into_owned(), launch.shared_bytes))
        };
        let of_f16 = |heads| entry(heads, Dtype::F16).unwrap();
        assert_eq!([2, 4].map(of_f16), [4; 2].map(|most| (format!("sm90_class_attention_{most}"), 76_144)));
        assert_eq!([5, 8].map(of_f16), [8; 2].map(|most| (format!("sm90_class_attention_{most}"), 127_344)));
        assert_eq!([9, 12].map(of_f16), [12; 2].map(|most| (format!("sm90_class_attention_{most}"), 178_544)));
        assert_eq!([13, 16].map(of_f16), [16; 2].map(|most| (format!("sm90_class_attention_{most}"), 230_768)));
        assert_eq!(entry(12, Dtype::Bf16).unwrap(), ("sm90_class_attention_12_bf16".into(), 178_544));
        assert!(entry(17, Dtype::F16).is_err() && entry(12, Dtype::F32).is_err());
    }

    /// A part of a GPU may have no place for a cluster of more than eight blocks.
    #[test]
    fn large_clusters_need_a_whole_gpu() {
        let part = |units, heads| {
            let limits = Limits::gpu("a part", [9, 0], units, SM90_SHARED_BYTES as usize);
            let mut of = problem();
            (of.sizes.heads, of.parts) = (heads, [0, 64 * heads, 128 * heads]);
            of.product.conv.out_channels = 192 * heads;
            launch(&of, &limits, &OPERANDS).is_ok()
        };
        assert!([16, 60, 132].into_iter().all(|units| part(units, 8)) && part(132, 9));
        assert!(![16, 60, 114].into_iter().any(|units| part(units, 9)));
    }

    /// All clusters run at the same time while a block of each has no more than an image: of 16 blocks 7, of 3 blocks 35.
    #[test]
    fn clusters_have_equal_numbers_of_images() {
        let of_images = |heads: usize, images| {
            let launch = of(|of, _| {
                (of.sizes.heads, of.sizes.images) = (heads, images);
                of.parts = [0, 64 * heads, 128 * heads];
                of.product.conv.out_channels = 192 * heads;
            });
            let launch = launch.unwrap();
            let args: ClassAttentionArgs = launch.args.read();
            (args.each, launch.grid[0] / heads as u32)
        };
        assert_eq!([1, 7, 8, 64, 112].map(|images| of_images(16, images)), [(1, 1), (1, 7), (2, 4), (10, 7), (16, 7)]);
        assert_eq!([113, 128].map(|images| of_images(12, images)), [(9, 13), (10, 13)]);
        assert_eq!([105, 106].map(|images| of_images(3, images)), [(3, 35), (2, 53)]);
    }

    #[test]
    fn what_the_kernel_does_not_survive_is_refused() {
        assert!(of(|_, operands| operands.x = 0x108).is_err() && of(|_, operands| operands.y = 0).is_err());
        assert!(of(|_, operands| operands.matrix = 0x1008).is_err());
        assert!(of(|_, operands| operands.bias = Some(0x204)).is_err());
        assert!(of(|of, _| of.sizes.images = 0).is_err() && of(|of, _| of.sizes.images = 1 << 31).is_err());
        assert!(of(|of, _| of.sizes.heads = 1).is_err() && of(|of, _| of.sizes.heads = 0).is_err());
        assert!(of(|of, _| of.sizes.dims = 32).is_err() && of(|of, _| of.sizes.rows = 2).is_err());
        let epsilon = |epsilon| of(|of, _| of.norm.as_mut().unwrap().epsilon = epsilon);
        assert!(epsilon(0.0).is_err() && epsilon(f32::INFINITY).is_err() && epsilon(f32::NAN).is_err());
        assert!(of(|_, operands| operands.norm_weight = Some(0x408)).is_err());
        assert!(of(|_, operands| operands.norm_weight = None).is_err() && of(|of, _| of.norm = None).is_err());
        assert!(of(|of, _| of.query = 37).is_err() && of(|of, _| of.scale = f32::INFINITY).is_err());
        assert!(of(|of, _| of.parts[1] = 385).is_err() && of(|of, _| of.parts[1] = 448).is_err());
    }
}
