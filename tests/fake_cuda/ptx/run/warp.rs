//! Operations of all lanes of a warp together, which run once all members have arrived.

use super::thread::{State, Thread};
use super::{Kind, Problem};
use crate::ptx::program::{Op, POISON, Program, Shuffle, Warp, WarpKind};

/// Runs the warp operations that all their members have reached; returns whether there were any.
pub fn meet(program: &Program, lanes: &mut [Thread]) -> Result<bool, Problem> {
    let mut met = false;
    for lane in 0..lanes.len() {
        let State::AtWarp(op) = lanes[lane].state else { continue };
        let Op::Warp(warp) = &program.code[op] else { unreachable!("a lane waits there") };
        let members = lanes[lane].get(warp.members) as u32;
        if members & 1 << lane == 0 {
            let what = format!("lane {lane} is not among the lanes {members:#x} that it names");
            return Err(Problem { kind: Kind::Trap, what, op, thread: lanes[lane].place });
        }
        // Lanes that have ended do not take part.
        let is_member = |i: &usize| members & 1 << i != 0 && lanes[*i].state != State::Ended;
        let all: Vec<usize> = (0..lanes.len()).filter(is_member).collect();
        let is_here = |i: &usize| lanes[*i].state == State::AtWarp(op) && lanes[*i].get(warp.members) as u32 == members;
        if all.iter().all(is_here) {
            exchange(warp, lanes, &all);
            met = true;
        }
    }
    Ok(met)
}

fn exchange(warp: &Warp, lanes: &mut [Thread], all: &[usize]) {
    match &warp.kind {
        WarpKind::Sync => {}
        WarpKind::Shuffle(shuffle) => trade(shuffle, lanes, all),
        WarpKind::Vote { function, to, predicate } => {
            let holding = all.iter().filter(|&&index| lanes[index].get(*predicate) != 0);
            let (members, holding) = (mask(all.iter()), mask(holding));
            all.iter().for_each(|&index| lanes[index].set(*to, function(members, holding)));
        }
        WarpKind::Reduce { function, to, value } => {
            let values = all.iter().map(|&index| lanes[index].get(*value));
            let combined = values.reduce(|a, b| function(a, b, 0, 0)).expect("a lane takes part");
            all.iter().for_each(|&index| lanes[index].set(*to, combined));
        }
    }
    all.iter().for_each(|&index| lanes[index].state = State::Runs);
}

fn mask<'a>(lanes: impl Iterator<Item = &'a usize>) -> u32 {
    lanes.fold(0, |mask, lane| mask | 1 << lane)
}

/// Exchanges values between lanes; the value of a lane that does not take part is poison.
fn trade(shuffle: &Shuffle, lanes: &mut [Thread], all: &[usize]) {
    let mut values = [POISON; 32];
    all.iter().for_each(|&index| values[index] = lanes[index].get(shuffle.value));
    for &index in all {
        let lane = &mut lanes[index];
        let [by, limits] = [shuffle.by, shuffle.limits].map(|slot| lane.get(slot) as u32);
        let (source, is_within) = (shuffle.from)(index as u32, by, limits);
        lane.set(shuffle.to, values[source as usize] & 0xffff_ffff);
        if let Some(within) = shuffle.within {
            lane.set(within, is_within.into());
        }
    }
}
