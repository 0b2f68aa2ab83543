//! Checks of a GPU: its properties, the kernels that it loads, whether they are right, and the speed of its link.

use std::fs;

use anyhow::Result;
use trefoil::graph::{Conv2d, GraphBuilder, Window};
use trefoil::model::{Model, Preprocessing, Weights};
use trefoil::plan::{Kernel, Plan};
use trefoil::{Device, Engine, OutputKind, Shape, Stage, TuningCache};

use super::{Check, host};
use crate::report::Spread;
use crate::{setup, smi};

/// Advice for a GPU that does not open while others do.
pub const LEAVE_OUT: &str = "leave it out by CUDA_VISIBLE_DEVICES, and look at `dmesg` and `nvidia-smi`";
/// Advice for a driver that fails.
pub const LOOK: &str = "look at `dmesg` and `nvidia-smi`";
const BATCH: usize = 64;
/// Number of copies by which the link is timed.
const COPIES: usize = 30;
/// A link is slow if it reaches less than this part of the rate of its lanes.
const GOOD_PART: f64 = 0.75;
/// Used memory beyond this part is worth a warning.
const MUCH_USED: f64 = 0.5;

/// All checks of one GPU.
pub fn examine(device: &Device) -> Vec<Check> {
    let info = device.info();
    let name = |what: &str| format!("{} {what}", info.target);
    let mut checks = vec![Check::ok(&info.target, setup::describe(info))];
    checks.extend(memory(device, &name("memory")));
    let engine = match trial(device) {
        Ok(engine) => engine,
        Err(error) => {
            let advice = "free GPU or host memory, look at `dmesg` and `nvidia-smi`";
            checks.push(Check::bad(&name("engine"), format!("{error:#}"), advice));
            return checks;
        }
    };
    checks.push(kernels(&name("kernels"), info.compute_capability, engine.plans()));
    checks.extend(TuningCache::of(device).map(|cache| judge_tuning(&name("tuning"), &cache)));
    let locked = device.memory_use().page_locked_bytes >> 20;
    checks.push(Check::ok(&name("page-locking"), format!("{locked} MiB of page-locked memory were given")));
    checks.push(match answers(&engine) {
        Ok(()) => Check::ok(&name("answers"), format!("{BATCH} rows came back unchanged")),
        Err(error) => {
            let advice = "use another GPU and driver; if the error persists, report it with this output";
            Check::bad(&name("answers"), format!("{error:#}"), advice)
        }
    });
    checks.push(match rates(&engine) {
        Ok(rates) => judge_link(&name("link"), rates, Link::of(device)),
        Err(error) => Check::bad(&name("link"), format!("{error:#}"), LOOK),
    });
    checks
}

/// Other processes that use the memory, by nvidia-smi.
fn memory(device: &Device, name: &str) -> Option<Check> {
    let id = smi::visible(device.info().target.strip_prefix("cuda:")?);
    let told = smi::query(&id, &["memory.used", "memory.total"])?;
    let [used, total] = [told[0].as_ref()?, told[1].as_ref()?].map(|mib| mib.parse::<f64>().ok());
    let (used, total) = (used?, total?);
    let found = format!("{:.1} of {:.1} GiB are in use", used / 1024.0, total / 1024.0);
    Some(match used / total {
        part if part > MUCH_USED => Check::warn(name, found, "`nvidia-smi` shows the processes that use it"),
        _ => Check::ok(name, found),
    })
}

/// An engine that returns its input: bytes go in, and the same values come out as numbers.
fn trial(device: &Device) -> Result<Engine> {
    const CHANNELS: usize = 3;
    let shape = Shape::new(224, 224, CHANNELS);
    let mut graph = GraphBuilder::new();
    let image = graph.image("image", shape);
    let same = Conv2d::named("same", CHANNELS, Window::square(1, 1, 0));
    let x = graph.conv2d_with("same", image, same);
    let filter = (0..CHANNELS * CHANNELS).map(|at| if at % (CHANNELS + 1) == 0 { 255.0 } else { 0.0 }).collect();
    let weights = Weights::from_tensors([("same.weight", vec![CHANNELS, CHANNELS, 1, 1], filter)])?;
    let preprocessing =
        Preprocessing { mean: vec![0.0; CHANNELS], std: vec![1.0; CHANNELS], ..Preprocessing::new(shape) };
    graph.output("y", x);
    let model = Model::new(graph.finish()?, weights, preprocessing, Vec::new())?;
    let builder = Engine::builder(&model).on(device).batch_sizes(&[BATCH]).output(OutputKind::Features);
    Ok(builder.slots(2).staging(2).results(2).build()?)
}

/// Runs rows of different bytes through the engine, and compares.
fn answers(engine: &Engine) -> Result<()> {
    let mut batch = engine.acquire()?;
    let byte = |row: usize, at: usize| (row * 31 + at * 7 + at / 251) as u8;
    for (index, row) in batch.rows_mut().enumerate() {
        row.iter_mut().enumerate().for_each(|(at, value)| *value = byte(index, at));
    }
    let output = batch.submit(BATCH)?.wait()?;
    for row in 0..BATCH {
        for (at, value) in output.values(row).iter().enumerate() {
            anyhow::ensure!(
                value.round() == f32::from(byte(row, at)),
                "row {row} has {value} at {at} instead of {}",
                byte(row, at)
            );
        }
    }
    Ok(())
}

/// GB/s to the device and from it, each direction alone.
fn rates(engine: &Engine) -> Result<[f64; 2]> {
    let rate = |stage, pitch: usize| -> Result<f64> {
        let seconds = Spread::of(&engine.measure(stage, BATCH, COPIES)?).map_or(f64::NAN, |spread| spread.median);
        Ok((BATCH * pitch) as f64 / seconds / 1e9)
    };
    Ok([rate(Stage::CopyIn, engine.input().row_pitch)?, rate(Stage::CopyOut, engine.output().row_pitch)?])
}

fn kernels(name: &str, [major, minor]: [u32; 2], plans: &[Plan]) -> Check {
    let sm90 = |kernel: &Kernel| matches!(kernel, Kernel::Sm90Conv { .. } | Kernel::Sm90Stem(_));
    let chosen = plans.iter().flat_map(|plan| &plan.steps).any(|step| sm90(&step.kernel));
    Check::ok(
        name,
        match (chosen || [major, minor] == [9, 0], major) {
            (true, _) => "the sm_90a cubins, beside PTX that the driver compiles".to_owned(),
            (false, _) => format!("PTX for 8.0, which the driver compiles for {major}.{minor}"),
        },
    )
}

/// Judges the measurements that earlier runs have kept.
fn judge_tuning(name: &str, cache: &TuningCache) -> Check {
    const MEASURE: &str = "`trefoil bench --model MODEL --batch N --tune full` on a GPU that has nothing else to do";
    let Some(folder) = &cache.folder else {
        return Check::warn(name, "there is no place to keep measurements in", "set TREFOIL_CACHE to a folder");
    };
    let TuningCache { answers, outdated, unreadable, .. } = cache;
    let mut found = format!("{answers} answers in {}", folder.display());
    if *outdated > 0 {
        found += &format!("; of another driver or version: {outdated}");
    }
    if let [first, ..] = unreadable.as_slice() {
        found += &format!("; ignored: {}", unreadable.len());
        return Check::warn(name, found, format!("remove {}, and measure again with {MEASURE}", first.display()));
    }
    match (answers, outdated) {
        (0, 0) => Check::ok(name, format!("nothing was measured; answers would be kept in {}", folder.display())),
        (0, _) => Check::warn(name, found, format!("measure again with {MEASURE}")),
        _ => Check::ok(name, found),
    }
}

/// Generation and lanes of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Link {
    generation: u32,
    most_generation: u32,
    width: u32,
    most_width: u32,
}

impl Link {
    /// The link as nvidia-smi gives it, else as /sys does if there is only one card. Call it right after copies: an
    /// idle link sleeps.
    fn of(device: &Device) -> Option<Self> {
        const FIELDS: [&str; 4] =
            ["pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max"];
        let id = smi::visible(device.info().target.strip_prefix("cuda:")?);
        let told = smi::query(&id, &FIELDS).and_then(|told| {
            let numbers: Option<Vec<u32>> = told.iter().map(|field| field.as_ref()?.parse().ok()).collect();
            numbers
        });
        let [generation, most_generation, width, most_width] = told.or_else(from_sys)?[..] else { return None };
        Some(Self { generation, most_generation, width, most_width })
    }

    /// GB/s of one direction, without the overhead of packets.
    fn carries(self) -> f64 {
        let lane = match self.generation {
            1 => 0.25,
            2 => 0.5,
            3 => 0.985,
            4 => 1.969,
            5 => 3.938,
            _ => 7.563,
        };
        lane * f64::from(self.width)
    }
}

/// The link of the only card, from /sys; `None` if there are several cards.
fn from_sys() -> Option<Vec<u32>> {
    let [card] = &host::nvidia_cards()[..] else { return None };
    let read = |file: &str| fs::read_to_string(card.join(file)).ok();
    let generation = |file: &str| {
        let text = read(file)?;
        let speeds = ["2.5 GT", "5.0 GT", "8.0 GT", "16.0 GT", "32.0 GT", "64.0 GT"];
        Some(speeds.iter().position(|speed| text.starts_with(speed))? as u32 + 1)
    };
    let width = |file: &str| read(file)?.trim().parse().ok();
    Some(vec![
        generation("current_link_speed")?,
        generation("max_link_speed")?,
        width("current_link_width")?,
        width("max_link_width")?,
    ])
}

fn judge_link(name: &str, [into, out]: [f64; 2], link: Option<Link>) -> Check {
    let measured = format!("{into:.1} GB/s to it, {out:.1} GB/s from it");
    let Some(link) = link else {
        return Check::ok(name, format!("{measured}; the PCIe link is unknown"));
    };
    // An idle link sleeps soon after its last copy, and then reports a lower rate than it has just carried.
    let asleep = into.max(out) > link.carries();
    let link = if asleep { Link { generation: link.most_generation, width: link.most_width, ..link } } else { link };
    let Link { generation, most_generation, width, most_width } = link;
    let found = format!("{measured}; PCIe {generation} x{width} carries {:.1}", link.carries());
    if width < most_width || generation < most_generation {
        let advice = "reseat the card, or put it into a slot that has all its lanes; see the BIOS and the riser";
        return Check::warn(name, format!("{found}, and it could be PCIe {most_generation} x{most_width}"), advice);
    }
    match into.min(out) / link.carries() {
        part if part < GOOD_PART => {
            let advice = "bind the process to the GPU's NUMA node (numactl), and see who else copies";
            Check::warn(name, found, advice)
        }
        _ => Check::ok(name, found),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn links_are_judged_by_their_lanes() {
        let full = Link { generation: 5, most_generation: 5, width: 16, most_width: 16 };
        let judged = |rates, link| judge_link("link", rates, link).verdict;
        assert_eq!(judged([55.0, 55.0], Some(full)), Verdict::Ok);
        assert_eq!(judged([55.0, 25.0], Some(full)), Verdict::Warn);
        assert_eq!(judged([27.0, 27.0], Some(Link { width: 8, ..full })), Verdict::Warn);
        assert_eq!(judged([27.0, 27.0], Some(Link { generation: 4, ..full })), Verdict::Warn);
        assert_eq!(judged([7.0, 7.0], Some(Link { generation: 2, width: 16, ..full })), Verdict::Warn);
        assert_eq!(judged([55.0, 55.0], Some(Link { generation: 1, ..full })), Verdict::Ok); // it sleeps
        assert_eq!(judged([25.0, 55.0], Some(Link { generation: 1, ..full })), Verdict::Warn);
        assert_eq!(judged([1.0, 1.0], None), Verdict::Ok);
        assert!((full.carries() - 63.0).abs() < 0.1);
    }
}
