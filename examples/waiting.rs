//! Measures the cost of submitting and waiting: for each way of waiting, the CPU time and the round trips of tiny
//! batches, compared with the same driver calls without the ring.
//!
//! ```sh
//! cargo run --release --example waiting [DEVICE [BATCHES [json]]]     # auto, cpu, cuda:0, …; default auto, 20000 batches
//! ```
//!
//! Each line has, for a batch: the CPU time of the thread that submits and waits, of the ring's own threads
//! (`trefoil-done-N`, `trefoil-up-N`), and of the process's other threads (a driver's callbacks; on the CPU device also
//! the work itself); then the median round trip, and by how much it is longer than that of a spinning waiter: the time
//! from the device's `done` to the waiter's running. The lines `bare` are the same driver calls on the same streams
//! without the ring, measured in turn with the ring; the ratio is the CPU time of all the ring's threads over theirs.
//! On a GPU the default way of waiting may take 1.3 times the CPU time of the bare calls; with more, the program fails.
//! With `json` the last line has the same figures as an object, for a record.

use std::collections::VecDeque;
use std::fs;
use std::time::Instant;

use serde_json::{Value, json};
use trefoil::graph::{Conv2d, GraphBuilder, Window};
use trefoil::model::{Model, Preprocessing, Weights};
use trefoil::{Device, Engine, Error, OutputKind, Shape, Target, Waiting};

/// The largest ratio of CPU time to that of the bare calls for the default way of waiting on a GPU.
const MOST: f64 = 1.3;

/// The results of a measurement.
pub struct Measured {
    /// CPU time over that of the bare calls, for the default way of waiting with one and with several batches in
    /// flight.
    pub ratios: Vec<f64>,
    /// All figures, for a record.
    pub record: Value,
}

impl Measured {
    /// Fails if the default way takes too much CPU time. On the CPU device the calls themselves take almost no time, so
    /// there is nothing to compare with.
    pub fn check(&self, device: &Device) {
        let most = if device.info().compute_capability == [0, 0] { f64::MAX } else { MOST };
        let ratios = &self.ratios;
        assert!(ratios.iter().all(|ratio| (0.0..=most).contains(ratio)), "{ratios:?} x the bare calls, at most {most}");
    }
}

/// A model with almost no work: one convolution of sixteen pixels.
fn tiny() -> Result<Model, Error> {
    let input = Shape::new(4, 4, 1);
    let mut graph = GraphBuilder::new();
    let image = graph.image("image", input);
    let x = graph.conv2d_with("echo", image, Conv2d::named("echo", 1, Window::square(1, 1, 0)));
    let weights = Weights::from_tensors([("echo.weight", vec![1, 1, 1, 1], vec![255.0])])?;
    graph.output("y", x);
    Model::new(graph.finish()?, weights, Preprocessing::new(input), Vec::new())
}

/// CPU seconds so far, of this thread, of the ring's own threads, and of the whole process.
#[derive(Clone, Copy, Default)]
struct Cpu {
    caller: f64,
    ring: f64,
    process: f64,
}

impl Cpu {
    fn now() -> Self {
        let mut ring = 0.0;
        for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            let id = task.file_name().to_str().and_then(|id| id.parse::<libc::clockid_t>().ok());
            if let Some(id) = id.filter(|_| name.starts_with("trefoil-done") || name.starts_with("trefoil-up")) {
                ring += clock(!id << 3 | 6); // the kernel's number for the CPU clock of one thread
            }
        }
        Self { caller: clock(libc::CLOCK_THREAD_CPUTIME_ID), ring, process: clock(libc::CLOCK_PROCESS_CPUTIME_ID) }
    }

    /// The CPU time of `run`, in microseconds for each of `batches`, and the result of `run`.
    fn of<T>(batches: usize, run: impl FnOnce() -> Result<T, Error>) -> Result<(Self, T), Error> {
        let start = Self::now();
        let done = run()?;
        let end = Self::now();
        let each = |a: f64, b: f64| (b - a) * 1e6 / batches as f64;
        let (caller, ring) = (each(start.caller, end.caller), each(start.ring, end.ring));
        Ok((Self { caller, ring, process: each(start.process, end.process) }, done))
    }
}

fn clock(id: libc::clockid_t) -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec; an unknown clock is an error, which leaves it as it is.
    unsafe { libc::clock_gettime(id, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Acquires, submits and waits with `ahead` batches in flight; returns the seconds of each batch.
fn ring(engine: &Engine, batches: usize, ahead: usize) -> Result<Vec<f64>, Error> {
    let mut took = Vec::with_capacity(batches);
    let mut flying = VecDeque::with_capacity(ahead);
    for index in 0..batches + ahead {
        if index >= ahead
            && let Some((began, ticket)) = flying.pop_front()
        {
            let ticket: trefoil::Ticket = ticket;
            let output = ticket.wait()?;
            let began: Instant = began;
            took.push(began.elapsed().as_secs_f64());
            assert_eq!(output.rows(), 1);
        }
        if index < batches {
            let began = Instant::now();
            flying.push_back((began, engine.acquire()?.submit(1)?));
        }
    }
    assert_eq!(took.len(), batches);
    Ok(took)
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_unstable_by(f64::total_cmp);
    seconds[seconds.len() / 2] * 1e6
}

/// Prints a line, and returns its figures for a record.
fn report(name: &str, cpu: Cpu, trip: f64, added: f64) -> Value {
    let Cpu { caller, ring, process } = cpu;
    let others = (process - caller - ring).max(0.0);
    println!("{name:<22} {caller:>9.2} {ring:>9.2} {others:>9.2} {trip:>11.2} {added:>9.2}");
    json!({ "caller": caller, "rings": ring, "others": others, "round_trip": trip, "added": added })
}

/// Runs all measurements and prints their lines.
pub fn measure(device: &Device, batches: usize) -> Result<Measured, Error> {
    const ROUNDS: usize = 5;
    let model = tiny()?;
    println!(
        "{}: {}, {batches} batches in {ROUNDS} turns; microseconds per batch",
        device.info().target,
        device.info().name
    );
    let (mut ratios, mut rows) = (Vec::new(), Vec::new());
    for ahead in [1, 3] {
        println!(
            "\n{:<22} {:>9} {:>9} {:>9} {:>11} {:>9}",
            format!("{ahead} in flight"),
            "caller",
            "ring's",
            "others",
            "round trip",
            "added"
        );
        let mut spun = [0.0; 2];
        for waiting in [Waiting::Spin, Waiting::Block, Waiting::Callback] {
            let builder = Engine::builder(&model).on(device).batch_sizes(&[1]).output(OutputKind::Features);
            let engine = builder.waiting(waiting).build()?;
            ring(&engine, batches / 10 + 1, ahead)?;
            engine.measure_calls(1, batches / 10 + 1, ahead)?;
            let (mut sums, mut trips) = ([Cpu::default(); 2], [Vec::new(), Vec::new()]);
            for _ in 0..ROUNDS {
                let each = batches.div_ceil(ROUNDS);
                let turns = [
                    Cpu::of(each, || ring(&engine, each, ahead))?,
                    Cpu::of(each, || engine.measure_calls(1, each, ahead))?,
                ];
                for (index, (cpu, took)) in turns.into_iter().enumerate() {
                    let Cpu { caller, ring, process } = &mut sums[index];
                    *caller += cpu.caller / ROUNDS as f64;
                    *ring += cpu.ring / ROUNDS as f64;
                    *process += cpu.process / ROUNDS as f64;
                    trips[index].extend(took);
                }
            }
            let medians = trips.map(median);
            if waiting == Waiting::Spin {
                spun = medians;
            }
            let name = format!("{waiting:?}");
            let of_ring = report(&name, sums[0], medians[0], medians[0] - spun[0]);
            let bare = report(&format!("{name}, bare"), sums[1], medians[1], medians[1] - spun[1]);
            let ratio = (sums[0].caller + sums[0].ring) / (sums[1].caller + sums[1].ring);
            println!("{:<22} {ratio:>9.2} x the bare calls", "");
            rows.push(json!({ "in_flight": ahead, "waiting": name, "ring": of_ring, "bare": bare, "ratio": ratio }));
            if waiting == Waiting::default() {
                ratios.push(ratio);
            }
            assert!(engine.health().is_ok(), "{}", engine.health());
        }
    }
    let record = json!({
        "example": "waiting", "device": device.info().target, "device_name": device.info().name, "batches": batches,
        "turns": ROUNDS, "unit": "us a batch", "default": format!("{:?}", Waiting::default()), "rows": rows,
    });
    Ok(Measured { ratios, record })
}

#[allow(dead_code, reason = "a test runs `measure`")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let target: Target = arguments.next().as_deref().unwrap_or("auto").parse()?;
    let batches = arguments.next().map_or(Ok(20_000), |count| count.parse())?;
    let device = Device::open(target)?;
    let measured = measure(&device, batches)?;
    println!("\nthe default way: {:.2} and {:.2} x the bare calls", measured.ratios[0], measured.ratios[1]);
    if arguments.next().is_some_and(|format| format == "json") {
        println!("{}", measured.record);
    }
    measured.check(&device);
    Ok(())
}
