//! The shipped Fashion-MNIST network on the first 1,000 test images, through the ring.

use std::fs::File;
use std::io::Read;

use flate2::read::GzDecoder;
use trefoil::model::Model;
use trefoil::{Device, Engine, Target};

const IMAGES: usize = 1000;
const PIXELS: usize = 28 * 28;

/// The bytes behind an IDX header of `header` bytes.
fn idx(path: &str, header: usize, bytes: usize) -> Vec<u8> {
    let mut all = Vec::new();
    GzDecoder::new(File::open(path).unwrap()).read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), header + bytes, "{path}");
    all.split_off(header)
}

#[test]
fn convnet28_classifies_fashion_mnist() {
    let images = idx("tests/data/fashion-mnist-1000.idx3.gz", 16, IMAGES * PIXELS);
    let labels = idx("tests/data/fashion-mnist-1000.labels.idx1.gz", 8, IMAGES);
    let model = Model::open("weights/convnet28").unwrap();
    let engine = Engine::builder(&model).on(&Device::open(Target::Cpu).unwrap()).batch(32).build().unwrap();
    let mut tickets = std::collections::VecDeque::new();
    let mut right = 0;
    let mut count = |(output, labels): (trefoil::Output, &[u8])| {
        right += labels
            .iter()
            .enumerate()
            .filter(|&(row, &label)| output.top_k(row, 1).unwrap()[0].0 == usize::from(label))
            .count();
    };
    for (images, labels) in images.chunks(32 * PIXELS).zip(labels.chunks(32)) {
        let mut batch = engine.acquire().unwrap();
        for (row, image) in batch.rows_mut().zip(images.chunks(PIXELS)) {
            row.copy_from_slice(image);
        }
        tickets.push_back((batch.submit(labels.len()).unwrap(), labels));
        if tickets.len() > engine.slots() {
            let (ticket, labels) = tickets.pop_front().unwrap();
            count((ticket.wait().unwrap(), labels));
        }
    }
    for (ticket, labels) in tickets {
        count((ticket.wait().unwrap(), labels));
    }
    // The stored weights get 949 of these right when PyTorch runs them; rounding may move a near-tie.
    assert!((945..=953).contains(&right), "{right} of {IMAGES} right");
}
