//! A network of images that the calling thread computes, and that shows the values of each step.

use std::sync::Arc;

use super::network::{Arena, Desk, Images};
use super::packed::Packed;
use super::simd::Isa;
use crate::device::afford_on_host;
use crate::error::Error;
use crate::loops::Alone;
use crate::model::Model;
use crate::plan::{self, Choices, Limits, Plan, Request};
use crate::tensor::{Dtype, InputFormat, OutputKind, RowSpec};

/// A network, ready to run, with its arena.
pub(crate) struct Probe {
    plan: Arc<Plan>,
    images: Arc<Images>,
    arena: Arena,
    result: Vec<u32>,
}

impl Probe {
    /// A probe of `model`, with rows of bytes as input.
    pub fn new(model: &Model) -> Result<Self, Error> {
        let request = Request {
            limits: &Limits::cpu(1),
            batch: 1,
            input: InputFormat::U8Nhwc,
            preprocessing: model.preprocessing()?,
            output: OutputKind::Features,
            choices: &Choices::new(),
        };
        let plan = plan::plan(model.image_network()?, &request)?;
        let images = Images::new(&Packed::new(model.weights()), &plan, Isa::detect())?;
        Self::of(Arc::new(plan), Arc::new(images))
    }

    /// A second probe of the same network, for another thread.
    pub fn another(&self) -> Result<Self, Error> {
        Self::of(self.plan.clone(), self.images.clone())
    }

    /// Whether both are probes of the same network, one made from the other by `another`.
    pub fn is_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.images, &other.images)
    }

    fn of(plan: Arc<Plan>, images: Arc<Images>) -> Result<Self, Error> {
        let [bytes, elems] = images.memory();
        let needed = [elems.saturating_mul(size_of::<f32>()), plan.input.row_bytes, plan.output.row_bytes];
        let needed = needed.iter().fold(bytes as u64, |sum, &part| sum.saturating_add(part as u64));
        afford_on_host("a thread that calibrates", needed)?;
        let (arena, result) = (Arena::new(bytes, elems)?, vec![0; plan.output.row_bytes / size_of::<u32>()]);
        Ok(Self { plan, images, arena, result })
    }

    /// The input row.
    pub fn input(&self) -> &RowSpec {
        &self.plan.input
    }

    /// Computes the result of a row. After each step that writes floats, `seen` gets the step's name and the values of
    /// each pixel in turn.
    /// neighbours at a time.
    pub fn run(&mut self, row: &[u8], mut seen: impl FnMut(&str, &[f32])) -> &[f32] {
        assert_eq!(row.len(), self.plan.input.row_bytes);
        let plan = &self.plan;
        let see = |index: usize, written: &[u8]| {
            let step: &plan::Step = &plan.steps[index];
            let tensor = &plan.tensors[step.outputs[0].0];
            if tensor.dtype == Dtype::F32 {
                let pixels = bytemuck::cast_slice::<u8, f32>(written).chunks(tensor.pitch);
                pixels.for_each(|pixel| seen(&step.name, &pixel[..tensor.shape.channels]));
            }
        };
        let at = Desk { arenas: std::slice::from_ref(&self.arena), worker: 0, team: &Alone(0) };
        self.images.run_seen(row, &mut self.result, &at, see);
        bytemuck::cast_slice(&self.result)
    }
}
