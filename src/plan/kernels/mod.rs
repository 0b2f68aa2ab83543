//! Kernels as the planner sees them, each in a file of its own, and the list of them. Pure: no device, no file.

mod conv2d_fprop;
mod conv2d_s8;
mod conv_shape;
mod linear;
mod sm90_attention;
mod sm90_class_attention;
mod sm90_conv2d_chain;
mod sm90_conv2d_depthwise;
mod sm90_conv2d_expand;
mod sm90_conv2d_few;
mod sm90_conv2d_fprop;
mod sm90_conv2d_halo;
mod sm90_conv2d_s8;
mod sm90_linear;
mod sm90_mean_linear;
mod sm90_product;
mod sm90_product_e4m3;
mod sm90_recurrent;
mod sm90_row_norm;
mod sm90_squeeze_excite;
mod sm90_stem;
mod sm90_stem_s8;
mod sm90_stem_s8_runs;
mod sm90_tail;
#[cfg(test)]
mod toy;
mod without_tiles;

use std::fmt;

use super::context::{Context, Match};
#[cfg(feature = "cuda")]
use super::packing::PackedSum;
use super::work::{Operand, Work};
use super::{
    AttentionKernel, Choices, Family, Limits, ProductKernel, ProductTile, QuantizedConv, QuantizedDepthwise, Request,
    S8Kernel, StepOp, bytes,
};
use crate::error::Error;
use crate::model::{ByteWork, NodeId};
use crate::tensor::{Activation, Dtype};

pub(crate) use conv_shape::{ConvShape, check as check_sm90, out_size};
#[cfg(feature = "cuda")]
pub(crate) use conv_shape::{packed_channel, packed_channels};
pub use conv2d_fprop::ConvTile;
#[cfg(feature = "cuda")]
pub(crate) use conv2d_fprop::Pipeline;
pub use sm90_class_attention::ClassAttentionOp;
#[cfg(feature = "cuda")]
pub(crate) use sm90_class_attention::{CLASS_HEADS, CLASS_KEYS, ClassAttentionLayout};
pub use sm90_conv2d_chain::ChainTile;
#[cfg(feature = "cuda")]
pub(crate) use sm90_conv2d_chain::{ChainLayout, ChainShape};
pub use sm90_conv2d_depthwise::DepthwiseTile;
#[cfg(feature = "cuda")]
pub(crate) use sm90_conv2d_depthwise::{DepthwiseShape, MOST_THREADS, STATIC_BYTES, TILE_CHANNELS};
pub use sm90_conv2d_few::{FewOp, ImagesAt};
#[cfg(feature = "cuda")]
pub(crate) use sm90_conv2d_few::{FewTile, MOST_FEW_OUTPUTS, MOST_FEW_TAPS};
pub use sm90_conv2d_fprop::Sm90Tile;
pub(crate) use sm90_conv2d_halo::HaloTile;
#[cfg(feature = "cuda")]
pub(crate) use sm90_conv2d_halo::{CHANNELS as HALO_CHANNELS, PARTS as HALO_PARTS, STORED as HALO_STORED};
pub use sm90_linear::LinearTile;
#[cfg(feature = "cuda")]
pub(crate) use sm90_linear::{BOX_CHANNELS, LINEAR_OUTPUTS};
#[cfg(feature = "cuda")]
pub(crate) use sm90_mean_linear::MeanLinearShape;
#[cfg(feature = "cuda")]
pub(crate) use sm90_recurrent::{
    MOST_RECURRENT_BLOCKS, MOST_RECURRENT_THREADS, RECURRENT_ROWS, RECURRENT_STEPS, RecurrentLayout, RecurrentRead,
};
pub use sm90_recurrent::{RecurrentKind, RecurrentOp, RecurrentTile};
pub use sm90_squeeze_excite::{Gate, SqueezeExciteOp, SqueezeTile};
#[cfg(feature = "cuda")]
pub(crate) use sm90_squeeze_excite::{MOST_SQUEEZE_BLOCKS, SQUEEZE_LOADS, SQUEEZE_THREADS, SqueezeLayout};
#[cfg(feature = "cuda")]
pub(crate) use sm90_stem::StemLayers;
pub use sm90_stem::{Stem, StemTile};
#[cfg(feature = "cuda")]
pub(crate) use sm90_tail::{MOST_PIXELS, TAIL_THREADS, TAIL_UNIT, TailShape};
pub use sm90_tail::{Tail, TailTile};
#[cfg(all(test, feature = "cuda"))]
pub(crate) use toy::GPU as TOY_GPU;

/// A kernel as the planner sees it: what it computes, in which tiles, and how long that takes.
pub(crate) trait KernelDef: Sync {
    /// The stem of the file names: `kernels/NAME.cu` and the launcher's file.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "nothing is launched"))]
    fn name(&self) -> &'static str;

    /// Whether devices with these limits can run the kernel.
    fn runs_on(&self, limits: &Limits) -> bool {
        limits.has_sm90_kernels()
    }

    /// Whether the kernel is made for this operation and the types of its operands.
    fn takes(&self, work: &Work<'_>) -> bool;

    /// Whether the kernel applies this activation in the operations that it `takes`.
    fn applies(&self, activation: Activation) -> bool {
        activation.is_bound()
    }

    /// Whether `kernel` is one of this kernel's tiles.
    fn has(&self, kernel: Kernel) -> bool;

    /// The tiles in which the kernel computes work that it `takes`; empty if it cannot compute this work.
    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant>;

    /// Checks that the kernel computes work that it `takes` in a chosen tile, which may be none of its `variants`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] that says why it does not.
    fn check(&self, _work: &Work<'_>, _kernel: Kernel, _limits: &Limits) -> Result<(), Error> {
        Ok(())
    }

    /// Groups of nodes that the kernel can compute in one step, found at node `at`; the output rows are a node too.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a chosen kernel that cannot compute its node.
    fn matches(&self, _context: &Context<'_>, _at: NodeId) -> Result<Vec<Match>, Error> {
        Ok(Vec::new())
    }

    /// Bytes that its blocks read from the L2 cache: see [`Roofline::cache`](super::Roofline::cache).
    fn cache_bytes(&self, _work: &Work<'_>, _limits: &Limits) -> u64 {
        0
    }

    /// The weights as the kernel reads them, for each sum.
    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, work: &Work<'a>) -> Vec<PackedSum<'a>> {
        super::packing::usual(work)
    }
}

/// Every kernel. Of kernels with equal times, the first one in this list is chosen.
pub(crate) static KERNELS: &[&dyn KernelDef] = &[
    &without_tiles::Cpu,
    &conv2d_fprop::Conv2dFprop,
    &conv2d_s8::Conv2dS8,
    &sm90_conv2d_fprop::Sm90Conv2dFprop,
    &sm90_conv2d_halo::Sm90Conv2dHalo,
    &sm90_conv2d_s8::TILED,
    &sm90_conv2d_s8::HALO,
    &sm90_conv2d_chain::Sm90Conv2dChain,
    &sm90_conv2d_depthwise::Sm90Conv2dDepthwise,
    &sm90_conv2d_depthwise::Sm90Conv2dDepthwiseS8,
    &sm90_conv2d_expand::Sm90Conv2dExpand,
    &sm90_conv2d_few::Sm90Conv2dFew,
    &without_tiles::CONV2D_DEPTHWISE,
    &without_tiles::CONV2D_DEPTHWISE_S8,
    &linear::Linear,
    &sm90_linear::Sm90Linear,
    &sm90_stem::Sm90Stem,
    &sm90_stem_s8::Sm90StemS8,
    &sm90_stem_s8_runs::Sm90StemS8Runs,
    &sm90_tail::Sm90Tail,
    &sm90_mean_linear::Sm90MeanLinear,
    &sm90_product::Sm90Product,
    &sm90_product_e4m3::Sm90ProductE4m3,
    &sm90_attention::Sm90Attention,
    &sm90_class_attention::Sm90ClassAttention,
    &sm90_row_norm::Sm90RowNorm,
    &sm90_recurrent::Sm90Recurrent,
    &sm90_squeeze_excite::Sm90SqueezeExcite,
    &without_tiles::NORMALIZE,
    &without_tiles::POOL2D,
    &without_tiles::GLOBAL_AVG_POOL,
    &without_tiles::MEAN_S8,
    &without_tiles::ADD,
    &without_tiles::CONVERT,
    &without_tiles::EMIT,
    &without_tiles::Loops,
    #[cfg(test)]
    &toy::Toy,
];

/// A kernel with its tile, for some work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Variant {
    /// The kernel.
    pub(crate) kernel: Kernel,
    /// Predicted clocks of the busiest multiprocessor; `None` if there is no prediction.
    pub(crate) clocks: Option<f64>,
}

impl Variant {
    /// A variant that the tile model predicts.
    pub(super) const fn modelled((kernel, clocks): (Kernel, f64)) -> Self {
        Self { kernel, clocks: Some(clocks) }
    }
}

/// Whether a kernel is made for the operation of `work`, its operands and its activations.
fn computes(def: &dyn KernelDef, work: &Work<'_>) -> bool {
    def.takes(work) && work.activations().all(|of| def.applies(of))
}

/// Every way to compute some work on a device: kernels with their tiles.
pub(super) fn variants(work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
    let able = KERNELS.iter().filter(|def| def.runs_on(limits) && computes(**def, work));
    able.flat_map(|def| def.variants(work, limits)).collect()
}

/// Whether a kernel computes these layers in bytes.
pub(super) fn take_bytes(of: &ByteWork<'_>, request: &Request<'_>) -> bool {
    let (op, shapes) = match *of {
        ByteWork::Conv(conv, shapes) if conv.is_depthwise(shapes[0].channels) => {
            let of = QuantizedDepthwise { conv: conv.clone(), input_scale: 1.0, output_scale: 1.0 };
            (StepOp::QuantizedDepthwise(of), shapes)
        }
        ByteWork::Conv(conv, shapes) => (StepOp::QuantizedConv(QuantizedConv::plain(conv)), shapes),
        ByteWork::First { conv, pool, shapes: [image, between, result] } => {
            let stem = bytes::stem(conv, pool, between, 1.0, (request.input, request.preprocessing));
            let Some(stem) = stem else { return false };
            (StepOp::QuantizedStem(stem), [image, result])
        }
    };
    let [input, output] = shapes.map(|shape| Operand::activations(shape, Dtype::U8, request.limits.family));
    let (inputs, outputs) = (vec![input], vec![output]);
    !variants(&Work { name: "in bytes", op: &op, batch: 1, inputs, outputs }, request.limits).is_empty()
}

/// The variant with the fewest clocks, the first one if several have as many. A variant without a prediction only if
/// there is no other.
pub(super) fn best(work: &Work<'_>, limits: &Limits) -> Option<Variant> {
    let clocks = |variant: &Variant| variant.clocks.unwrap_or(f64::INFINITY);
    variants(work, limits).into_iter().min_by(|a, b| clocks(a).total_cmp(&clocks(b)))
}

/// The kernel of some work: the chosen one, or the best.
///
/// # Errors
/// [`Error::Unsupported`] if no kernel computes the work, or if the chosen one does not.
pub(super) fn choose(work: &Work<'_>, limits: &Limits, choices: &Choices) -> Result<Kernel, Error> {
    match choices.get(work.name) {
        Some(&kernel) if limits.family != Family::Cpu => {
            let def = of(work, kernel).filter(|def| def.runs_on(limits));
            def.ok_or_else(|| not_a_choice(work.name, kernel))?.check(work, kernel, limits).map(|()| kernel)
        }
        _ => best(work, limits).map(|variant| variant.kernel).ok_or_else(|| Error::Unsupported {
            what: format!("node `{}`: {}", work.name, work.key()),
            instead: "no kernel of this device computes it; run the model with `--device cpu`".into(),
        }),
    }
}

/// The definition of the kernel that computes some work; `None` if there is none.
pub(crate) fn of(work: &Work<'_>, kernel: Kernel) -> Option<&'static dyn KernelDef> {
    KERNELS.iter().copied().find(|def| def.has(kernel) && computes(*def, work))
}

/// Checks that a chosen kernel is one of its definition's variants.
///
/// # Errors
/// [`Error::Unsupported`] if it is not.
pub(super) fn check_variants(
    def: &dyn KernelDef,
    work: &Work<'_>,
    kernel: Kernel,
    limits: &Limits,
) -> Result<(), Error> {
    let mut variants = def.variants(work, limits).into_iter();
    if variants.any(|of| of.kernel == kernel) { Ok(()) } else { Err(not_a_choice(work.name, kernel)) }
}

/// The error for a chosen kernel that cannot compute its node.
pub(super) fn not_a_choice(name: &str, kernel: Kernel) -> Error {
    Error::Unsupported {
        what: format!("node `{name}`: the chosen kernel {kernel:?}"),
        instead: "choose one of the operation, for this device".into(),
    }
}

/// The kernel of a step, with its tile.
///
/// ```
/// use trefoil::plan::{Kernel, Limits, Sm90Tile};
/// let kernel = Kernel::Sm90Conv { tile: Sm90Tile { channels: 128, pixels: 256 }, cluster: 2 };
/// assert_eq!(kernel.to_string(), "sm90 128x256/2");
/// assert!(Kernel::of_convolutions(&Limits::h200()).contains(&kernel));
/// assert_eq!(Kernel::of_convolutions(&Limits::cpu(8)), [Kernel::Cpu]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// The one CPU kernel of the operation.
    Cpu,
    /// The one sm80 kernel of the operation.
    Sm80,
    /// The sm80 implicit-GEMM convolution (or linear layer) with a tile.
    Sm80Gemm(ConvTile),
    /// The sm90 convolution with a tile.
    Sm90Conv {
        /// The tile.
        tile: Sm90Tile,
        /// The number of blocks of a cluster, one of [`Sm90Tile::clusters`].
        cluster: usize,
    },
    /// The sm90 convolution with 3x3 windows and up to 64 channels, which copies pixels to shared memory once for all
    /// taps.
    Sm90Halo,
    /// A convolution of bytes.
    S8(S8Kernel),
    /// No kernel of its own. As a choice for a node: the convolution of a shortcut becomes part of the step of the
    /// convolution that adds its result.
    Joined,
    /// The sm90 kernel of two 1x1 convolutions, one behind the other, with a tile.
    Sm90Chain(ChainTile),
    /// The sm90 kernel of a network's first layers with a tile.
    Sm90Stem(StemTile),
    /// The sm90 kernel of a network's first layers, from bytes to bytes, with a tile.
    Sm90StemS8(StemTile),
    /// The same, for widths that are multiples of 16 up to 224 and 64 channels: the rows of all results in equal runs, three
    /// on each multiprocessor.
    Sm90StemS8Runs,
    /// The sm90 depthwise convolution with a tile.
    Sm90Depthwise(DepthwiseTile),
    /// The sm90 depthwise convolution of bytes with a tile.
    Sm90DepthwiseS8(DepthwiseTile),
    /// The sm90 kernel of a 1x1 convolution and the depthwise convolution that reads its result, with a tile.
    Sm90Expand(DepthwiseTile),
    /// The sm90 convolution of images of few channels.
    Sm90Few,
    /// The sm90 linear layer with a tile.
    Sm90Linear(LinearTile),
    /// The sm90 kernel of a network's last layers with a tile.
    Sm90Tail(TailTile),
    /// The sm90 kernel of a mean over pixels and the linear layer that reads it, for few images.
    Sm90MeanLinear,
    /// An sm90 product of rows with a matrix.
    Sm90Product(ProductKernel),
    /// An sm90 product of rows with a matrix, both of e4m3, with a tile.
    Sm90ProductE4m3(ProductTile),
    /// An sm90 attention kernel.
    Sm90Attention(AttentionKernel),
    /// The sm90 kernel of attention of one row and the product before it.
    Sm90ClassAttention,
    /// The sm90 norm of rows.
    Sm90RowNorm,
    /// The sm90 kernel of recurrent layers with a tile.
    Sm90Recurrent(RecurrentTile),
    /// The sm90 kernel of squeeze and excitation with a tile.
    Sm90SqueezeExcite(SqueezeTile),
    /// A loop: evaluated on a CPU, compiled from PTX on a GPU.
    Loop,
    /// A function over values, on a CPU.
    Hand,
    /// A kernel that only tests have, with the images of a block.
    #[cfg(test)]
    Toy(usize),
}

impl Kernel {
    /// Every kernel that can compute some dense convolution on `limits`.
    pub fn of_convolutions(limits: &Limits) -> Vec<Self> {
        let sm80 = ConvTile::ALL.into_iter().map(Self::Sm80Gemm);
        let sm90 = Sm90Tile::kernels().filter(|_| limits.has_sm90_kernels());
        match limits.family {
            Family::Cpu => vec![Self::Cpu],
            Family::Sm80 => sm80.chain(sm90).collect(),
        }
    }

    /// The kernel's name, followed by the stem of the operation if the name does not tell it.
    pub(super) fn title(self, stem: &str) -> String {
        let name = self.to_string();
        let says = match self {
            Self::Cpu | Self::Sm80 | Self::Sm80Gemm(_) | Self::Sm90Conv { .. } | Self::Sm90Halo | Self::Joined => false,
            Self::Loop | Self::Hand => true,
            Self::S8(_)
            | Self::Sm90Chain(_)
            | Self::Sm90Stem(_)
            | Self::Sm90StemS8(_)
            | Self::Sm90StemS8Runs
            | Self::Sm90Depthwise(_)
            | Self::Sm90DepthwiseS8(_)
            | Self::Sm90Expand(_)
            | Self::Sm90Few
            | Self::Sm90Linear(_)
            | Self::Sm90Tail(_)
            | Self::Sm90MeanLinear
            | Self::Sm90Product(_)
            | Self::Sm90ProductE4m3(_)
            | Self::Sm90Attention(_)
            | Self::Sm90ClassAttention
            | Self::Sm90RowNorm
            | Self::Sm90Recurrent(_)
            | Self::Sm90SqueezeExcite(_) => true,
            #[cfg(test)]
            Self::Toy(_) => false,
        };
        match name.split_once(' ') {
            _ if says => name,
            Some((family, tile)) => format!("{family} {stem} {tile}"),
            None => format!("{name} {stem}"),
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => write!(f, "cpu"),
            Self::Sm80 => write!(f, "sm80"),
            Self::Sm80Gemm(tile) => write!(f, "sm80 {tile}"),
            Self::Sm90Conv { tile, cluster: 1 } => write!(f, "sm90 {tile}"),
            Self::Sm90Conv { tile, cluster } => write!(f, "sm90 {tile}/{cluster}"),
            Self::Sm90Halo => write!(f, "sm90 halo"),
            Self::S8(kernel) => write!(f, "{kernel}"),
            Self::Joined => write!(f, "joined"),
            Self::Loop => write!(f, "loop"),
            Self::Hand => write!(f, "by hand"),
            Self::Sm90Chain(tile) => write!(f, "sm90 chain {tile}"),
            Self::Sm90Stem(tile) => write!(f, "sm90 stem {tile}"),
            Self::Sm90StemS8(tile) => write!(f, "sm90 s8 stem {tile}"),
            Self::Sm90StemS8Runs => write!(f, "sm90 s8 stem runs"),
            Self::Sm90Depthwise(tile) => write!(f, "sm90 depthwise {tile}"),
            Self::Sm90DepthwiseS8(tile) => write!(f, "sm90 s8 depthwise {tile}"),
            Self::Sm90Expand(tile) => write!(f, "sm90 expand {tile}"),
            Self::Sm90Few => write!(f, "sm90 few"),
            Self::Sm90Linear(tile) => write!(f, "sm90 linear {tile}"),
            Self::Sm90Tail(tile) => write!(f, "sm90 tail {tile}"),
            Self::Sm90MeanLinear => write!(f, "sm90 mean linear"),
            Self::Sm90Product(kernel) => write!(f, "{kernel}"),
            Self::Sm90ProductE4m3(tile) => {
                write!(f, "sm90 e4m3 product {}x{}{}", tile.n, tile.m, if tile.adds_up() { ", long" } else { "" })
            }
            Self::Sm90Attention(kernel) => write!(f, "{kernel}"),
            Self::Sm90ClassAttention => write!(f, "sm90 class attention"),
            Self::Sm90RowNorm => write!(f, "sm90 row norm"),
            Self::Sm90Recurrent(tile) => write!(f, "sm90 recurrent {tile}"),
            Self::Sm90SqueezeExcite(tile) => write!(f, "sm90 squeeze-excite {tile}"),
            #[cfg(test)]
            Self::Toy(images) => write!(f, "toy {images}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::images::Network;
    use crate::model::{Preprocessing, architecture};
    use crate::plan::{Plan, Request, StepOp, plan};
    use crate::tensor::{Dtype, InputFormat, OutputKind};

    fn planned(limits: &Limits, name: &str) -> Plan {
        let graph = Network::of(&architecture(name, 1000, None).unwrap()).unwrap();
        let (input, output, choices) = (InputFormat::U8Nhwc, OutputKind::TopK(5), Choices::new());
        let preprocessing = &Preprocessing::new(graph.input);
        plan(&graph, &Request { limits, batch: 128, input, preprocessing, output, choices: &choices }).unwrap()
    }

    const FAMILIES: [&str; 3] = ["resnet50", "efficientnet_lite0", "googlenet"];

    #[test]
    fn every_step_has_one_kernel_in_the_list() {
        for limits in [Limits::cpu(2), Limits::a100(), Limits::h200()] {
            for plan in FAMILIES.map(|name| planned(&limits, name)) {
                for step in &plan.steps {
                    let work = plan.work(step);
                    let able = KERNELS.iter().filter(|def| def.has(step.kernel) && def.takes(&work));
                    assert_eq!(able.count(), 1, "{}: {}", step.name, step.kernel);
                    assert!(variants(&work, &limits).iter().any(|variant| variant.kernel == step.kernel));
                }
            }
        }
    }

    /// Rows that a plan reads may have any type; its result and the tensors between steps may not.
    #[test]
    fn operands_of_another_type_have_no_kernel_on_a_gpu() {
        for limits in [Limits::a100(), Limits::h200()] {
            for plan in FAMILIES.map(|name| planned(&limits, name)) {
                for step in &plan.steps {
                    let mut of_u8 = plan.work(step);
                    of_u8.outputs[0].dtype = Dtype::U8;
                    let mut from_f32 = plan.work(step);
                    from_f32.inputs[0].dtype = Dtype::F32;
                    let touches_rows = matches!(step.op, StepOp::Normalize { .. } | StepOp::Emit(_));
                    for work in [of_u8].into_iter().chain((!touches_rows).then_some(from_f32)) {
                        assert!(variants(&work, &limits).is_empty(), "{}", step.name);
                        assert!(of(&work, step.kernel).is_none(), "{}", step.name);
                    }
                }
            }
        }
    }
}
