//! Layers of images: values `[rows, height, width, channels]` of f32.

use super::{BatchNorm, Conv2d, batch_norm};
use crate::graph::builder::GraphBuilder;
use crate::graph::expr::Expr;
use crate::graph::op::{Conv, Op, Pool, PoolOp, Reduce, ReduceOp, Window};
use crate::graph::value::ValueId;
use crate::tensor::{Dtype, Shape};

/// Layers of images: of values `[rows, height, width, channels]` of f32, such as an [`image`](Self::image). Another value is
/// a mistake, and so is a window that does not fit.
impl GraphBuilder {
    /// Adds an input that is one image, `[1, height, width, channels]` of f32, as
    /// [`Model::new`](crate::model::Model::new) requires it.
    ///
    /// ```
    /// use trefoil::{Shape, graph::GraphBuilder};
    /// let mut g = GraphBuilder::new();
    /// let x = g.image("image", Shape::new(28, 28, 1));
    /// assert_eq!(g.value(x).to_string(), "f32[1,28,28,1]");
    /// ```
    pub fn image(&mut self, name: &str, shape: Shape) -> ValueId {
        self.input(name, Dtype::F32, &[1, shape.height, shape.width, shape.channels])
    }

    /// Adds a dense convolution without bias, of the weight `{name}.weight`: `[rows, height', width', out_channels]`.
    ///
    /// ```
    /// use trefoil::{Shape, graph::{GraphBuilder, Window}};
    /// let mut g = GraphBuilder::new();
    /// let x = g.image("image", Shape::new(224, 224, 3));
    /// let x = g.conv2d("conv1", x, 64, Window::square(7, 2, 3));
    /// assert_eq!(g.value(x).dims, [1, 112, 112, 64]);
    /// ```
    pub fn conv2d(&mut self, name: &str, x: ValueId, out_channels: usize, window: impl Into<Window>) -> ValueId {
        self.conv2d_with(name, x, Conv2d::named(name, out_channels, window))
    }

    /// Adds a convolution with any attributes: a bias, groups, other tensor names.
    ///
    /// ```
    /// use trefoil::{Shape, graph::{Conv2d, GraphBuilder, Window}};
    /// let mut g = GraphBuilder::new();
    /// let x = g.image("image", Shape::new(8, 8, 16));
    /// let depthwise = Conv2d { groups: 16, ..Conv2d::named("dw", 16, Window::square(3, 1, 1)) };
    /// let x = g.conv2d_with("dw", x, depthwise);
    /// g.output("y", x);
    /// let graph = g.finish()?;
    /// let (name, of) = graph.weights().next().unwrap();
    /// assert_eq!((name, &of.dims[..]), ("dw.weight", &[16, 1, 3, 3][..]));
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn conv2d_with(&mut self, name: &str, x: ValueId, conv: Conv2d) -> ValueId {
        let [.., channels] = match self.of_image(name, x) {
            Ok(dims) => dims,
            Err(broken) => return broken,
        };
        let Conv2d { out_channels, window, groups, filter, bias } = conv;
        let each = channels.checked_div(groups).unwrap_or(channels);
        let filter = self.parameter(&filter, &[&[out_channels, each], &window.size[..]].concat());
        let bias = bias.map(|bias| self.parameter(&bias, &[out_channels]));
        self.node(name, Op::Conv(Conv { window, groups }), &[&[x, filter], bias.as_slice()].concat())
    }

    /// Adds an inference-mode batch norm over channels, of the weights `{name}.weight`, `.bias`, `.running_mean` and
    /// `.running_var`: (x - mean) / sqrt(variance + eps) x weight + bias.
    ///
    /// ```
    /// use trefoil::{Shape, graph::{GraphBuilder, Window}};
    /// let mut g = GraphBuilder::new();
    /// let x = g.image("image", Shape::new(8, 8, 3));
    /// let x = g.conv2d("conv", x, 16, Window::square(3, 1, 1));
    /// let x = g.batch_norm("bn", x, 1e-5);
    /// g.output("y", x);
    /// let graph = g.finish()?;
    /// assert_eq!(graph.weights().last().unwrap().0, "bn.running_var");
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn batch_norm(&mut self, name: &str, x: ValueId, eps: f64) -> ValueId {
        self.batch_norm_with(name, x, BatchNorm::named(name, eps))
    }

    /// Adds a batch norm with other tensor names. An eps that is negative or not finite is a mistake.
    pub fn batch_norm_with(&mut self, name: &str, x: ValueId, norm: BatchNorm) -> ValueId {
        let channels = match self.channels(name, x) {
            Ok(channels) => channels,
            Err(broken) => return broken,
        };
        let BatchNorm { gamma, beta, mean, var, eps } = norm;
        if !(eps.is_finite() && eps >= 0.0) {
            return self.refused(name, &format!("eps: expected a finite number from 0 up, found {eps}"));
        }
        let [gamma, beta, mean, var] = [gamma, beta, mean, var].map(|vector| self.parameter(&vector, &[channels]));
        self.map(name, batch_norm(eps), &[x, gamma, beta, mean, var])
    }

    /// Adds the elementwise sum of two values of one shape.
    pub fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        if self.is_known(a) && self.is_known(b) && self.value(a) != self.value(b) {
            let [a, b] = [a, b].map(|id| self.value(id).to_string());
            return self.refused(name, &format!("operands of one shape expected, found {a} and {b}"));
        }
        self.map(name, Expr::arg(0) + Expr::arg(1), &[a, b])
    }

    /// Adds the maximum over windows; padding never wins.
    ///
    /// ```
    /// use trefoil::{Shape, graph::{GraphBuilder, Window}};
    /// let mut g = GraphBuilder::new();
    /// let x = g.image("image", Shape::new(8, 8, 4));
    /// let same = Window { pad: vec![[0, 1]; 2], ..Window::square(3, 2, 0) }; // as TensorFlow pads
    /// let x = g.max_pool("pool", x, same);
    /// assert_eq!(g.value(x).dims, [1, 4, 4, 4]);
    /// ```
    pub fn max_pool(&mut self, name: &str, x: ValueId, window: impl Into<Window>) -> ValueId {
        self.pooled(name, x, Pool { op: PoolOp::Max, window: window.into() })
    }

    /// Adds the mean over windows; `count_pad` says whether padded pixels count in the divisor.
    pub fn avg_pool(&mut self, name: &str, x: ValueId, window: impl Into<Window>, count_pad: bool) -> ValueId {
        let op = if count_pad { PoolOp::MeanOfTaps } else { PoolOp::Mean };
        self.pooled(name, x, Pool { op, window: window.into() })
    }

    /// Adds the mean over all pixels: `[rows, 1, 1, channels]`.
    pub fn global_avg_pool(&mut self, name: &str, x: ValueId) -> ValueId {
        match self.of_image(name, x) {
            Ok(_) => self.node(name, Op::Reduce(Reduce { op: ReduceOp::Mean, axes: vec![1, 2], keep: true }), &[x]),
            Err(broken) => broken,
        }
    }

    /// Adds the channels of several values, one after the other; all their other dimensions are the same.
    ///
    /// ```
    /// use trefoil::{Shape, graph::{GraphBuilder, Window}};
    /// let mut g = GraphBuilder::new();
    /// let x = g.image("image", Shape::new(8, 8, 16));
    /// let a = g.conv2d("a", x, 24, Window::square(1, 1, 0));
    /// let b = g.conv2d("b", x, 8, Window::square(3, 1, 1));
    /// let both = g.concat("both", &[a, b]);
    /// assert_eq!(g.value(both).dims, [1, 8, 8, 32]);
    /// ```
    pub fn concat(&mut self, name: &str, values: &[ValueId]) -> ValueId {
        let axes = values.first().filter(|&&first| self.is_known(first)).map_or(0, |&first| self.value(first).rank());
        self.node(name, Op::Concat(axes.saturating_sub(1)), values)
    }

    fn pooled(&mut self, name: &str, x: ValueId, pool: Pool) -> ValueId {
        match self.of_image(name, x) {
            Ok(_) => self.node(name, Op::Pool(pool), &[x]),
            Err(broken) => broken,
        }
    }

    /// The dimensions of an image; for a value that is none, the error is the value that stands for the layer's result.
    fn of_image(&mut self, name: &str, x: ValueId) -> Result<[usize; 4], ValueId> {
        self.channels(name, x)?;
        <[usize; 4]>::try_from(&self.value(x).dims[..]).map_err(|_| {
            let found = self.value(x).to_string();
            self.refused(name, &format!("expected f32[rows,height,width,channels], found {found}"))
        })
    }
}
