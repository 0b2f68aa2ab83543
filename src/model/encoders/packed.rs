//! Encoders of texts whose rows lie end to end, so that nothing is padded. A token's values are those of rows of one
//! length. The beginning of its row gives its position and the tokens that it attends to.

use super::block::{Block, HIDDEN, Seen};
use super::options::Pooling;
use super::packed_rows::Rows;
use super::places::{buckets_by_distance, distances};
use super::text::Text;
use crate::error::Error;
use crate::graph::{Op, ValueId};
use crate::tensor::{Dtype, Packing};

/// The largest number of tokens of a pack.
const MOST_TOKENS: usize = 1 << 24;

impl Text {
    /// The reason why rows cannot lie end to end; `None` if they can.
    pub fn is_not_packed(&self) -> Option<&'static str> {
        self.end.is_none().then_some("its tokens see those that fill a row")
    }

    /// The graph for rows that lie end to end.
    ///
    /// # Errors
    /// [`Error::Option`] for an impossible size.
    pub fn packed(&self, of: Packing) -> Result<Block, Error> {
        self.check_packing(of)?;
        let mut block = Block::new(&self.stack);
        let ids = block.g.input("input_ids", Dtype::I64, &[of.tokens]);
        let starts = block.g.input("starts", Dtype::I64, &[of.rows + 1]);
        let types = self.has_types().then(|| block.g.input("token_type_ids", Dtype::I64, &[of.tokens]));
        let mut one_row = |name: &str, x| block.g.node(name, Op::Reshape(vec![1, of.tokens]), &[x]);
        let (together, types) = (one_row("ids", ids), types.map(|types| one_row("types.ids", types)));
        let rows = Rows::new(&mut block, starts, of);
        let places = self.places.map(|_| rows.places(&mut block, self.first_place));
        let x = self.embedded(&mut block, together, types, places);
        let seen = self.seen_in(&mut block, &rows);
        let x = block.layers(&self.stack, x, &seen, of.tokens);
        let x = self.normed(&mut block, self.last_norm, x);
        let x = block.g.node("tokens", Op::Reshape(vec![of.tokens, self.stack.width]), &[x]);
        let x = match self.pooling {
            Pooling::Tokens => x,
            Pooling::Mean => rows.mean(&mut block, x),
            Pooling::Class => rows.at(&mut block, x, None),
            Pooling::Last => {
                let last = rows.last(&mut block, ids, self.end.expect("a family that may be packed"));
                rows.at(&mut block, x, Some(last))
            }
        };
        self.give(&mut block, x);
        Ok(block)
    }

    fn check_packing(&self, of: Packing) -> Result<(), Error> {
        if !(1..=MOST_TOKENS).contains(&of.tokens) || !(1..=of.tokens).contains(&of.rows) {
            let expected = format!("1 to {MOST_TOKENS} tokens, and 1 row or more, at most one for each token");
            return Err(Error::option("packed", of, expected));
        }
        let most = self.most.min(of.tokens);
        if !(1..=most).contains(&of.longest) {
            let expected = format!("rows of 1 to {most} tokens");
            return Err(Error::option("packed", of, expected));
        }
        Ok(())
    }

    /// The attention of layers, for one layer or several in turn.
    fn seen_in(&self, block: &mut Block, rows: &Rows) -> Vec<Seen> {
        let longest = rows.of.longest;
        let packed = Some((rows.starts, longest));
        let added = match self.distances {
            Some(distances) => Some(self.biases(block, distances, longest)),
            None => self.is_causal.then(|| hidden(block, longest, |distance| distance > 0)),
        };
        if self.spans.is_empty() {
            return vec![Seen { added, turned: None, packed }];
        }
        self.by_spans(|span| {
            let reach = span.reach.filter(|reach| reach + 1 < longest);
            let is_far = |distance: i64, reach: usize| distance.unsigned_abs() > reach as u64;
            let added = reach.map(|reach| hidden(block, longest, |distance| is_far(distance, reach)));
            let turns = self.turns(block, span.base, longest);
            Seen { added, turned: Some(turns.map(|table| rows.turns(block, table))), packed }
        })
    }

    /// The numbers that are added to the scores of each head by distance, `[heads, 2 longest - 1]`.
    fn biases(&self, block: &mut Block, (name, buckets): (&str, usize), longest: usize) -> ValueId {
        let table = block.weight(&format!("{}.weight", self.stack.name(name)), &[buckets, self.stack.heads]);
        let places = buckets_by_distance(longest, buckets);
        let places = block.g.constant(Dtype::I64, &[places.len()], bytemuck::cast_slice::<i64, u8>(&places).to_vec());
        let biases = block.g.node("distances", Op::Gather(0), &[table, places]);
        block.g.node("distances.turned", Op::Transpose(vec![1, 0]), &[biases])
    }
}

/// The numbers that hide keys at some distances, `[1, 2 longest - 1]`.
fn hidden(block: &mut Block, longest: usize, is_hidden: impl Fn(i64) -> bool) -> ValueId {
    let added = |distance: i64| if is_hidden(distance) { HIDDEN as f32 } else { 0.0 };
    let all: Vec<f32> = distances(longest).map(added).collect();
    block.g.constant(Dtype::F32, &[1, all.len()], bytemuck::cast_slice::<f32, u8>(&all).to_vec())
}
