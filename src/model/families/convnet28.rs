//! A small classifier of 28 x 28 pixels: five 3x3 convolutions, for tests and for learning how the parts fit.

use super::Architecture;
use crate::error::Error;
use crate::graph::{Graph, GraphBuilder, Window};
use crate::tensor::Shape;

/// The family's only member.
pub(super) static ALL: [ConvNet28; 1] = [ConvNet28];

pub(super) struct ConvNet28;

const CHANNELS: [usize; 5] = [32, 32, 64, 64, 128];
/// The convolutions, counted from 1, after which the image's sides are halved.
const POOL_AFTER: [usize; 2] = [2, 4];

impl Architecture for ConvNet28 {
    fn name(&self) -> &'static str {
        "trefoil_convnet28"
    }

    fn default_input(&self) -> Shape {
        Shape::new(28, 28, 1)
    }

    fn classifier(&self) -> &'static str {
        "fc"
    }

    fn graph(&self, num_classes: usize, input: Shape) -> Result<Graph, Error> {
        let mut g = GraphBuilder::new();
        let mut x = g.image("image", input);
        for (channels, i) in CHANNELS.into_iter().zip(1..) {
            x = g.conv2d(&format!("conv{i}"), x, channels, Window::square(3, 1, 1));
            x = g.batch_norm(&format!("bn{i}"), x, 1e-5);
            x = g.relu(&format!("relu{i}"), x);
            if POOL_AFTER.contains(&i) {
                x = g.max_pool(&format!("pool{i}"), x, Window::square(2, 2, 0));
            }
        }
        let x = g.global_avg_pool("avgpool", x);
        let x = g.linear("fc", x, num_classes);
        g.output("logits", x);
        g.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::images::Network;
    use crate::model::shape::infer;

    #[test]
    fn the_image_is_halved_twice() {
        let graph = Network::of(&ConvNet28.graph(10, Shape::new(28, 28, 1)).unwrap()).unwrap();
        let shapes = infer(&graph).unwrap();
        let shape = |name| shapes[graph.find(name).unwrap().0];
        assert_eq!(shape("pool2"), Shape::new(14, 14, 32));
        assert_eq!(shape("relu5"), Shape::new(7, 7, 128));
        assert_eq!(shape("fc"), Shape::vector(10));
    }
}
