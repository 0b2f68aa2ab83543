//! Captures a plan's launches as a graph: each lane is a stream, forked and joined by events.

use super::launch::Launch;
use super::{Kernels, Material};
use crate::device::cuda::CudaGraph;
use crate::device::{Backend, Event, Stream};
use crate::error::Error;
use crate::plan::{Plan, Step};

impl Material {
    /// Captures the graph of one of the plans. `marks`, if there are any, are recorded in the graph: one before each
    /// step, and the rest behind the last. All steps are then in one lane, so that each runs alone.
    pub(super) fn capture(&mut self, plan: &Plan, launches: &[Launch], marks: &[Event]) -> Result<CudaGraph, Error> {
        match marks {
            [] => {
                while self.lane_streams.len() + 1 < plan.lanes() {
                    self.lane_streams.push(Stream::new(&self.device, self.priority, "trefoil-lane")?);
                }
                self.capture_lanes(plan, launches)
            }
            marks => self.kernels.capture_marked(&plan.steps, launches, &self.stream, marks),
        }
    }

    fn capture_lanes(&self, plan: &Plan, launches: &[Launch]) -> Result<CudaGraph, Error> {
        let (kernels, cuda) = (&self.kernels, &self.kernels.cuda);
        let of_lane = |lane: usize| plan.steps.iter().enumerate().filter(move |(_, step)| step.lane == lane);
        let lasts: Vec<usize> = (1..plan.lanes()).filter_map(|lane| Some(of_lane(lane).next_back()?.0)).collect();
        // Steps that begin a lane and wait for no step wait for the beginning of the graph.
        let firsts = (1..plan.lanes()).filter_map(|lane| of_lane(lane).next());
        let firsts: Vec<usize> = firsts.filter(|(_, step)| step.after.is_empty()).map(|(index, _)| index).collect();
        let is_awaited = |step: usize| plan.steps.iter().any(|other| other.after.contains(&step));
        // Only a step that another lane or the end of the graph waits for has an event.
        let event = |step| (is_awaited(step) || lasts.contains(&step)).then(|| Event::new(&self.device)).transpose();
        let ended: Vec<Option<Event>> = (0..plan.steps.len()).map(event).collect::<Result<_, _>>()?;
        let begun = (!firsts.is_empty()).then(|| Event::new(&self.device)).transpose()?;
        let waits = |stream: u64, event: &Event| {
            // SAFETY: both are live, and the event was recorded in this capture.
            unsafe { cuda.stream_wait(stream, event.raw()) }
        };
        let record = |event: &Event, stream: u64| {
            // SAFETY: both are live.
            unsafe { cuda.event_record(event.raw(), stream) }
        };
        CudaGraph::capture(cuda, self.stream.raw(), || {
            begun.iter().try_for_each(|begun| record(begun, self.stream.raw()))?;
            for (index, (step, launch)) in plan.steps.iter().zip(launches).enumerate() {
                let stream = self.lane(step.lane).raw();
                // A lane's stream becomes a part of the capture with its first wait.
                let begun = begun.iter().filter(|_| firsts.contains(&index));
                let sources = step.after.iter().filter_map(|&source| ended[source].as_ref());
                begun.chain(sources).try_for_each(|event| waits(stream, event))?;
                kernels.step(step, launch, stream)?;
                ended[index].iter().try_for_each(|event| record(event, stream))?;
            }
            // The graph waits for the lanes that no step waits for, so that the capture includes them.
            let open = lasts.iter().filter(|&&last| !is_awaited(last));
            open.filter_map(|&last| ended[last].as_ref()).try_for_each(|event| waits(self.stream.raw(), event))
        })
    }

    fn lane(&self, lane: usize) -> &Stream {
        lane.checked_sub(1).map_or(&self.stream, |lane| &self.lane_streams[lane])
    }
}

impl Kernels {
    fn capture_marked(
        &self,
        steps: &[Step],
        launches: &[Launch],
        stream: &Stream,
        marks: &[Event],
    ) -> Result<CudaGraph, Error> {
        let mark = |event: &Event| self.cuda.mark(event.raw(), stream.raw());
        let (before, behind) = marks.split_at(marks.len().min(steps.len()));
        CudaGraph::capture(&self.cuda, stream.raw(), || {
            for (index, (step, launch)) in steps.iter().zip(launches).enumerate() {
                before.get(index).map_or(Ok(()), mark)?;
                self.step(step, launch, stream.raw())?;
            }
            behind.iter().try_for_each(mark)
        })
    }

    /// Captures a step. Its kernel may begin before the previous step of its lane has ended, but not before steps of
    /// other lanes that it waits for.
    fn step(&self, step: &Step, launch: &Launch, stream: u64) -> Result<(), Error> {
        let _named = self.cuda.range(format_args!("{} \u{b7} {}", step.name, launch.entry));
        let early = launch.waits_itself && step.after.is_empty();
        // SAFETY: the addresses are of buffers that the program owns.
        unsafe { self.launch(&Launch { waits_itself: early, ..launch.clone() }, stream) }
    }
}
