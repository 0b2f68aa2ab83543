//! The ring in virtual time: cases computed by hand, the same run twice, thousands of random rings, faults.

use trefoil::simulate::{Arrival, Effect, Injection, SimBatcher, SimReport, SimSpec};
use trefoil::{Error, Stage};

/// Simulates with the hazard checker, whose finding is an error.
fn simulate(spec: &SimSpec) -> Result<SimReport, Error> {
    trefoil::simulate::simulate(&SimSpec { checked: true, ..spec.clone() })
}

/// A run with links of 1 GB/s, without overhead or sharing: microseconds of a copy are its kilobytes.
fn spec(in_us: usize, compute_us: f64, out_us: usize, batches: usize) -> SimSpec {
    assert!((1000 * in_us).is_multiple_of(256) && (1000 * out_us).is_multiple_of(256), "rows would be padded");
    SimSpec {
        h2d_gbps: 1.0,
        d2h_gbps: 1.0,
        duplex_gbps: 1.0,
        copy_overhead_us: 0.0,
        input_bytes_per_row: 1000 * in_us,
        output_bytes_per_row: 1000 * out_us,
        batches,
        ..SimSpec::new(vec![(1, compute_us)])
    }
}

/// The run with one batch at a time.
fn serial(spec: SimSpec) -> SimSpec {
    SimSpec { slots: 1, staging: 1, results: 1, producers: 1, ahead: 0, ..spec }
}

fn makespan_us(spec: &SimSpec) -> f64 {
    sound(spec).makespan_s * 1e6
}

/// Simulates, and checks the properties of every run without a fault.
fn sound(spec: &SimSpec) -> SimReport {
    let report = simulate(spec).unwrap_or_else(|error| panic!("{error}\n{spec:#?}"));
    assert_eq!((report.submitted, report.answered, report.failed), (spec.batches, spec.batches, 0), "{spec:#?}");
    assert_eq!(report.fault, None);
    let credits = report.credits;
    assert_eq!((credits.filling, credits.in_flight, credits.unread, credits.quarantined), (0, 0, 0, 0), "{spec:#?}");
    for stage in [report.copy_in, report.compute, report.copy_out] {
        assert!(stage.busy_s <= report.makespan_s && stage.utilisation <= 1.0, "{report:#?}\n{spec:#?}");
    }
    report
}

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-9 * expected, "expected {expected}, found {found}");
}

#[test]
fn one_batch_at_a_time_takes_the_sum() {
    let spec = serial(spec(256, 1000.0, 128, 5));
    let report = sound(&spec);
    close(report.makespan_s * 1e6, 5.0 * (256.0 + 1000.0 + 128.0));
    close(report.serial_s, report.makespan_s);
    close(report.latency.p50_us, 1384.0);
    close(report.latency.max_us, 1384.0);
    close(report.copy_in.utilisation, 256.0 / 1384.0);
    close(report.compute.busy_s * 1e6, 5000.0);
    // Each copy has an overhead, and a producer takes time to fill a batch.
    close(makespan_us(&SimSpec { copy_overhead_us: 8.0, fill_us: 100.0, ..spec }), 5.0 * (1384.0 + 16.0 + 100.0));
}

#[test]
fn one_slot_uploads_while_it_downloads() {
    // The next upload waits only for the compute; the next compute waits for both copies.
    let spec = SimSpec { slots: 1, ..spec(256, 1000.0, 128, 6) };
    close(makespan_us(&spec), 256.0 + 6.0 * 1000.0 + 5.0 * 256.0 + 128.0);
}

#[test]
fn three_slots_are_as_fast_as_the_slowest_engine() {
    // Runs bound by compute, upload and download: the pipeline fills, then the slowest engine works, then it drains.
    close(makespan_us(&spec(256, 1000.0, 128, 9)), 256.0 + 9.0 * 1000.0 + 128.0);
    close(makespan_us(&spec(2560, 1000.0, 128, 9)), 9.0 * 2560.0 + 1000.0 + 128.0);
    close(makespan_us(&spec(256, 1000.0, 2560, 9)), 256.0 + 1000.0 + 9.0 * 2560.0);
    let report = sound(&spec(2560, 1000.0, 128, 100));
    assert_eq!(report.bound.stage, Stage::CopyIn);
    close(report.bound.images_per_s, 1e6 / 2560.0);
    close(report.images_per_s, report.bound.images_per_s);
}

#[test]
fn a_shared_link_slows_copies_down_only_while_both_move_bytes() {
    // Uploads take 1024 us alone and 2048 in duplex, downloads 256 alone and 512 in duplex, compute none: a steady
    // batch takes 512 us in which both directions move bytes (256 us' worth of the upload), then 768 us of upload
    // alone.
    let spec = SimSpec { duplex_gbps: 0.5, ..spec(1024, 0.0, 256, 10) };
    close(makespan_us(&spec), 1024.0 + 9.0 * 1280.0 + 256.0);
    close(sound(&spec).copy_in.loaded_us, 1280.0);
}

/// A run whose three stages take equally long, with copies in duplex: rates and bytes of a PCIe 5 x16 link.
fn balanced() -> SimSpec {
    let bytes = 49 * 1024 * 1024;
    let compute_us = bytes as f64 / 49e3;
    SimSpec {
        copy_overhead_us: 0.0,
        input_bytes_per_row: bytes,
        output_bytes_per_row: bytes,
        batches: 400,
        ..SimSpec::new(vec![(1, compute_us)])
    }
}

#[test]
fn balanced_stages_gain_most() {
    let alone = sound(&serial(balanced())).images_per_s;
    let gain = sound(&balanced()).images_per_s / alone;
    let most = 2.0 * 49.0 / 55.0 + 1.0;
    println!("gain over one batch at a time: {gain:.4}, at most {most:.4}");
    assert!((most - 0.005..most + 1e-6).contains(&gain), "{gain} of {most}");
    for slots in 1..=4 {
        let rate = sound(&SimSpec { slots, ..balanced() }).images_per_s;
        println!("{slots} slots: {:.4}", rate / alone);
    }
}

#[test]
fn arrivals_that_leave_time_wait_for_nobody() {
    let base = SimSpec { fill_us: 16.0, ..spec(256, 1000.0, 128, 200) };
    let periodic = sound(&SimSpec { arrival: Arrival::Periodic { images_per_s: 500.0 }, ..base.clone() });
    close(periodic.latency.p50_us, 1400.0);
    close(periodic.latency.max_us, 1400.0);
    close(periodic.makespan_s, 200.0 * 2e-3 + 1.4e-3);
    let poisson = |images_per_s, seed| SimSpec {
        arrival: Arrival::Poisson { images_per_s, seed },
        batches: 4_000,
        ..base.clone()
    };
    let idle = sound(&poisson(50.0, 1));
    close(idle.latency.p50_us, 1400.0);
    assert!((idle.images_per_s / 50.0 - 1.0).abs() < 0.05, "{idle:#?}");
    // One server with a fixed service time and a load of 0.8: the mean wait is 2 service times, so some waits are long.
    let busy = sound(&poisson(800.0, 1));
    assert!((busy.compute.utilisation - 0.8).abs() < 0.03, "{busy:#?}");
    assert!(busy.latency.p50_us > 1500.0 && busy.latency.p99_us > 4000.0, "{busy:#?}");
    assert_ne!(busy, sound(&poisson(800.0, 2)));
    // With more load than the device can compute it computes as much as it can.
    close(sound(&poisson(2000.0, 1)).images_per_s, 1000.0);
}

#[test]
fn a_batch_runs_at_the_smallest_size_that_holds_it() {
    let base = SimSpec { compute_us: vec![(1, 100.0), (4, 300.0), (8, 500.0)], ..spec(256, 0.0, 128, 3) };
    for (rows, compute) in [(1, 100.0), (2, 300.0), (4, 300.0), (5, 500.0), (8, 500.0)] {
        let one = serial(SimSpec { rows: vec![rows], ..base.clone() });
        close(makespan_us(&one), 3.0 * (rows as f64 * 384.0 + compute));
    }
    close(makespan_us(&serial(SimSpec { rows: vec![8, 1], ..base })), 17.0 * 384.0 + 1100.0);
}

/// The recipe of docs/semantics.md: staging for all producers and slots, three slots, one submission ahead in each
/// producer. The device then has no gap, although filling a batch takes as long as computing it; without the submission
/// ahead it has gaps.
#[test]
fn the_recipe_leaves_the_slowest_engine_no_gap() {
    for producers in [2, 3, 8] {
        let recipe = SimSpec { producers, staging: producers + 3, ahead: 1, ..spec(256, 1000.0, 128, 200) };
        let recipe = SimSpec { results: 4 * recipe.staging, fill_us: 1000.0, ..recipe };
        // The first batch is filled and uploaded, then the model runs on all batches, then the last one is downloaded.
        close(makespan_us(&recipe), 1000.0 + 256.0 + 200.0 * 1000.0 + 128.0);
        let one_by_one = sound(&SimSpec { ahead: 0, ..recipe }).compute.utilisation;
        assert!(producers > 2 || one_by_one < 0.9, "{producers} producers that wait for each: {one_by_one}");
    }
}

/// A ResNet-50 that takes 9.2 ms for a batch of 256.
#[test]
fn a_compute_bound_model_runs_at_its_own_speed() {
    let spec = SimSpec::new(vec![(256, 9_200.0)]);
    let report = sound(&spec);
    println!("{report:#?}");
    assert!(report.images_per_s > 0.9999 * 256.0 / 9.2e-3);
    assert!(report.compute.utilisation > 0.99);
    assert_eq!(report.bound.stage, Stage::Compute);
}

#[test]
fn a_delay_shifts_what_depends_on_it() {
    let delayed = |stage, nth, us| {
        let injections = vec![Injection { stage, nth, effect: Effect::DelayUs(us) }];
        makespan_us(&SimSpec { injections, ..spec(256, 1000.0, 128, 9) })
    };
    let undisturbed = 256.0 + 9000.0 + 128.0;
    close(delayed(Stage::Compute, 5, 70.0), undisturbed + 70.0);
    close(delayed(Stage::CopyIn, 1, 70.0), undisturbed + 70.0);
    close(delayed(Stage::CopyIn, 5, 70.0), undisturbed); // hidden
    close(delayed(Stage::CopyOut, 9, 70.0), undisturbed + 70.0);
}

#[test]
fn faults_answer_everything_and_hang_nothing() {
    for stage in [Stage::CopyIn, Stage::Compute, Stage::CopyOut] {
        for nth in 1..=12 {
            for effect in [Effect::RefuseCall, Effect::FailRun] {
                for (slots, producers, ahead, fill_us) in [(1, 1, 0, 0.0), (3, 4, 1, 0.0), (2, 3, 2, 500.0)] {
                    let injections = vec![Injection { stage, nth, effect }];
                    let spec = SimSpec { slots, producers, ahead, fill_us, injections, ..spec(256, 300.0, 128, 30) };
                    let report = simulate(&spec).unwrap_or_else(|error| panic!("{error}\n{spec:#?}"));
                    let fault = report.fault.as_deref().unwrap_or_else(|| panic!("no fault: {spec:#?}"));
                    assert!(fault.contains("INJECTED") && fault.contains(&format!("({nth})")), "{fault}");
                    assert_eq!(report.submitted, report.answered + report.failed, "{report:#?}\n{spec:#?}");
                    assert!(report.failed > 0 && report.answered < nth, "{report:#?}\n{spec:#?}");
                    let credits = report.credits;
                    assert_eq!((credits.filling, credits.in_flight, credits.unread), (0, 0, 0), "{spec:#?}");
                    assert!(credits.quarantined > 0, "{spec:#?}");
                    assert_eq!(report, simulate(&spec).unwrap());
                }
            }
        }
    }
}

#[test]
fn wrong_specs_are_errors_that_name_the_field() {
    let base = SimSpec::new(vec![(8, 100.0)]);
    let batched = |batcher| SimSpec { batcher: Some(batcher), ..base.clone() };
    let cases = [
        ("h2d_gbps", SimSpec { h2d_gbps: 0.0, ..base.clone() }),
        ("d2h_gbps", SimSpec { d2h_gbps: f64::NAN, ..base.clone() }),
        ("duplex_gbps", SimSpec { duplex_gbps: -1.0, ..base.clone() }),
        ("copy_overhead_us", SimSpec { copy_overhead_us: f64::INFINITY, ..base.clone() }),
        ("compute_us", SimSpec::new(Vec::new())),
        ("compute_us", SimSpec::new(vec![(8, 1.0), (4, 1.0)])),
        ("compute_us", SimSpec::new(vec![(8, -1.0)])),
        ("slots", SimSpec { slots: 0, ..base.clone() }),
        ("results", SimSpec { results: 4, ..base.clone() }),
        ("rows", SimSpec { rows: vec![9], ..base.clone() }),
        ("images_per_s", SimSpec { arrival: Arrival::Periodic { images_per_s: 0.0 }, ..base.clone() }),
        ("deadline_us", batched(SimBatcher { deadline_us: -1.0, ..SimBatcher::default() })),
        ("rejects", batched(SimBatcher { rejects: true, ..SimBatcher::default() })),
    ];
    for (field, spec) in cases {
        let error = simulate(&spec).unwrap_err();
        assert!(matches!(error, Error::Option { option, .. } if option == field), "{field}: {error}");
    }
}

/// The xorshift64 generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn up_to(&mut self, most: usize) -> usize {
        (self.next() >> 16) as usize % (most + 1)
    }

    fn between(&mut self, least: f64, most: f64) -> f64 {
        least + (most - least) * (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn spec(&mut self) -> SimSpec {
        let h2d_gbps = self.between(1.0, 60.0);
        let d2h_gbps = self.between(1.0, 60.0);
        // Full duplex is at least as good as taking turns: the shares of both rates add up to 1 or more.
        let turns = h2d_gbps * d2h_gbps / (h2d_gbps + d2h_gbps);
        let mut size = 0;
        let compute_us: Vec<(usize, f64)> = (0..=self.up_to(3))
            .map(|_| {
                size += 1 + self.up_to(6);
                (size, if self.up_to(9) == 0 { 0.0 } else { self.between(1.0, 500.0) })
            })
            .collect();
        let (producers, ahead) = (1 + self.up_to(4), self.up_to(2));
        let images_per_s = self.between(1e3, 1e6);
        let most_out = [200_000, 4_000][self.up_to(1)];
        let arrival = match self.up_to(3) {
            0 => Arrival::Poisson { images_per_s, seed: self.next() },
            1 => Arrival::Periodic { images_per_s },
            _ => Arrival::Closed,
        };
        let delay = |random: &mut Self| Injection {
            stage: [Stage::CopyIn, Stage::Compute, Stage::CopyOut][random.up_to(2)],
            nth: 1 + random.up_to(20),
            effect: Effect::DelayUs(random.between(0.0, 1000.0)),
        };
        let compute_streams = 1 + self.up_to(2);
        SimSpec {
            h2d_gbps,
            d2h_gbps,
            duplex_gbps: self.between(turns, 60.0),
            copy_overhead_us: if self.up_to(1) == 0 { 0.0 } else { self.between(0.0, 20.0) },
            input_bytes_per_row: 1 + self.up_to(200_000),
            output_bytes_per_row: 1 + self.up_to(most_out),
            slots: compute_streams * (1 + self.up_to(4)),
            compute_streams,
            side_by_side: self.between(0.0, 1.0),
            staging: 1 + self.up_to(6),
            results: producers * ahead + 1 + self.up_to(8),
            producers,
            ahead,
            rows: (0..self.up_to(4)).map(|_| 1 + self.up_to(size - 1)).collect(),
            fill_us: if self.up_to(1) == 0 { 0.0 } else { self.between(0.0, 300.0) },
            arrival,
            batches: 1 + self.up_to(40),
            injections: (0..self.up_to(2)).map(|_| delay(self)).collect(),
            compute_us,
            batcher: None,
            checked: false,
        }
    }
}

fn delays_s(spec: &SimSpec) -> f64 {
    let delay = |injection: &Injection| match injection.effect {
        Effect::DelayUs(delay) if injection.nth <= spec.batches => delay * 1e-6,
        _ => 0.0,
    };
    spec.injections.iter().map(delay).sum()
}

#[test]
fn random_rings_answer_everything_once_in_order_and_in_bounds() {
    const SPECS: usize = 4_000;
    let mut random = Random(0x5DEE_CE66_D1CE_4E5B);
    let (mut submissions, mut below) = (0, f64::INFINITY);
    for _ in 0..SPECS {
        let spec = random.spec();
        // `simulate` itself checks the order, and that every answer belongs to its submission.
        let report = sound(&spec);
        submissions += report.submitted;
        if spec.arrival == Arrival::Closed {
            // As long as work is left, an engine works or a producer fills.
            let most = report.serial_s + delays_s(&spec) + spec.fill_us * 1e-6 * spec.batches as f64;
            // Each time of an operation is rounded to a picosecond.
            let rounding = 20e-12 * spec.batches as f64;
            assert!(report.makespan_s <= most + rounding, "{} > {most}\n{spec:#?}", report.makespan_s);
            below = below.min(report.makespan_s / most);
        }
    }
    println!("{SPECS} rings, {submissions} submissions; the shortest took {below:.3} of the stages' sum");
    assert!(submissions > 20 * SPECS / 2 && below < 0.5);
}

#[test]
fn no_ring_beats_its_slowest_engine_and_many_reach_it() {
    const SPECS: usize = 300;
    let mut random = Random(0xC2B2_AE3D_27D4_EB4F);
    let (mut reached, mut most) = (0, 0.0_f64);
    for _ in 0..SPECS {
        // The spec is without overheads, during which the other copy has the link for itself, and with batches of their
        // mean size.
        let spec = SimSpec {
            copy_overhead_us: 0.0,
            rows: Vec::new(),
            arrival: Arrival::Closed,
            injections: Vec::new(),
            batches: 400,
            ..random.spec()
        };
        let report = sound(&spec);
        let part = report.images_per_s / report.bound.images_per_s;
        // Of batches side by side all but one may be partly done at either end of the measured time.
        let partly_done = (spec.compute_streams - 1) as f64 / (0.75 * spec.batches as f64);
        assert!(part < 1.001 + partly_done, "{part}: {report:#?}\n{spec:#?}");
        most = most.max(part);
        reached += usize::from(part > 0.97);
    }
    println!("{reached} of {SPECS} rings at 0.97 of their slowest engine or more; the best at {most:.4}");
    assert!(reached > SPECS / 4);
}

#[test]
fn random_faults_answer_everything() {
    let mut random = Random(0xA076_1D64_78BD_642F);
    let mut faults = 0;
    for _ in 0..2_000 {
        let mut spec = random.spec();
        spec.injections.push(Injection {
            stage: [Stage::CopyIn, Stage::Compute, Stage::CopyOut][random.up_to(2)],
            nth: 1 + random.up_to(spec.batches),
            effect: if random.up_to(1) == 0 { Effect::RefuseCall } else { Effect::FailRun },
        });
        let report = simulate(&spec).unwrap_or_else(|error| panic!("{error}\n{spec:#?}"));
        faults += usize::from(report.fault.is_some());
        assert_eq!(report.fault.is_some(), report.failed > 0, "{report:#?}\n{spec:#?}");
        assert_eq!(report.submitted, report.answered + report.failed, "{report:#?}\n{spec:#?}");
        let credits = report.credits;
        assert_eq!((credits.filling, credits.in_flight, credits.unread), (0, 0, 0), "{spec:#?}");
    }
    println!("{faults} faults in 2000 rings");
    assert!(faults > 1_500);
}

/// The checker does not change the report.
#[test]
fn the_same_spec_gives_the_same_report() {
    let mut random = Random(0x2545_F491_4F6C_DD1D);
    for _ in 0..200 {
        let spec = random.spec();
        let unchecked = trefoil::simulate::simulate(&spec).unwrap();
        assert_eq!((simulate(&spec).unwrap(), simulate(&spec).unwrap()), (unchecked.clone(), unchecked), "{spec:#?}");
    }
}

/// Clients with single rows: low load is not delayed, high load fills batches, and the batcher does the same in each
/// run.
#[test]
fn a_batcher_neither_delays_low_load_nor_loses_high_load() {
    let sizes = vec![(1, 160.0), (2, 200.0), (4, 255.0), (8, 330.0), (16, 465.0), (32, 667.0), (64, 1_125.0)];
    let spec = SimSpec {
        fill_us: 20.0,
        copy_overhead_us: 10.0,
        batches: 5_000,
        batcher: Some(SimBatcher::default()),
        ..SimSpec::new(sizes)
    };
    let clients = |producers| simulate(&SimSpec { producers, ..spec.clone() }).unwrap();
    let alone = clients(1);
    assert!(alone.latency.p99_us < 160.0 + 20.0 + 3.0 * 10.0 + 2.0 * 10.0 + 10.0, "{:?}", alone.latency);
    let crowd = clients(128);
    assert!(crowd.images_per_s > 0.98 * 64.0 / 1_125e-6, "{} images/s", crowd.images_per_s);
    assert_eq!(crowd, clients(128));

    let capacity = 64.0 / 1_125e-6;
    for (part, p99_us) in [(0.1, 700.0), (0.5, 1_500.0), (0.9, 6_000.0)] {
        let arrival = Arrival::Poisson { images_per_s: part * capacity, seed: 1 };
        let random = simulate(&SimSpec { arrival, ..spec.clone() }).unwrap();
        assert!(random.latency.p99_us < p99_us, "{part} of capacity: {:?}", random.latency);
    }
}

/// Rows come at twice the rate that the device can compute: it answers as many as it can, the rest is refused or
/// expires, and answered rows were queued no longer than the queue's places or the deadline allow.
#[test]
fn twice_the_rate_is_answered_as_fast_or_refused() {
    const BATCH: usize = 64;
    const RUN_US: f64 = 1_125.0;
    let most = BATCH as f64 / (RUN_US * 1e-6);
    let in_flight = SimBatcher::default().in_flight;
    for (rejects, deadline_us) in
        [(true, f64::INFINITY), (true, 20_000.0), (true, 5_000.0), (true, 2_000.0), (false, 20_000.0), (false, 2_000.0)]
    {
        let spec = SimSpec {
            fill_us: 20.0,
            copy_overhead_us: 10.0,
            batches: 20_000,
            arrival: Arrival::Poisson { images_per_s: 2.0 * most, seed: 1 },
            batcher: Some(SimBatcher { rejects, deadline_us, ..SimBatcher::default() }),
            ..SimSpec::new(vec![(1, 160.0), (8, 330.0), (32, 667.0), (BATCH, RUN_US)])
        };
        let report = simulate(&spec).unwrap();
        let (goodput, lost) = (report.images_per_s / most, report.refused + report.expired);
        println!(
            "rejects {rejects}, deadline {deadline_us} us: {goodput:.3} of the most, {lost} lost, {:?}",
            report.latency
        );
        assert_eq!((report.answered + lost, report.failed), (spec.batches, 0));
        assert!((rejects || report.refused == 0) && (deadline_us.is_finite() || report.expired == 0), "{report:?}");
        assert!(lost > spec.batches / 3, "no overload: {lost} lost");
        assert!(goodput >= 0.95, "{goodput} of the most");
        let queued_us = if rejects { 4.0 * RUN_US } else { f64::INFINITY };
        let most_us = queued_us.min(deadline_us) + (in_flight + 2) as f64 * RUN_US;
        assert!(report.latency.max_us <= most_us, "{:?}", report.latency);
    }
}

/// A run of clients of a batcher on these compute streams. Two batches of 8 gain 1.345 side by side, as on an H200.
fn clients(producers: usize, compute_streams: usize, jitter_us: f64) -> SimReport {
    let sizes = vec![(1, 160.0), (2, 200.0), (4, 255.0), (8, 330.0), (16, 465.0), (32, 667.0)];
    let spec = SimSpec {
        producers,
        compute_streams,
        slots: 4,
        side_by_side: 0.69,
        fill_us: 20.0,
        copy_overhead_us: 10.0,
        batches: 5_000,
        batcher: Some(SimBatcher { in_flight: 5, jitter_us, ..SimBatcher::default() }),
        ..SimSpec::new(sizes)
    };
    simulate(&spec).unwrap()
}

/// With two compute streams, few clients, whose batches leave the device half idle, get more answers; one client waits
/// no longer, and batches that gain nothing side by side are computed in turn and lose nothing.
#[test]
fn two_compute_streams_serve_few_clients_better_and_no_others_worse() {
    assert_eq!(clients(1, 1, 0.0).latency, clients(1, 2, 0.0).latency);
    for (producers, gain) in [(4, 1.0), (8, 1.05), (16, 1.15), (32, 0.98), (64, 0.98), (256, 0.99)] {
        let [one, two] = [1, 2].map(|streams| clients(producers, streams, 0.0).images_per_s);
        assert!(two > gain * one, "{producers} clients: {two} images/s, on one stream {one}");
    }
}

/// The delivering thread is awake when a batch ends at the time foreseen, so one client waits for only one wake-up of
/// 10 us, its own.
#[test]
fn a_batch_whose_end_is_foreseen_is_heard_of_at_once() {
    let p50_us = clients(1, 1, 0.0).latency.p50_us;
    let computed_us = 20.0 + 160.0; // filled and run
    let copied_us = 2.0 * 10.0 + 150_528.0 / 55e3 + 4_000.0 / 55e3;
    assert!((p50_us - computed_us - copied_us - 10.0).abs() < 1.0, "{p50_us} us");
}

/// Clients that return at different times form smaller groups; the jitter is the same in each run.
#[test]
fn jitter_splits_groups_of_clients() {
    let [lockstep, jitter] = [0.0, 20.0].map(|jitter| clients(16, 2, jitter));
    assert!(lockstep.mean_batch > 7.9 && jitter.mean_batch < 7.5, "{} {}", lockstep.mean_batch, jitter.mean_batch);
    assert!(jitter.latency.p99_us > lockstep.latency.p99_us);
    assert_eq!(jitter, clients(16, 2, 20.0));
}

/// Throughput, latencies and makespan equal those of the version in which every producer had its turn after every
/// event.
#[test]
fn figures_are_those_of_producers_that_all_have_their_turn() {
    let compute = || vec![(32, 1_263.0), (256, 9_200.0)];
    let poisson = |images_per_s, seed| Arrival::Poisson { images_per_s, seed };
    let periodic = |images_per_s| Arrival::Periodic { images_per_s };
    let ring = |producers, staging, results| SimSpec { producers, staging, results, ..SimSpec::new(compute()) };
    let cases = [
        (
            SimSpec { rows: vec![32, 7, 256], ahead: 2, fill_us: 400.0, batches: 3000, ..ring(37, 40, 160) },
            [25157.769060208087, 0.314872527771, 0.31492245299599997, 0.31492245299599997, 11.726510644945],
        ),
        (
            SimSpec {
                rows: vec![32],
                fill_us: 1000.0,
                arrival: poisson(20_000.0, 7),
                batches: 3000,
                ..ring(200, 203, 812)
            },
            [19665.008485758244, 0.003926972985, 0.008116687659, 0.011963265889, 4.857746555922],
        ),
        (
            SimSpec { rows: vec![256, 1], ahead: 0, arrival: periodic(27_000.0), ..ring(5, 2, 8) },
            [24556.994625864383, 0.24604440993299997, 0.434940706229, 0.47744237289599994, 5.241686195372],
        ),
        (
            SimSpec { slots: 2, arrival: poisson(30_000.0, 3), batches: 4000, ..many_sizes(ring(64, 3, 193)) },
            [11683.438512706805, 4.802653093032999, 8.743925955634, 9.603045932364, 15.634958207745],
        ),
    ];
    for (spec, expected) in cases {
        let report = sound(&spec);
        let SimReport { images_per_s, latency, makespan_s, .. } = report;
        let found = [images_per_s, 1e-6 * latency.p50_us, 1e-6 * latency.p90_us, 1e-6 * latency.p99_us, makespan_s];
        found.into_iter().zip(expected).for_each(|(found, expected)| close(found, expected));
    }
}

fn many_sizes(spec: SimSpec) -> SimSpec {
    SimSpec { rows: vec![5, 32, 100], ahead: 3, ..spec }
}

/// The cost of simulating a batch does not grow with the producers, most of which wait at any time.
#[test]
fn a_thousand_producers_cost_about_as_much_as_a_few() {
    let seconds_a_batch = |producers: usize| {
        let spec = SimSpec {
            producers,
            staging: producers + 3,
            results: 4 * producers + 12,
            batches: 4000,
            ..spec(256, 1000.0, 128, 1)
        };
        let start = std::time::Instant::now();
        trefoil::simulate::simulate(&spec).unwrap();
        start.elapsed().as_secs_f64() / spec.batches as f64
    };
    let best = |producers| (0..3).map(|_| seconds_a_batch(producers)).fold(f64::INFINITY, f64::min);
    let (few, many) = (best(16), best(1024));
    assert!(many < 8.0 * few, "{few:e} s a batch with 16 producers, {many:e} s with 1024");
}

/// Rows come at twice the rate of the device: the program reports those that are not answered.
#[test]
fn the_program_tells_what_an_overloaded_batcher_did_not_answer() {
    let load = ["--compute", "8=1000", "--batcher", "--arrival", "poisson", "--rate", "16000", "--batches", "2000"];
    let simulate = |more: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_trefoil"))
            .arg("simulate")
            .args([&load[..], more].concat())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let of = |more: &[&str], key: &str| {
        let figures: serde_json::Value = serde_json::from_str(&simulate(&[more, &["--json"]].concat())).unwrap();
        figures[key].as_u64().unwrap()
    };
    assert_eq!((of(&[], "answered"), of(&[], "refused")), (2_000, 0), "all wait as long as it takes");
    assert!((500..1_500).contains(&of(&["--rejects"], "refused")));
    assert!((500..1_500).contains(&of(&["--deadline", "5000"], "expired")));
    assert!(simulate(&["--rejects"]).contains(" refused, 0 past their deadline"));
}

/// Events of a batcher that come at the same instant: copies without overhead, deadlines that are past at once, threads
/// that wake in no time, rows that are filled in no time.
#[test]
fn a_batcher_goes_on_where_events_take_no_time() {
    for wake_us in [0.0, 10.0] {
        for (sizes, copy_overhead_us) in
            [(vec![(1, 100.0)], 0.0), (vec![(1, 0.0), (8, 0.0)], 0.0), (vec![(64, 3.6e9)], 2.0)]
        {
            for deadline_us in [f64::INFINITY, 0.0, 1.0, 500.0] {
                for (fill_us, jitter_us) in [(0.0, 0.0), (20.0, 0.0), (0.0, 5.0)] {
                    for arrival in [Arrival::Closed, Arrival::Periodic { images_per_s: 1e6 }] {
                        let batcher = SimBatcher { wake_us, jitter_us, deadline_us, ..SimBatcher::default() };
                        let spec = SimSpec {
                            copy_overhead_us,
                            fill_us,
                            arrival,
                            batches: 200,
                            batcher: Some(batcher),
                            ..SimSpec::new(sizes.clone())
                        };
                        let report = simulate(&spec).unwrap_or_else(|error| panic!("{error}\n{spec:#?}"));
                        assert_eq!(report.answered + report.expired, 200, "{spec:#?}");
                        assert!(deadline_us > 0.0 || report.answered == 0, "{report:#?}");
                        assert!(deadline_us.is_finite() || report.expired == 0, "{report:#?}");
                    }
                }
            }
        }
    }
}

/// No row is answered: the figures of answers are left out, and none of the others is NaN.
#[test]
fn a_run_without_an_answer_has_no_throughput() {
    let batcher = SimBatcher { deadline_us: 1.0, ..SimBatcher::default() };
    let spec = SimSpec { batches: 5, batcher: Some(batcher), ..SimSpec::new(vec![(1, 100.0)]) };
    let report = simulate(&spec).unwrap();
    assert_eq!((report.answered, report.expired, report.submitted), (0, 5, 0));
    assert_eq!((report.images_per_s, report.bound.images_per_s), (0.0, 0.0));
    let simulate = |more: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_trefoil"))
            .args(["simulate", "--compute", "1=100", "--batcher", "--deadline", "1", "--batches", "5"])
            .args(more)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = simulate(&[]);
    assert!(text.contains("no row was answered") && text.contains("5 past their deadline"), "{text}");
    assert!(!text.contains("NaN") && !text.contains("latency    p50"), "{text}");
    let figures: serde_json::Value = serde_json::from_str(&simulate(&["--json"])).unwrap();
    assert!(figures["bound"].is_null() && figures["latency_seconds"].is_null(), "{figures}");
    assert_eq!((figures["images_per_second"].as_f64(), figures["expired"].as_u64()), (Some(0.0), Some(5)));
}
