//! A plan on an NVIDIA GPU: weights uploaded, and one captured graph for each slot and batch size.

mod pack;
mod steps;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{BuildSpec, plan_batch};
use crate::device::cuda::{Cuda, Function, Graph};
use crate::device::{Device, DeviceBuffer, Event, HostBuffer, Program, Run, Stream};
use crate::error::Error;
use crate::model::Model;
use crate::plan::Plan;
use pack::Region;
use steps::{Addresses, Launch};

/// A model on a GPU. It owns every buffer that its graphs address.
struct CudaProgram {
    batch_sizes: Vec<usize>,
    /// `[slot][size]`; dropped before the buffers they address.
    graphs: Vec<Vec<Graph>>,
    inputs: Vec<DeviceBuffer>,
    outputs: Vec<DeviceBuffer>,
    /// One for all slots and sizes: the compute stream runs one graph at a time.
    _arena: DeviceBuffer,
    _weights: DeviceBuffer,
    _functions: Functions,
}

/// The loaded kernels by entry name.
type Functions = BTreeMap<&'static str, Function>;

/// Plans every batch size, uploads the weights, allocates all buffers, loads all kernels and captures all graphs.
pub(super) fn build(
    model: &Model,
    device: &Device,
    cuda: &Arc<Cuda>,
    spec: &BuildSpec,
) -> Result<(Arc<dyn Program>, Vec<Plan>), Error> {
    let plans: Vec<Plan> =
        spec.batch_sizes.iter().map(|&batch| plan_batch(model, device, spec, batch)).collect::<Result<_, _>>()?;
    let largest = plans.last().expect("a spec has a batch size");
    let (regions, weight_bytes) = pack::regions(largest);
    let stream = Stream::new(device, spec.priority, "trefoil-build")?;
    let weights = DeviceBuffer::new(device, weight_bytes)?;
    let arena = DeviceBuffer::new(device, plans.iter().map(|plan| plan.arena_bytes).max().unwrap_or(0))?;
    let rows = |bytes: usize| (0..spec.slots).map(|_| DeviceBuffer::new(device, bytes)).collect::<Result<Vec<_>, _>>();
    let inputs = rows(largest.tensors[0].bytes)?;
    let outputs = rows(largest.tensors.last().expect("a plan has an output").bytes)?;
    upload(model, largest, &regions, &weights, &stream)?;

    let mut functions = Functions::new();
    let mut graphs = Vec::with_capacity(spec.slots);
    for (input, output) in inputs.iter().zip(&outputs) {
        let mut of_slot = Vec::with_capacity(plans.len());
        for plan in &plans {
            let addresses =
                Addresses { input: input.addr(), output: output.addr(), arena: arena.addr(), weights: weights.addr() };
            let launches = steps::launches(plan, &regions, &addresses)?;
            load(cuda, &launches, &mut functions)?;
            of_slot.push(capture(cuda, &stream, &launches, &functions)?);
        }
        graphs.push(of_slot);
    }
    let program = CudaProgram {
        batch_sizes: spec.batch_sizes.clone(),
        graphs,
        inputs,
        outputs,
        _arena: arena,
        _weights: weights,
        _functions: functions,
    };
    Ok((Arc::new(program), plans))
}

/// Packs all weights into page-locked memory and copies them once.
fn upload(
    model: &Model,
    plan: &Plan,
    regions: &[Option<Region>],
    weights: &DeviceBuffer,
    stream: &Stream,
) -> Result<(), Error> {
    let host = HostBuffer::new(stream.device(), weights.len())?;
    // SAFETY: the buffer was just made, nothing else refers to it yet.
    let bytes = unsafe { host.bytes_mut() };
    for (step, region) in plan.steps.iter().zip(regions) {
        if let Some(region) = region {
            pack::fill(model, plan, step, region, bytes)?;
        }
    }
    let uploaded = Event::new(stream.device())?;
    // SAFETY: both buffers outlive the copy, whose event is waited for below.
    unsafe { stream.copy_in(weights, &host, weights.len())? };
    uploaded.record(stream)?;
    uploaded.wait()
}

/// Loads the kernels that are not loaded yet.
fn load(cuda: &Arc<Cuda>, launches: &[Launch], functions: &mut Functions) -> Result<(), Error> {
    for launch in launches {
        if !functions.contains_key(launch.entry) {
            functions.insert(launch.entry, steps::function(cuda, launch)?);
        }
    }
    Ok(())
}

fn capture(cuda: &Arc<Cuda>, stream: &Stream, launches: &[Launch], functions: &Functions) -> Result<Graph, Error> {
    cuda.capture(stream.raw(), || {
        for launch in launches {
            let function = &functions[launch.entry];
            let Launch { grid, block, shared_bytes, args, .. } = launch;
            cuda.launch(function, *grid, *block, *shared_bytes, args.as_bytes(), stream.raw())?;
        }
        Ok(())
    })
}

impl Program for CudaProgram {
    fn slots(&self) -> usize {
        self.graphs.len()
    }

    fn batch_sizes(&self) -> &[usize] {
        &self.batch_sizes
    }

    fn input(&self, slot: usize) -> &DeviceBuffer {
        &self.inputs[slot]
    }

    fn output(&self, slot: usize) -> &DeviceBuffer {
        &self.outputs[slot]
    }

    fn launch(self: Arc<Self>, run: Run, stream: &Stream) -> Result<(), Error> {
        stream.device().latch(self.graphs[run.slot][run.size].launch(stream.raw()))
    }
}
