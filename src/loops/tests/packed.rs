//! Attention within rows that lie end to end, against plain loops and against the loops to which it is expanded.

use super::graphs::{Dice, no_weight};
use super::{close, output, signed};
use crate::graph::{GraphBuilder, Op, PackedAttention, Tensor, ValueId, expand};
use crate::loops::compute_by;
use crate::loops::evaluate;
use crate::loops::team::Backwards;

const TOKENS: usize = 90;
const HEADS: usize = 2;
const LONGEST: usize = 60;

/// Packed attention of these operands.
struct Case {
    op: Op,
    /// Queries, keys, values and starts, and in some cases a bias.
    operands: Vec<Tensor>,
}

impl Case {
    fn new(dice: &mut Dice, starts: &[i64]) -> Self {
        let mut random = |dims: &[usize]| signed(dims, dice.below(1 << 30) as u64);
        let (features, values) = (17, 24);
        let [q, k] = [0, 1].map(|_| random(&[TOKENS, HEADS, features]));
        let (v, bias) = (random(&[TOKENS, HEADS, values]), random(&[1, 2 * LONGEST - 1]));
        let of_heads = random(&[HEADS, 2 * LONGEST - 1]);
        let starts = Tensor::of(&[starts.len()], starts);
        let bias = [None, Some(bias), Some(of_heads)][dice.below(3)].clone();
        let op = Op::PackedAttention(PackedAttention { longest: LONGEST, scale: 0.4 });
        Self { op, operands: [q, k, v, starts].into_iter().chain(bias).collect() }
    }

    fn by_hand(&self) -> Tensor {
        output(&self.op, &self.operands.iter().collect::<Vec<_>>())
    }

    fn as_loops(&self) -> Tensor {
        let mut g = GraphBuilder::new();
        let operand = |(number, of): (usize, &Tensor)| {
            g.input(&format!("x{number}"), of.value_type().dtype, &of.value_type().dims)
        };
        let ids: Vec<ValueId> = self.operands.iter().enumerate().map(operand).collect();
        let y = g.node("attention", self.op.clone(), &ids);
        g.output("y", y);
        let graph = expand(&g.finish().unwrap());
        assert!(graph.nodes.iter().all(|node| !matches!(node.op, Op::PackedAttention(_))));
        evaluate(&graph, &mut no_weight, &self.operands).unwrap().remove(0)
    }

    /// The expected result of a head for a token of a row, by plain loops in f64.
    fn expected(&self, row: &std::ops::Range<usize>, token: usize, head: usize) -> Vec<f64> {
        let of = |operand: usize, token: usize| -> Vec<f64> {
            let of = &self.operands[operand];
            let width = of.value_type().dims[2];
            of.elems::<f32>()[(token * HEADS + head) * width..][..width].iter().map(|&x| f64::from(x)).collect()
        };
        let bias = |key: usize| {
            self.operands.get(4).map_or(0.0, |bias| {
                let row = if bias.value_type().dims[0] == 1 { 0 } else { head };
                f64::from(bias.elems::<f32>()[row * (2 * LONGEST - 1) + LONGEST - 1 + key - token])
            })
        };
        let dot = |key: usize| of(0, token).iter().zip(of(1, key)).map(|(a, b)| a * b).sum::<f64>();
        let weights: Vec<f64> = row.clone().map(|key| (0.4 * dot(key) + bias(key)).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let values: Vec<Vec<f64>> = row.clone().map(|key| of(2, key)).collect();
        (0..values[0].len()).map(|i| weights.iter().zip(&values).map(|(w, v)| w / sum * v[i]).sum()).collect()
    }

    fn all_expected(&self, rows: &[std::ops::Range<usize>]) -> Vec<f64> {
        let width = self.operands[2].value_type().dims[2];
        let of_token = |token: usize| match rows.iter().find(|row| row.contains(&token)) {
            Some(row) => (0..HEADS).flat_map(|head| self.expected(row, token, head)).collect(),
            None => vec![0.0; HEADS * width],
        };
        (0..TOKENS).flat_map(of_token).collect()
    }
}

/// The places where random rows begin and end. Some rows are empty, some are as long as possible.
fn lengths(dice: &mut Dice) -> Vec<i64> {
    let mut starts = vec![0];
    while starts.len() < 8 {
        let length = [0, 1, 2, dice.below(30), dice.below(LONGEST), LONGEST][dice.below(6)] as i64;
        let last = starts[starts.len() - 1];
        starts.push((last + length).min(TOKENS as i64));
    }
    starts
}

fn rows(starts: &[i64]) -> Vec<std::ops::Range<usize>> {
    starts.windows(2).map(|row| row[0] as usize..row[1] as usize).filter(|row| !row.is_empty()).collect()
}

#[test]
fn a_token_sees_those_of_its_row() {
    let mut dice = Dice(3);
    for _ in 0..12 {
        let starts = lengths(&mut dice);
        let case = Case::new(&mut dice, &starts);
        let expected = case.all_expected(&rows(&starts));
        close(&case.by_hand(), &expected, 24.0);
        close(&case.as_loops(), &expected, 24.0);
    }
}

/// Rows end to end in another order, or alone, with NaN in all other tokens.
#[test]
fn a_row_has_the_same_bits_wherever_it_lies() {
    let mut dice = Dice(5);
    for round in 0..12 {
        let length = 1 + dice.below(LONGEST);
        let mut starts = vec![0, length as i64];
        let first = Case::new(&mut dice, &starts);
        let place = dice.below(TOKENS - length + 1);
        starts = vec![0, place as i64 / 2, place as i64, (place + length) as i64, TOKENS as i64];
        let mut moved = Case { op: first.op.clone(), operands: first.operands.clone() };
        for (to, from) in moved.operands[..3].iter_mut().zip(&first.operands) {
            let width = HEADS * from.value_type().dims[2];
            let to = to.elems_mut::<f32>();
            to.fill(f32::NAN);
            to[place * width..][..length * width].copy_from_slice(&from.elems()[..length * width]);
        }
        moved.operands[3] = Tensor::of(&[starts.len()], &starts);
        let width = HEADS * first.operands[2].value_type().dims[2];
        for run in [Case::by_hand, Case::as_loops] {
            let [alone, among] = [run(&first), run(&moved)];
            let [alone, among] =
                [&alone.elems::<f32>()[..length * width], &among.elems()[place * width..][..length * width]];
            assert_eq!(
                alone.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
                among.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
                "round {round}"
            );
            assert!(alone.iter().all(|x| x.is_finite()));
        }
    }
}

/// Numbers in any order, negative numbers, and numbers beyond the tokens.
#[test]
fn any_starts_have_a_meaning() {
    let mut dice = Dice(7);
    for _ in 0..24 {
        let number = |dice: &mut Dice| match dice.below(6) {
            0 => i64::MIN,
            1 => i64::MAX,
            2 => -1 - dice.below(200) as i64,
            3 => (TOKENS + 1 + dice.below(200)) as i64,
            _ => dice.below(TOKENS + 1) as i64,
        };
        let starts: Vec<i64> = (0..dice.below(9)).map(|_| number(&mut dice)).collect();
        let mut places: Vec<i64> = starts.iter().copied().filter(|start| (0..=TOKENS as i64).contains(start)).collect();
        places.sort_unstable();
        let mut all = rows(&places);
        all.iter_mut().for_each(|row| row.end = row.end.min(row.start + LONGEST));
        let case = Case::new(&mut dice, &starts);
        let expected = case.all_expected(&all);
        close(&case.by_hand(), &expected, 24.0);
        close(&case.as_loops(), &expected, 24.0);
    }
}

#[test]
fn a_team_gives_the_bits_of_one_thread() {
    let mut dice = Dice(9);
    let starts = [0, 3, 60, 61, 90];
    let case = Case::new(&mut dice, &starts);
    let operands: Vec<Option<&Tensor>> = case.operands.iter().map(Some).collect();
    let alone = case.by_hand();
    for workers in [2, 3, 7] {
        let shared = compute_by(&Backwards(workers), &case.op, &operands, &[alone.value_type().clone()]).unwrap();
        assert!(shared[0].bytes() == alone.bytes(), "by {workers}");
    }
}
