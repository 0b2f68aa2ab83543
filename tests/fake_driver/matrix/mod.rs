//! Each driver call of opening, building, use and dropping, by name, and the outcome when it fails once, fails for
//! ever, never returns, or returns late: the tests show that the table is complete and true.

mod hang;
mod table;

use std::collections::BTreeSet;
use std::sync::Mutex;

use crate::faults::{check_failed, live};
use crate::harness::{ChildReport, Scenario, for_each_number};
use crate::what::What;
use table::{Fails, Hangs, Row, SOMETIMES, TABLE};

type Outcome = (Fails, Fails, Hangs);

/// The phases, each of which the child marks at its beginning.
const PHASES: [&str; 4] = ["open", "build", "use", "end"];

/// The first call of a name in a phase.
#[derive(Debug)]
struct Cell {
    what: What,
    phase: &'static str,
    call: String,
    /// Whether every run makes the call. Some runs do not wait for an event, depending on when the driver's own thread
    /// gets a core.
    is_certain: bool,
}

/// Number of runs that find out which calls are made.
const LOOKS: usize = 5;
/// Number of runs after which a call that only some runs make is skipped.
const TRIES: usize = 20;

impl Cell {
    /// The row of the table for this call.
    fn row(&self) -> Option<&'static Row> {
        let is_in =
            |row: &&Row| row.phase == self.phase && row.of.contains(&self.what) && row.calls.contains(&&*self.call);
        TABLE.iter().find(is_in)
    }

    fn run(&self, scenario: &Scenario, variables: &[(&str, &str)]) -> ChildReport {
        run(self.what, scenario, variables)
    }

    /// Repeats the run until its report shows the call. `None` for a call that only some runs make, if none of these
    /// has made it.
    fn run_with(
        &self,
        scenario: &Scenario,
        variables: &[(&str, &str)],
        is_made: impl Fn(&ChildReport) -> bool,
    ) -> Option<ChildReport> {
        let made = (0..TRIES).map(|_| self.run(scenario, variables)).find(is_made);
        assert!(made.is_some() || !self.is_certain, "{self:?} is not made in {TRIES} runs");
        made
    }

    /// The outcome of the call, in the form of a row of the table.
    fn outcome(&self, scenario: &Scenario) -> Option<Outcome> {
        let chosen = format!("{}:{}", self.phase, self.call);
        let named = format!("{:?}, {chosen}", self.what);
        let fails = ("FAKE_CUDA_FAIL_CALL", &*chosen);
        let is_injected = |report: &ChildReport| report.log.iter().any(|line| line.ends_with("injected"));
        let once = self.run_with(scenario, &[fails], is_injected)?;
        let for_ever = self.run_with(scenario, &[fails, ("FAKE_CUDA_FAIL_STICKY", "1")], is_injected)?;
        [&once, &for_ever].into_iter().for_each(|report| check_failed(&named, report));
        let never = [("FAKE_CUDA_LATE_CALL", &*chosen), ("FAKE_CUDA_LATE_MS", "1000000000"), ("HANGS", self.phase)];
        let hangs = self.run_with(scenario, &never, |report| hang::is_in_use(self, report))?;
        let late = self.run(scenario, &[("FAKE_CUDA_LATE_CALL", &self.call), ("FAKE_CUDA_LATE_MS", "2")]);
        late.assert_clean();
        assert!(!late.stdout.contains("error"), "{named}\n{late}");
        Some((failed(&once), failed(&for_ever), hang::found(self, &hangs)))
    }
}

/// Runs a child; each kind of engine uses another way of waiting.
fn run(what: What, scenario: &Scenario, variables: &[(&str, &str)]) -> ChildReport {
    let waiting = match what {
        What::OneModel | What::Fleet => "0",
        What::SeveralModels => "1",
        What::Values => "2",
    };
    what.runs(scenario, &[&[("WAITING", waiting)], variables].concat())
}

fn failed(report: &ChildReport) -> Fails {
    let is_there = |start: &str| report.stdout.lines().any(|line| line.starts_with(start));
    match (is_there("error"), is_there("faulted")) {
        (false, false) => Fails::Passes,
        (true, false) => Fails::Refuses,
        (_, true) => Fails::Faults,
    }
}

/// The names of the calls in each phase.
fn calls_of(report: &ChildReport) -> BTreeSet<(&'static str, String)> {
    let (mut phase, mut calls) = ("", BTreeSet::new());
    for line in &report.log {
        if let Some(mark) = line.strip_prefix("# ") {
            phase = PHASES.into_iter().find(|phase| *phase == mark).unwrap_or(phase);
        } else if line.starts_with("cu") {
            calls.insert((phase, line.split(' ').next().unwrap().to_owned()));
        }
    }
    calls
}

/// The calls of the phase `use` for each kind of engine, and those of other phases for the first kind that makes them.
fn all_cells(scenario: &Scenario) -> Vec<Cell> {
    let clean = |what| {
        let looks: Vec<_> = (0..LOOKS).map(|_| calls_of(run(what, scenario, &[]).assert_clean())).collect();
        let made: BTreeSet<_> = looks.iter().flatten().cloned().collect();
        let cell = |(phase, call): (&'static str, String)| {
            let is_certain = looks.iter().all(|look| look.contains(&(phase, call.clone())));
            Cell { what, phase, call, is_certain }
        };
        made.into_iter().map(cell).collect::<Vec<_>>()
    };
    let mut known = BTreeSet::new();
    let mut is_new = |cell: &Cell| known.insert((cell.phase, cell.call.clone())) || cell.phase == "use";
    let is_always = |cell: &Cell| !SOMETIMES.contains(&(cell.phase, &*cell.call));
    What::ALL.into_iter().flat_map(clean).filter(|cell| is_always(cell) && is_new(cell)).collect()
}

#[test]
fn each_call_of_the_table_fails_hangs_and_is_late() {
    let name = "matrix::each_call_of_the_table_fails_hangs_and_is_late";
    let scenario = Scenario::new(name, || match crate::what::hangs() {
        true => hang::live_beside(),
        false => live(),
    });
    let (cells, wrong) = (all_cells(&scenario), Mutex::new(Vec::new()));
    for_each_number(cells.len(), |index| {
        let cell = &cells[index - 1];
        let Some(found) = cell.outcome(&scenario) else { return println!("left alone: {cell:?}") };
        let listed = cell.row().map(Row::outcome);
        if listed != Some(found) {
            wrong.lock().unwrap().push(format!("{cell:?}: {found:?}, the table has {listed:?}"));
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let made = |row: &Row, call: &str| cells.iter().any(|cell| cell.phase == row.phase && cell.call == call);
    for row in TABLE {
        let never: Vec<_> = row.calls.iter().filter(|call| !made(row, call)).collect();
        assert!(never.is_empty(), "{}: the table has calls that are not made: {never:?}", row.phase);
    }
}
