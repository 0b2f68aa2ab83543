//! Functions that examine the expressions of maps, to find those that kernels compute.

use std::collections::BTreeMap;

use crate::graph::{Binary, Constant, Expr, Graph, Node, Number, Op, Tensor, Unary, ValueId};
use crate::tensor::Dtype;

/// The expression of a map, in which constants of one element are replaced by their numbers.
pub fn inlined(graph: &Graph, node: &Node) -> Option<Expr> {
    let Op::Map(expr) = &node.op else { return None };
    let arg =
        |(number, id): (usize, &Option<ValueId>)| id.and_then(|id| number_of(graph, id)).unwrap_or(Expr::arg(number));
    Some(expr.clone().with_args(&node.inputs.iter().enumerate().map(arg).collect::<Vec<_>>()))
}

/// The number of a constant of one element in f32; `None` for any other value.
fn number_of(graph: &Graph, id: ValueId) -> Option<Expr> {
    let of = graph.value(id);
    match graph.constant(id)? {
        Constant::Bytes(bytes) if of.elems() == 1 && of.dtype == Dtype::F32 => {
            let number = Tensor::from_bytes(of.clone(), bytes).elems::<f32>()[0];
            Some(Expr::float(Dtype::F32, number.into()))
        }
        _ => None,
    }
}

/// The value that a map multiplies by a number, and the number.
pub fn factor_of(graph: &Graph, node: &Node) -> Option<(ValueId, f64)> {
    let expr = inlined(graph, node)?;
    let numbers = args(&expr);
    let [number] = numbers[..] else { return None };
    let (factor, term) = linear(&expr, number)?;
    let from = node.inputs[number].filter(|_| term.is_none())?;
    (graph.value(from).dtype == Dtype::F32).then_some((from, factor))
}

/// A node's expression with known values in the place of its operands. Other operands that it reads are added to `others`,
/// whose first one is `Arg(1)`. `None` if the node lacks an operand.
pub fn replaced(expr: &Expr, node: &Node, known: &BTreeMap<ValueId, Expr>, others: &mut Vec<ValueId>) -> Option<Expr> {
    let reads = args(expr);
    let mut arg = |(number, input): (usize, &Option<ValueId>)| {
        let input = (*input)?;
        if !reads.contains(&number) {
            return Some(Expr::arg(0)); // it is not read
        }
        Some(known.get(&input).cloned().unwrap_or_else(|| {
            let place = others.iter().position(|&other| other == input).unwrap_or_else(|| {
                others.push(input);
                others.len() - 1
            });
            Expr::arg(1 + place)
        }))
    };
    let args = node.inputs.iter().enumerate().map(&mut arg).collect::<Option<Vec<_>>>()?;
    Some(expr.clone().with_args(&args))
}

/// The operands that an expression reads, ascending.
pub fn args(expr: &Expr) -> Vec<usize> {
    fn add(expr: &Expr, to: &mut Vec<usize>) {
        match expr {
            Expr::Arg(number) => to.push(*number),
            Expr::Axis(_) | Expr::Const(..) => {}
            Expr::Cast(_, of) | Expr::Unary(_, of) => add(of, to),
            Expr::Binary(_, of) => of.iter().for_each(|of| add(of, to)),
            Expr::Select(of) => of.iter().for_each(|of| add(of, to)),
        }
    }
    let mut all = Vec::new();
    add(expr, &mut all);
    all.sort_unstable();
    all.dedup();
    all
}

/// The number of operations and operands of an expression.
pub fn size(expr: &Expr) -> usize {
    1 + match expr {
        Expr::Arg(_) | Expr::Axis(_) | Expr::Const(..) => 0,
        Expr::Cast(_, of) | Expr::Unary(_, of) => size(of),
        Expr::Binary(_, of) => of.iter().map(size).sum(),
        Expr::Select(of) => of.iter().map(size).sum(),
    }
}

/// The factor and the term of an expression that is an operand times a factor plus a term without the operand; `None`
/// for others. An expression that replaces the operand by minus infinity under a condition has a term of minus infinity
/// there.
pub fn linear(expr: &Expr, operand: usize) -> Option<(f64, Option<Expr>)> {
    let reads = |of: &Expr| args(of).contains(&operand);
    match expr {
        Expr::Arg(number) => (*number == operand).then_some((1.0, None)),
        Expr::Unary(Unary::Neg, of) => linear(of, operand).map(|(factor, term)| (-factor, term.map(|term| -term))),
        Expr::Binary(op, of) => {
            let [a, b] = &**of;
            match (op, reads(a), reads(b)) {
                (Binary::Add, true, false) => plus(linear(a, operand)?, b.clone()),
                (Binary::Add, false, true) => plus(linear(b, operand)?, a.clone()),
                (Binary::Sub, true, false) => plus(linear(a, operand)?, -b.clone()),
                (Binary::Mul, true, false) => times(linear(a, operand)?, float(b)?),
                (Binary::Mul, false, true) => times(linear(b, operand)?, float(a)?),
                (Binary::Div, true, false) => times(linear(a, operand)?, float(b)?.recip()),
                _ => None,
            }
        }
        Expr::Select(of) => {
            let [condition, then, otherwise] = &**of;
            let zero = || Expr::float(Dtype::F32, 0.0);
            match (reads(condition), reads(then), reads(otherwise)) {
                (false, true, false) if is_lowest(otherwise) => {
                    plus(linear(then, operand)?, condition.clone().select(zero(), otherwise.clone()))
                }
                (false, false, true) if is_lowest(then) => {
                    plus(linear(otherwise, operand)?, condition.clone().select(then.clone(), zero()))
                }
                _ => None,
            }
        }
        _ => None,
    }
}

fn plus((factor, term): (f64, Option<Expr>), more: Expr) -> Option<(f64, Option<Expr>)> {
    Some((factor, Some(term.map_or(more.clone(), |term| term + more))))
}

fn times((factor, term): (f64, Option<Expr>), number: f64) -> Option<(f64, Option<Expr>)> {
    Some((factor * number, term.map(|term| term * Expr::float(Dtype::F32, number))))
}

/// The number of an expression that is a constant in f32.
pub fn float(expr: &Expr) -> Option<f64> {
    match expr {
        Expr::Const(Dtype::F32, Number::Float(number)) => Some(*number),
        _ => None,
    }
}

/// Whether an expression is a number so low that a score of it has no weight, whatever is added. In f16 it is minus
/// infinity.
fn is_lowest(expr: &Expr) -> bool {
    float(expr).is_some_and(|number| number < -1e5)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(value: f64) -> Expr {
        Expr::float(Dtype::F32, value)
    }

    #[test]
    fn factors_and_terms_are_found_on_either_side() {
        let (x, m) = (|| Expr::arg(0), || Expr::arg(1));
        assert_eq!(linear(&(x() * number(0.5) + m()), 0), Some((0.5, Some(m()))));
        assert_eq!(linear(&(m() + number(0.25) * x()), 0), Some((0.25, Some(m()))));
        assert_eq!(linear(&((x() + m()) / number(4.0)), 0), Some((0.25, Some(m() * number(0.25)))));
        assert_eq!(linear(&(x() - m()), 0), Some((1.0, Some(-m()))));
        assert_eq!(linear(&(x() * x()), 0), None);
        assert_eq!(linear(&(x() * m()), 0), None);
        assert_eq!(linear(&(m() / x()), 0), None);
    }

    #[test]
    fn what_replaces_by_minus_infinity_adds_it() {
        let (x, holds, lowest) = (|| Expr::arg(0), || Expr::arg(1), || number(f64::NEG_INFINITY));
        let seen = linear(&holds().select(x(), lowest()), 0);
        assert_eq!(seen, Some((1.0, Some(holds().select(number(0.0), lowest())))));
        let hidden = linear(&holds().select(lowest(), x() * number(2.0)), 0);
        assert_eq!(hidden, Some((2.0, Some(holds().select(lowest(), number(0.0))))));
        assert_eq!(linear(&holds().select(x(), number(-100.0)), 0), None);
    }
}
