//! Products of matrices and of tensors.

use std::collections::HashMap;

use super::Operator::One;
use super::{Outcome, Table};
use crate::graph::{Contract, Expr, Op, ReduceOp, ValueId};
use crate::onnx::import::{Call, Context, number};

pub(super) const TABLE: Table =
    &[("MatMul", One(matmul)), ("Gemm", One(gemm)), ("Einsum", One(einsum)), ("Det", One(det))];

fn matmul(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (a, b) = (c.x(0)?, c.x(1)?);
    matrices(c, a, b)
}

/// A product of matrices; no operand may be a scalar.
pub(super) fn matrices(c: &mut Context<'_>, a: ValueId, b: ValueId) -> Outcome<ValueId> {
    if c.rank(a) == 0 || c.rank(b) == 0 {
        return Err("expected operands with axes, found a scalar".into());
    }
    let (left, right) = (c.rank(a) - 1, c.rank(b).saturating_sub(2));
    same_inner(c, [(a, left), (b, right)])?;
    c.matmul(a, b)
}

/// Checks that two operands have the same size along the axes that are summed over: no axis of size 1 stands for all.
fn same_inner(c: &Context<'_>, [(a, left), (b, right)]: [(ValueId, usize); 2]) -> Outcome<()> {
    let [inner, other] = [c.dim(a, left)?, c.dim(b, right)?];
    match inner == other {
        true => Ok(()),
        false => Err(format!(
            "expected operands with one inner size, found {inner} of {} and {other} of {}",
            c.of(a),
            c.of(b)
        )),
    }
}

/// alpha x A x B + beta x C, where A and B may be transposed.
fn gemm(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (a, b) = (c.x(0)?, c.x(1)?);
    let product = rows_by_columns(c, a, b)?;
    let product = c.cx.scaled(product, c.float_or("alpha", 1.0))?;
    match c.maybe(2) {
        None => Ok(product),
        Some(bias) => {
            let bias = c.cx.scaled(bias, c.float_or("beta", 1.0))?;
            c.add(product, bias)
        }
    }
}

/// The product of two matrices, each of which may be transposed.
pub(super) fn rows_by_columns(c: &mut Call<'_, '_>, a: ValueId, b: ValueId) -> Outcome<ValueId> {
    let labels = |turned, [row, column]: [usize; 2]| if turned { vec![column, row] } else { vec![row, column] };
    let (turned_a, turned_b) = (c.flag("transA"), c.flag("transB"));
    same_inner(c, [(a, usize::from(!turned_a)), (b, usize::from(turned_b))])?;
    let contract = Contract { left: labels(turned_a, [0, 2]), right: labels(turned_b, [2, 1]), result: vec![0, 1] };
    c.op(Op::Contract(contract), &[a, b])
}

/// The labels of a term's axes. The axes of an ellipsis have labels after those of all letters, so that the last axes
/// match.
fn labels(term: &str, rank: usize) -> Outcome<Vec<usize>> {
    let letters: Vec<char> = term.chars().filter(|letter| !letter.is_whitespace()).collect();
    let dots = letters.iter().position(|&letter| letter == '.');
    let label = |&letter: &char| match letter.is_ascii_alphabetic() {
        true => Ok(letter as usize),
        false => Err(format!("equation: expected letters and one ellipsis, found `{term}`")),
    };
    let Some(at) = dots else {
        let all: Vec<usize> = letters.iter().map(label).collect::<Outcome<_>>()?;
        return match all.len() == rank {
            true => Ok(all),
            false => Err(format!("equation: `{term}` for an operand of {rank} axes")),
        };
    };
    if letters.get(at..at + 3) != Some(&['.'; 3]) || letters.len() - 3 > rank {
        return Err(format!("equation: `{term}` for an operand of {rank} axes"));
    }
    let left = letters[..at].iter().map(label).collect::<Outcome<Vec<_>>>()?;
    let right = letters[at + 3..].iter().map(label).collect::<Outcome<Vec<_>>>()?;
    let outer = rank - left.len() - right.len();
    Ok([left, (0..outer).map(|axis| ELLIPSIS - outer + axis).collect(), right].concat())
}

/// The end of the labels for the axes of an ellipsis, which are larger than those of letters.
const ELLIPSIS: usize = 1000;

/// Contracts the operands one after the other. A label is kept while a later operand or the result has it.
fn einsum(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let equation = c.text_or("equation", "");
    let (terms, result) = match equation.split_once("->") {
        Some((terms, result)) => (terms, Some(result)),
        None => (equation, None),
    };
    let all = c.all()?;
    let terms: Vec<&str> = terms.split(',').collect();
    if terms.len() != all.len() || all.is_empty() {
        return Err(format!("equation: `{equation}` for {} operands", all.len()));
    }
    let each = all.iter().zip(&terms).map(|(&value, term)| labels(term, c.rank(value)));
    let each = each.collect::<Outcome<Vec<_>>>()?;
    let result = result_labels(result, each.concat())?;
    let last: HashMap<usize, usize> =
        each.iter().enumerate().flat_map(|(index, labels)| labels.iter().map(move |&label| (label, index))).collect();
    let mut operands = all.iter().zip(each).enumerate();
    let (_, (&first, labels)) = operands.next().ok_or("expected operands, found none")?;
    let (mut value, mut of) = diagonal(c, first, labels)?;
    for (index, (&next, labels)) in operands {
        let (next, right) = diagonal(c, next, labels)?;
        let later = |label: &usize| result.contains(label) || last[label] > index;
        let mut kept = of.clone();
        kept.extend(right.iter().filter(|label| !of.contains(label)));
        kept.retain(later);
        let summed: Vec<usize> =
            of.iter().copied().filter(|label| right.contains(label) && !kept.contains(label)).collect();
        let [left, next] = spread(c, [(value, &of), (next, &right)], &summed)?;
        let contract = Contract { left: of, right, result: kept.clone() };
        value = c.op(Op::Contract(contract), &[left, next])?;
        of = kept;
    }
    let summed: Vec<usize> = (0..of.len()).filter(|&axis| !result.contains(&of[axis])).collect();
    let value = c.reduce(value, ReduceOp::Sum, &summed, false)?;
    of.retain(|label| result.contains(label));
    let order = result.iter().map(|label| of.iter().position(|l| l == label)).collect::<Option<Vec<_>>>();
    let order = order.ok_or_else(|| format!("equation: `{equation}` has a result that no operand gives"))?;
    c.transpose(value, &order)
}

/// Two operands, of which those of size 1 along a label that is summed over are broadcast to the other's size.
fn spread(c: &mut Context<'_>, both: [(ValueId, &[usize]); 2], summed: &[usize]) -> Outcome<[ValueId; 2]> {
    let old = both.map(|(value, _)| c.dims(value));
    let mut dims = old.clone();
    for label in summed {
        let axes = both.map(|(_, labels)| labels.iter().position(|other| other == label));
        if let [Some(left), Some(right)] = axes {
            match (dims[0][left], dims[1][right]) {
                (1, size) => dims[0][left] = size,
                (size, 1) => dims[1][right] = size,
                _ => {}
            }
        }
    }
    let mut spread = both.map(|(value, _)| value);
    for (value, (dims, old)) in spread.iter_mut().zip(dims.iter().zip(&old)) {
        if dims != old {
            *value = c.broadcast(*value, dims)?;
        }
    }
    Ok(spread)
}

/// The labels of the result; `all` are those of the operands. Without a result term, the result has all labels that
/// occur once, in alphabetical order, after those of the ellipsis.
fn result_labels(result: Option<&str>, mut all: Vec<usize>) -> Outcome<Vec<usize>> {
    all.sort_unstable();
    let is_letter = |label: &usize| *label < 256;
    let mut outer: Vec<usize> = all.iter().copied().filter(|label| !is_letter(label)).collect();
    outer.dedup();
    match result {
        Some(result) => {
            let letters = result.chars().filter(char::is_ascii_alphabetic).count();
            let dots = if result.contains('.') { outer.len() } else { 0 };
            labels(result, letters + dots)
        }
        None => {
            let once = all.chunk_by(|a, b| a == b).filter(|equal| equal.len() == 1).flatten().copied();
            Ok(outer.into_iter().chain(once.filter(is_letter)).collect())
        }
    }
}

/// An operand with each label once: a repeated label stands for the diagonal.
fn diagonal(c: &mut Context<'_>, mut value: ValueId, mut labels: Vec<usize>) -> Outcome<(ValueId, Vec<usize>)> {
    use crate::graph::Binary::Equal;
    while let Some(second) = (1..labels.len()).find(|&axis| labels[..axis].contains(&labels[axis])) {
        let first = labels.iter().position(|label| *label == labels[second]).expect("it was just found");
        let dtype = c.dtype(value);
        let on = Expr::Axis(first).binary(Equal, Expr::Axis(second));
        let kept = c.map(on.select(Expr::arg(0), number(dtype, 0.0)), &[value])?;
        value = c.reduce(kept, ReduceOp::Sum, &[second], false)?;
        labels.remove(second);
    }
    Ok((value, labels))
}

/// The determinant of matrices up to 4 x 4, by cofactors of the first row.
fn det(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let dims = c.dims(x);
    let [outer @ .., rows, columns] = &dims[..] else { return Err(format!("expected matrices, found {}", c.of(x))) };
    if rows != columns || *rows == 0 || *rows > 4 {
        return Err(format!("expected square matrices up to 4 x 4, found {rows} x {columns}"));
    }
    let size = *rows;
    let mut elems = Vec::new();
    for at in 0..size * size {
        let row = c.at(x, outer.len(), at / size)?;
        elems.push(c.at(row, outer.len(), at % size)?);
    }
    let columns: Vec<usize> = (0..size).collect();
    let y = c.map(cofactors(size, 0, &columns), &elems)?;
    Ok(y)
}

fn cofactors(size: usize, row: usize, columns: &[usize]) -> Expr {
    let term = |(index, &column): (usize, &usize)| {
        let elem = Expr::arg(row * size + column);
        let elem = if index % 2 == 1 { -elem } else { elem };
        let rest: Vec<usize> = columns.iter().copied().filter(|&other| other != column).collect();
        if rest.is_empty() { elem } else { elem * cofactors(size, row + 1, &rest) }
    };
    columns.iter().enumerate().map(term).reduce(|sum, next| sum + next).expect("a matrix has columns")
}
