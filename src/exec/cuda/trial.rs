//! Trials of tuning: the graphs of several plans for one model and batch size, timed in turns, and the times of a
//! graph's steps.

use std::sync::Arc;

use super::{BuildSpec, Material, Memory, UntilFault, states};
use crate::device::cuda::{Cuda, CudaGraph};
use crate::device::{Access, Device, DeviceBuffer, Event, HostBuffer, Noise, Note, StateBuffer};
use crate::error::Error;
use crate::model::Model;
use crate::phases::Stopwatch;
use crate::plan::Plan;

/// All that graphs of plans with the same weights need, and random rows as their input.
pub(in crate::exec) struct Trial {
    device: Device,
    material: Material,
    arena: DeviceBuffer,
    /// The graphs that were captured last. None of them is running between two calls.
    graphs: UntilFault<Vec<CudaGraph>>,
    input: DeviceBuffer,
    output: DeviceBuffer,
    states: Vec<StateBuffer>,
}

/// A graph that is timed for about as long as this without a pause, in seconds.
const STRETCH: f64 = 1e-3;
/// The most replays in such a stretch of time.
const MOST_REPLAYS: usize = 16;

impl Trial {
    /// A trial for `plans` of one batch size, and for other plans of the same graph that differ only in kernels.
    pub fn new(
        model: &Model,
        device: &Device,
        cuda: &Arc<Cuda>,
        spec: &BuildSpec,
        plans: &[Plan],
    ) -> Result<Self, Error> {
        let arena = super::arena(device, plans)?;
        let material = Material::new(model, device, cuda, spec.priority, plans, &mut Stopwatch::start())?;
        let plan = &plans[0];
        let input = DeviceBuffer::new(device, plan.input_bytes())?;
        let output = DeviceBuffer::new(device, plan.output_bytes())?;
        let states = states::new(device, plans, spec)?;
        let noise = HostBuffer::new(device, plan.input_bytes())?;
        // SAFETY: the buffer was just made, nothing else refers to it yet.
        let bytes = unsafe { noise.bytes_mut() };
        device.note(Note::Begin(noise.span(), Access::Write));
        let mut random = Noise::new();
        for row in bytes[..plan.input_bytes()].chunks_exact_mut(plan.input.row_pitch) {
            random.fill_row(row, &plan.input);
        }
        device.note(Note::End(noise.span()));
        let uploaded = Event::new(device)?;
        // SAFETY: both buffers outlive the copy, whose event is waited for below.
        unsafe { material.stream.copy_in(&input, &noise, plan.input_bytes())? };
        uploaded.record(&material.stream)?;
        uploaded.wait()?;
        let graphs = UntilFault::new(device, Vec::new());
        Ok(Self { device: device.clone(), material, arena, graphs, input, output, states })
    }

    /// Times the plans. Returns the seconds of a run of each, `[plan][round]`: in every round each plan is replayed for
    /// a while, in turns, so that a change of the clock affects all plans.
    pub fn rounds(&mut self, plans: &[Plan], rounds: usize) -> Result<Vec<Vec<f64>>, Error> {
        *self.graphs = plans.iter().map(|plan| self.capture(plan, &[])).collect::<Result<_, _>>()?;
        let count = self.graphs.len();
        let marks = || Ok([Event::with_timing(&self.device)?, Event::with_timing(&self.device)?]);
        let marks = self.graphs.iter().map(|_| marks()).collect::<Result<Vec<_>, Error>>()?;
        let mut seconds = vec![Vec::with_capacity(rounds); count];
        let mut replays = 1;
        // The first two rounds fill the caches and find out how long a run takes.
        for round in 0..rounds + 2 {
            for turn in 0..count {
                let index = (round + turn) % count;
                marks[index][0].record(&self.material.stream)?;
                (0..replays).try_for_each(|_| self.run(index))?;
                marks[index][1].record(&self.material.stream)?;
            }
            marks[(round + count - 1) % count][1].wait()?;
            let taken = marks.iter().map(|[start, end]| Ok(1e-3 * f64::from(end.ms_since(start)?) / replays as f64));
            let taken = taken.collect::<Result<Vec<f64>, Error>>()?;
            if round >= 2 {
                seconds.iter_mut().zip(&taken).for_each(|(all, one)| all.push(*one));
            } else {
                let least = taken.iter().copied().fold(f64::INFINITY, f64::min);
                replays = ((STRETCH / least.max(1e-9)).ceil() as usize).clamp(1, MOST_REPLAYS);
            }
        }
        Ok(seconds)
    }

    /// Times each step of `plan` by the marks in its graph. Returns the seconds `[step][run]`, with a last row for two
    /// marks with nothing in between. Every other run is without marks, so that each begins as in a row of runs.
    pub fn steps(&mut self, plan: &Plan, runs: usize) -> Result<Vec<Vec<f64>>, Error> {
        let marks = (0..plan.steps.len() + 2).map(|_| Event::with_timing(&self.device));
        let marks = marks.collect::<Result<Vec<_>, _>>()?;
        *self.graphs = vec![self.capture(plan, &[])?, self.capture(plan, &marks)?];
        let done = Event::new(&self.device)?;
        let mut seconds = vec![Vec::with_capacity(runs); marks.len() - 1];
        for _ in 0..runs {
            self.run(0)?;
            self.run(1)?;
            done.record(&self.material.stream)?;
            done.wait()?;
            for (taken, pair) in seconds.iter_mut().zip(marks.windows(2)) {
                taken.push(1e-3 * f64::from(pair[1].ms_since(&pair[0])?));
            }
        }
        Ok(seconds)
    }

    fn capture(&mut self, plan: &Plan, marks: &[Event]) -> Result<CudaGraph, Error> {
        if plan.arena_bytes > self.arena.len() {
            return Err(Error::Internal { what: "plans of one trial differ in more than kernels".into() });
        }
        let Self { material, input, output, arena, states, .. } = self;
        let launches = material.launches(plan, Memory { input, output, arena, states })?;
        material.capture(plan, &launches, marks)
    }

    fn run(&self, graph: usize) -> Result<(), Error> {
        // SAFETY: the stream is live, and all graphs of a trial go to it.
        self.device.latch(unsafe { self.graphs[graph].launch(self.material.stream.raw()) })
    }
}
