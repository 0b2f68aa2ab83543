//! Numbers of e4m3 as graphs have them: codes of eight bits, and products of values that are known as such codes.

use super::expr::{Binary, Expr, Number, Unary};
use super::op::Op;
use super::value::{Constant, Graph, Node, Origin, ValueId};
use crate::graph::Tensor;
use crate::tensor::Dtype;

/// The largest number of e4m3.
pub const MOST_E4M3: f32 = 448.0;

/// The code of the number of e4m3 that is nearest to x, ties to the even code; what is beyond 448 becomes 448 with its
/// sign, and NaN the code 0x7f.
pub(crate) fn encode(x: f32) -> u8 {
    let (size, sign) = (x.abs(), (x.to_bits() >> 24) as u8 & 0x80);
    if x.is_nan() {
        return NAN;
    }
    let code = if size < LEAST_NORMAL {
        // The sum has a unit in the last place of 2^-9, which is the least number.
        (size + TO_UNITS).to_bits() - TO_UNITS.to_bits()
    } else {
        let bits = size.min(MOST_E4M3).to_bits();
        let odd = (bits >> DROPPED) & 1;
        ((bits + (1 << (DROPPED - 1)) - 1 + odd) >> DROPPED) - (BIAS << 3)
    };
    code as u8 | sign
}

/// The number of a code of e4m3: a sign, four bits of exponent with a bias of 7, three of mantissa; 0x7f and 0xff are NaN.
pub(crate) fn decode(code: u8) -> f32 {
    let size = f32::from_bits(u32::from(code & NAN) << DROPPED) * UNBIASED;
    let size = if code & NAN == NAN { f32::NAN } else { size };
    if code & 0x80 == 0 { size } else { -size }
}

/// The code of NaN without its sign.
pub(crate) const NAN: u8 = 0x7f;
/// The least number whose mantissa has all its bits: 2^-6.
pub(crate) const LEAST_NORMAL: f32 = 0.015_625;
/// The number whose unit in the last place is 2^-9.
pub(crate) const TO_UNITS: f32 = 16_384.0;
/// The bits of a mantissa that f32 has in addition, and the difference of the biases.
pub(crate) const DROPPED: u32 = 20;
pub(crate) const BIAS: u32 = 127 - 7;
/// 2^120, by the difference of the biases.
pub(crate) const UNBIASED: f32 = f32::from_bits((127 + BIAS) << 23);

/// A value whose elements are those of codes of e4m3, times a number, times a factor for each index of one axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Coded {
    /// The codes, bytes in the layout of the value, or in that of its transpose.
    pub codes: ValueId,
    /// The number.
    pub factor: f64,
    /// The constant with the factors, and its dimensions as they are broadcast to those of the codes.
    pub unit: Option<ValueId>,
    /// Whether the codes lie as in the transposed matrix.
    pub transposed: bool,
}

impl Coded {
    /// The value as codes; `None` if the graph does not compute it from codes of e4m3 in this way.
    pub fn of(graph: &Graph, id: ValueId) -> Option<Self> {
        let node = writer(graph, id)?;
        match &node.op {
            Op::Map(expr) => Self::of_expr(graph, node, expr),
            // Codes lie as the value does.
            Op::Reshape(_) => Self::of(graph, node.inputs[0]?).filter(|of| of.unit.is_none() && !of.transposed),
            Op::Transpose(order) if order[..] == [1, 0] => {
                Self::of(graph, node.inputs[0]?).map(|of| Self { transposed: !of.transposed, ..of })
            }
            _ => None,
        }
    }

    fn of_expr(graph: &Graph, node: &Node, expr: &Expr) -> Option<Self> {
        let of_side = |side: &Expr| Self::of_expr(graph, node, side);
        match expr {
            Expr::Arg(number) => Self::of(graph, node.inputs[*number]?),
            Expr::Cast(Dtype::F32, of) => of_side(of),
            Expr::Unary(Unary::OfE4m3, of) => match **of {
                Expr::Arg(number) => {
                    Some(Self { codes: node.inputs[number]?, factor: 1.0, unit: None, transposed: false })
                }
                _ => None,
            },
            Expr::Binary(Binary::Mul, sides) => {
                let [a, b] = &**sides;
                let (of, other) = of_side(a).map(|of| (of, b)).or_else(|| of_side(b).map(|of| (of, a)))?;
                of.times(graph, node, other)
            }
            _ => None,
        }
    }

    /// The value times a number or a constant vector.
    fn times(self, graph: &Graph, node: &Node, other: &Expr) -> Option<Self> {
        if let Some(number) = number(graph, node, other) {
            return Some(Self { factor: self.factor * number, ..self });
        }
        let (Expr::Arg(number), None, false) = (other, self.unit, self.transposed) else { return None };
        let unit = node.inputs[*number]?;
        Some(Self { unit: Some(unit), ..self })
    }

    /// The constant whose elements are the factors of `count` indices of the codes' axis `axis`, if there are factors and
    /// they are those of this axis.
    pub fn units(&self, graph: &Graph, axis: usize, count: usize) -> Option<ValueId> {
        let unit = self.unit?;
        let dims = &graph.value(unit).dims;
        let from_end = graph.value(self.codes).rank().checked_sub(1 + axis)?;
        let is_there = dims.len().checked_sub(1 + from_end).is_some_and(|at| dims[at] == count);
        let constant = match writer(graph, unit) {
            Some(Node { op: Op::Reshape(_), inputs, .. }) => inputs[0]?,
            _ => unit,
        };
        let of = graph.value(constant);
        let is_vector = is_there && of.elems() == count && of.dtype == Dtype::F32;
        (is_vector && graph.constant(constant).is_some()).then_some(constant)
    }
}

/// The codes of x over `scale` as an expression, where the quotient is a product with 1 / scale in f32.
pub(crate) fn rounded(x: Expr, scale: f32) -> Expr {
    (x * Expr::float(Dtype::F32, (1.0 / scale).into())).unary(Unary::ToE4m3)
}

/// Whether values may be divided by this scale before they are rounded, as kernels do it: by a product with its reciprocal.
pub(crate) fn is_scale(scale: f32) -> bool {
    scale > 0.0 && [scale, scale.recip()].iter().all(|of| of.is_normal())
}

/// The number of an expression, or of the constant of one element that it reads, in f32.
fn number(graph: &Graph, node: &Node, expr: &Expr) -> Option<f64> {
    match expr {
        Expr::Const(Dtype::F32, Number::Float(number)) => Some(*number),
        Expr::Arg(number) => {
            let id = node.inputs[*number]?;
            let of = graph.value(id);
            match graph.constant(id)? {
                Constant::Bytes(bytes) if of.elems() == 1 && of.dtype == Dtype::F32 => {
                    Some(Tensor::from_bytes(of.clone(), bytes).elems::<f32>()[0].into())
                }
                _ => None,
            }
        }
        _ => None,
    }
}

fn writer(graph: &Graph, id: ValueId) -> Option<&Node> {
    match graph.values[id.0].origin {
        Origin::Node(node, 0) => Some(&graph.nodes[node.0]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_nearest_numbers() {
        let numbers: Vec<f32> = (0..NAN).map(decode).collect();
        assert_eq!((numbers[1], numbers[8], numbers[0x7e]), (2_f32.powi(-9), LEAST_NORMAL, MOST_E4M3));
        assert!(numbers.is_sorted() && decode(0xff).is_nan() && decode(0x80).to_bits() == 1 << 31);
        for code in 0..NAN {
            let x = numbers[usize::from(code)];
            assert_eq!((encode(x), encode(-x)), (code, code | 0x80));
            let Some(&next) = numbers.get(usize::from(code) + 1) else { continue };
            let middle = (x + next) / 2.0;
            assert_eq!(encode(middle), code + code % 2);
            assert_eq!((encode(middle.next_down()), encode(middle.next_up())), (code, code + 1));
        }
        assert_eq!([f32::INFINITY, -1e9, f32::NAN, -f32::NAN].map(encode), [0x7e, 0xfe, 0x7f, 0x7f]);
    }
}
