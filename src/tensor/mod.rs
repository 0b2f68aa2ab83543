//! Element types, image shapes, rows, and the formats of an engine's inputs and outputs.

mod element;
mod row;
mod size;

use std::f32::consts::FRAC_1_SQRT_2;
use std::fmt;

pub use element::Element;
pub use row::{Padding, PortKey, ROW_ALIGN, RowPort, RowSpec};
pub(crate) use size::{Bucket, Dims};
pub use size::{Packing, Size};

/// The type of one tensor element.
///
/// ```
/// use trefoil::Dtype;
/// assert_eq!((Dtype::F16.bytes(), Dtype::F16.to_string()), (2, "f16".to_string()));
/// assert!(Dtype::Bf16.is_float() && !Dtype::I64.is_float());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dtype {
    /// A byte that is 0 or 1.
    Bool,
    /// Unsigned byte.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
    /// Signed byte, two's complement.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// IEEE half precision.
    F16,
    /// The upper half of an IEEE single.
    Bf16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
}

impl Dtype {
    /// Every type.
    ///
    /// ```
    /// use trefoil::Dtype;
    /// assert_eq!(Dtype::ALL.iter().filter(|dtype| dtype.is_float()).count(), 4);
    /// ```
    pub const ALL: [Self; 13] = [
        Self::Bool,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F16,
        Self::Bf16,
        Self::F32,
        Self::F64,
    ];

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Whether it is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64)
    }

    /// Whether it is an integer type; `bool` is not.
    pub const fn is_integer(self) -> bool {
        !self.is_float() && !matches!(self, Self::Bool)
    }

    /// Whether the type has negative numbers.
    pub const fn is_signed(self) -> bool {
        self.is_float() || matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bool => "bool",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
        })
    }
}

/// Height, width and channels of one image or activation; a vector of C features is 1 x 1 x C.
///
/// ```
/// use trefoil::Shape;
/// let shape = Shape::new(7, 7, 512);
/// assert_eq!((shape.pixels(), shape.elems()), (49, 25_088));
/// assert_eq!(Shape::vector(512), Shape { height: 1, width: 1, channels: 512 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Height in pixels.
    pub height: usize,
    /// Width in pixels.
    pub width: usize,
    /// Values of a pixel.
    pub channels: usize,
}

impl Shape {
    /// A shape of `height` x `width` x `channels`.
    pub const fn new(height: usize, width: usize, channels: usize) -> Self {
        Self { height, width, channels }
    }

    /// A vector of `channels` features.
    pub const fn vector(channels: usize) -> Self {
        Self::new(1, 1, channels)
    }

    /// Pixels: height x width.
    pub const fn pixels(self) -> usize {
        self.height * self.width
    }

    /// Elements: height x width x channels.
    pub const fn elems(self) -> usize {
        self.pixels() * self.channels
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.height, self.width, self.channels)
    }
}

/// How the rows that a producer writes are laid out.
///
/// ```
/// use trefoil::{Dtype, InputFormat};
/// assert_eq!(InputFormat::default(), InputFormat::U8Nhwc);
/// assert_eq!(InputFormat::F32Nchw.dtype(), Dtype::F32);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum InputFormat {
    /// Bytes 0-255, channels innermost, as decoders give them. Normalised on the device.
    #[default]
    U8Nhwc,
    /// Floats already normalised, one plane for each channel, as PyTorch has them.
    F32Nchw,
    /// Halves already normalised, channels innermost.
    F16Nhwc,
    /// Floats already normalised, channels innermost: the format in which one model passes its result to another.
    F32Nhwc,
}

impl InputFormat {
    /// The element type.
    pub const fn dtype(self) -> Dtype {
        match self {
            Self::U8Nhwc => Dtype::U8,
            Self::F32Nchw | Self::F32Nhwc => Dtype::F32,
            Self::F16Nhwc => Dtype::F16,
        }
    }
}

impl fmt::Display for InputFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U8Nhwc => "u8 NHWC",
            Self::F32Nchw => "f32 NCHW",
            Self::F16Nhwc => "f16 NHWC",
            Self::F32Nhwc => "f32 NHWC",
        })
    }
}

/// The type in which layers read their operands: convolutions and products of matrices, whose operands are f32 in the model.
///
/// Their sums are f32, and so is every other value that is f32 in the model. A GPU's kernel that computes a layer together
/// with the operations behind it may round its result to the same type. Where a device has no kernel for a type, loops
/// compute in it; next to kernels of f16 the loops of a GPU compute in f32.
///
/// ```
/// use trefoil::{Device, Dtype, Engine, Precision, Target, model::Model};
/// let model = Model::open("weights/convnet28")?;
/// let cpu = Device::open(Target::Cpu)?;
/// let engine = Engine::builder(&model).on(&cpu).precision(Precision::Bf16).build()?;
/// assert!(engine.plans()[0].constants.iter().any(|constant| constant.of.dtype == Dtype::Bf16));
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// The device's own: f16 on a GPU, in kernels for tensor cores where there are some; f32 on the CPU.
    #[default]
    Auto,
    /// f16. Numbers beyond 65,504 become infinite.
    F16,
    /// bf16, which has the range of f32, and 8 bits of precision where f16 has 11.
    Bf16,
    /// f32.
    F32,
    /// The checkpoint's: of f16, bf16 and f32 the type that most elements of the model's weights are stored in.
    Checkpoint,
}

impl Precision {
    /// Resolves the option: `own` is the device's type, `stored` the checkpoint's.
    pub(crate) const fn dtype(self, own: Dtype, stored: Dtype) -> Dtype {
        match self {
            Self::Auto => own,
            Self::F16 => Dtype::F16,
            Self::Bf16 => Dtype::Bf16,
            Self::F32 => Dtype::F32,
            Self::Checkpoint => stored,
        }
    }
}

/// What a row of a network of images gives. All kinds but [`OutputKind::Features`] need a result that is a vector. A
/// model of values ignores the kind: its rows hold its outputs.
///
/// ```
/// use trefoil::{Device, Engine, OutputKind, Target};
/// # let model = trefoil::model::Model::open("weights/convnet28")?;
/// let cpu = Device::open(Target::Cpu)?;
/// let engine = Engine::builder(&model).on(&cpu).output(OutputKind::TopK(3)).build()?;
/// assert_eq!(engine.output().row_bytes, 3 * (4 + 4));
/// let mut batch = engine.acquire()?;
/// batch.row_mut(0).fill(0);
/// assert_eq!(batch.submit(1)?.wait()?.top_k(0, 3)?.len(), 3);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum OutputKind {
    /// The network's result, without a softmax at its end: f32, one for each class.
    Logits,
    /// Softmax of the logits: f32, one for each class.
    #[default]
    Probabilities,
    /// The k most probable classes, best first, ties by the lower index: k x (f32 probability, u32 index).
    TopK(usize),
    /// What the last layer reads, if it is a linear layer; otherwise, and for a model that was cut, the network's
    /// result, also of several pixels: f32, NHWC.
    Features,
}

impl OutputKind {
    /// The shape of what is written of a result of this shape. Top-k pairs count as two f32-sized channels each.
    pub(crate) const fn of(self, result: Shape) -> Shape {
        match self {
            Self::TopK(k) => Shape::vector(2 * k),
            Self::Logits | Self::Probabilities | Self::Features => result,
        }
    }
}

/// The activation: a function of a sum, applied before the sum is stored.
///
/// ```
/// use trefoil::Activation;
/// assert_eq!([-1.0, 4.0, 8.0].map(|x| Activation::Relu6.apply(x)), [0.0, 4.0, 6.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// max(x, 0).
    Relu,
    /// min(max(x, 0), 6).
    Relu6,
    /// x / (1 + exp(-x)).
    Silu,
    /// x times the standard normal cumulative distribution function at x.
    Gelu,
}

impl Activation {
    /// The activation of `x`; NaN stays NaN.
    pub fn apply(self, x: f32) -> f32 {
        let relu = |x: f32| if x < 0.0 { 0.0 } else { x };
        match self {
            Self::None => x,
            Self::Relu => relu(x),
            Self::Relu6 => x.clamp(0.0, 6.0),
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::Gelu => 0.5 * x * (1.0 + libm::erff(x * FRAC_1_SQRT_2)),
        }
    }

    /// Whether the activation only clamps.
    pub(crate) const fn is_bound(self) -> bool {
        match self {
            Self::None | Self::Relu | Self::Relu6 => true,
            Self::Silu | Self::Gelu => false,
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Relu => "relu",
            Self::Relu6 => "relu6",
            Self::Silu => "silu",
            Self::Gelu => "gelu",
        })
    }
}
