//! Texts of a problem that lie end to end in one record.

use trefoil::model::Model;
use trefoil::{Batch, Device, Engine, Error, Pack, PackedTicket, Packer, Packing, Precision};

use super::super::random::Random;
use super::{Problem, Row, Shape, WORDS};

/// An engine whose rows lie in packs.
pub struct PackedEngine {
    pub engine: Engine,
    pub size: Packing,
    has_types: bool,
}

impl Problem {
    /// Whether the problem's rows are texts that may lie end to end.
    pub fn is_packed(&self) -> bool {
        matches!(self.shape, Shape::Text { has_mask: true, .. })
    }

    /// The encoder with packs of this size, on a device.
    pub fn packed(
        &self,
        device: &Device,
        precision: Precision,
        tokens: usize,
        rows: usize,
    ) -> Result<PackedEngine, Error> {
        let folder = self.folder();
        let model = Model::open_encoder(&folder.0, &self.asked.clone().packed(tokens, rows))?;
        let engine = Engine::builder(&model).on(device).precision(precision).check(true).build()?;
        let Shape::Text { has_types, .. } = self.shape else { panic!("{self} has no texts") };
        Ok(PackedEngine { engine, size: model.packing().expect("packed rows"), has_types })
    }

    /// A text with this many tokens.
    pub fn text(&self, tokens: usize) -> Row {
        let row = self.row(1); // which is as long as it may be
        let first = row.ids.len() - tokens; // it ends as a text does
        let part = |of: &[i64]| of[first..].to_vec();
        Row { ids: part(&row.ids), mask: part(&row.mask), types: part(&row.types), ..row }
    }

    /// Runs the problem's rows end to end, some of them twice, and compares with the expected results.
    pub fn run_packed(&self, device: &Device, precision: Precision) -> Result<(), String> {
        let told = |error: Error| format!("packed: {error}");
        let Shape::Text { tokens, .. } = self.shape else { panic!("{self} has no texts") };
        let of = self.packed(device, precision, 4 * tokens + 5, 6).map_err(told)?;
        let order = [2, 0, 1, 0];
        let rows = order.map(|index| self.row(index).seen());
        let mut pack = of.pack().map_err(told)?;
        for row in &rows {
            of.push(&mut pack, row).map_err(told)?.ok_or("a pack that has room is full")?;
        }
        let (ticket, packed) = pack.submit().map_err(told)?;
        let output = ticket.wait().map_err(told)?;
        for (place, (row, index)) in rows.iter().zip(order).enumerate() {
            self.compare(index, row, precision, |port| packed.port(&output, place, port))
                .map_err(|what| format!("packed as row {place}: {what}"))?;
        }
        Ok(())
    }

    /// Runs random packs of texts of all lengths, from one token to the longest: alone, in full packs, first, last and
    /// in between. Each text must get the same bits in all of them.
    pub fn has_one_answer_in_every_pack(&self, device: &Device, precision: Precision) -> Result<(), String> {
        let engine = self.packed(device, precision, 50, 7).map_err(|error| error.to_string())?;
        let longest = engine.size.longest;
        let lengths = [1, 2, 3, longest / 2, longest - 1, longest];
        let texts = lengths.map(|tokens| self.text(tokens));
        let alone = texts.each_ref().map(|text| engine.bits(&[text]).remove(0));
        let mut random = Random::new(self.name);
        for _ in 0..6 {
            let (mut order, mut left) = (Vec::new(), engine.size.tokens);
            while order.len() < engine.size.rows && left > 0 {
                let index = random.between(0, texts.len() - 1);
                let index = if lengths[index] <= left { index } else { 0 };
                left -= lengths[index];
                order.push(index);
            }
            let found = engine.bits(&order.iter().map(|&index| &texts[index]).collect::<Vec<_>>());
            if let Some(place) = order.iter().zip(&found).position(|(&index, found)| *found != alone[index]) {
                return Err(format!("text {} has other bits as row {place} of {order:?}", order[place]));
            }
        }
        Ok(())
    }
}

impl PackedEngine {
    pub fn pack(&self) -> Result<Pack, Error> {
        Pack::new(self.engine.acquire()?, self.size)
    }

    pub fn push(&self, pack: &mut Pack, row: &Row) -> Result<Option<usize>, Error> {
        pack.push(self.inputs(&row.inputs()))
    }

    pub fn submit(&self, packer: &Packer, row: &Row) -> Result<PackedTicket, Error> {
        packer.submit(self.inputs(&row.inputs()))
    }

    /// The inputs that the encoder has, of all that are given.
    fn inputs<'a, 'b>(&self, all: &'b [(&'a str, &'a [i64]); 2]) -> &'b [(&'a str, &'a [i64])] {
        if self.has_types { all } else { &all[..1] }
    }

    /// The bits of each row's result when all rows are in one pack.
    pub fn bits(&self, rows: &[&Row]) -> Vec<Vec<u32>> {
        let mut pack = self.pack().unwrap();
        for row in rows {
            self.push(&mut pack, row).unwrap().expect("room");
        }
        let (ticket, packed) = pack.submit().unwrap();
        let output = ticket.wait().unwrap();
        let name = output.spec().ports()[0].name.clone();
        let of = |row| packed.port::<f32>(&output, row, &name).unwrap().iter().map(|x| x.to_bits()).collect();
        (0..rows.len()).map(of).collect()
    }

    /// A batch with arbitrary row starts and tokens of the vocabulary.
    pub fn hostile(&self, random: &mut Random) -> Batch {
        let mut batch = self.engine.acquire().unwrap();
        let ids = batch.port_mut::<i64>(0, "input_ids").unwrap();
        ids.iter_mut().for_each(|id| *id = random.between(0, WORDS - 1) as i64);
        for start in batch.port_mut::<i64>(0, "starts").unwrap() {
            let near = random.between(0, 2 * self.size.tokens) as i64;
            *start = random.pick(&[i64::MIN, i64::MAX, -1 - near, near, near]);
        }
        batch
    }
}

impl Row {
    fn inputs(&self) -> [(&str, &[i64]); 2] {
        [("input_ids", &self.ids), ("token_type_ids", &self.types)]
    }

    /// The row without the tokens that the mask hides.
    fn seen(&self) -> Self {
        let count = self.mask.iter().filter(|&&shown| shown != 0).count();
        let part = |of: &[i64]| of[..count].to_vec();
        Self { ids: part(&self.ids), mask: part(&self.mask), types: part(&self.types), ..self.clone() }
    }
}
