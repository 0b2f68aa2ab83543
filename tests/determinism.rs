//! The same plan and the same input give the same bits, whatever place in a batch, slot and neighbours a row has: on
//! the CPU, in batches of one size and of several, alone and through a batcher.

mod support;

use std::path::Path;

use trefoil::model::Model;
use trefoil::{Batch, Device, Engine, EngineBuilder, OutputKind, Target};

use support::records;

/// Writes the bytes of the row with this number; rows with other numbers have other bytes.
fn noise(number: usize, out: &mut [u8]) {
    let mut state = number as u64;
    for byte in out {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (state >> 56) as u8;
    }
}

fn images(batch: &mut Batch, row: usize, number: usize) {
    noise(number, batch.row_mut(row));
}

fn joined(batch: &mut Batch, row: usize, number: usize) {
    noise(number, batch.port_mut::<u8>(row, "image").unwrap());
    batch.port_mut::<f32>(row, "numbers").unwrap().copy_from_slice(&[number as f32 / 3.0, -1.0 / number as f32]);
}

fn engine(model: &Model, sizes: &[usize], with: impl FnOnce(EngineBuilder) -> EngineBuilder) -> Engine {
    let cpu = Device::open(Target::Cpu).unwrap();
    with(Engine::builder(model).on(&cpu).batch_sizes(sizes).slots(2)).build().unwrap()
}

type Fill = fn(&mut Batch, usize, usize);

/// The result bytes of each row of a batch of these rows.
fn answers(engine: &Engine, fill: Fill, numbers: &[usize]) -> Vec<Vec<u8>> {
    let mut batch = engine.acquire().unwrap();
    numbers.iter().enumerate().for_each(|(row, &number)| fill(&mut batch, row, number));
    let output = batch.submit(numbers.len()).unwrap().wait().unwrap();
    (0..numbers.len()).map(|row| output.row(row).to_vec()).collect()
}

/// Checks row 1 in every place of batches with every number of rows, and in both slots, with other neighbours each
/// time.
fn check(engine: &Engine, fill: Fill) {
    let alone = answers(engine, fill, &[1]).remove(0);
    let mut next = 2;
    for rows in 1..=engine.capacity() {
        for place in 0..rows {
            for _slot in 0..2 {
                let mut numbers: Vec<usize> = (next..next + rows).collect();
                (numbers[place], next) = (1, next + rows);
                let found = answers(engine, fill, &numbers);
                assert!(found[place] == alone, "place {place} of {rows} rows");
                assert!(rows == 1 || found[(place + 1) % rows] != alone, "all rows give the same");
            }
        }
    }
}

fn convnet() -> Model {
    Model::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("weights/convnet28")).unwrap()
}

#[test]
fn images_give_the_same_bits_in_every_place_and_size() {
    for sizes in [&[7][..], &[1, 3, 7]] {
        check(&engine(&convnet(), sizes, |builder| builder.output(OutputKind::Logits)), images);
    }
}

#[test]
fn records_give_the_same_bits_in_every_place_and_size() {
    for sizes in [&[5][..], &[1, 2, 5]] {
        check(&engine(&records::joined(), sizes, |builder| builder), joined);
    }
}

#[test]
fn two_engines_of_one_plan_give_the_same_bits() {
    let of = || engine(&convnet(), &[4], |builder| builder.output(OutputKind::Features));
    assert!(answers(&of(), images, &[1, 2, 3, 4]) == answers(&of(), images, &[1, 2, 3, 4]));
}

#[test]
fn a_batcher_gives_the_bits_of_a_batch() {
    const ROWS: usize = 60;
    let engine = engine(&convnet(), &[1, 8], |builder| builder.output(OutputKind::Logits));
    let expected: Vec<Vec<u8>> = (0..ROWS).map(|number| answers(&engine, images, &[number]).remove(0)).collect();
    let batcher = engine.batcher().build().unwrap();
    let mut pixels = vec![0; batcher.input().row_bytes];
    let tickets: Vec<_> = (0..ROWS)
        .map(|number| {
            noise(number, &mut pixels);
            batcher.submit(&pixels).unwrap()
        })
        .collect();
    for (number, ticket) in tickets.into_iter().enumerate() {
        assert!(ticket.wait().unwrap().bytes() == expected[number], "row {number}");
    }
    assert!(batcher.stats().batches() < ROWS as u64, "every row was alone");
}
