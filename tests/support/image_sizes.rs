//! Networks of images at several sizes of their images, on any device: answers equal those of engines of one size, bit
//! by bit.

use std::time::Duration;

use trefoil::model::{Model, Preprocessing, architecture};
use trefoil::{Close, Device, Engine, EngineBuilder, Error, Output, OutputKind, Shape, Size};

/// Height and width of each kind of rows, and its batch sizes.
const SIZES: [([usize; 2], &[usize]); 3] = [([28, 28], &[2, 4]), ([20, 36], &[1, 3]), ([8, 12], &[2])];

fn size(batch: usize, [height, width]: [usize; 2]) -> Size {
    Size::new(batch).dim("height", height).dim("width", width)
}

fn sizes() -> Vec<Size> {
    SIZES.iter().flat_map(|&(image, batches)| batches.iter().map(move |&batch| size(batch, image))).collect()
}

fn model() -> Model {
    Model::open("weights/convnet28").unwrap()
}

fn on<'a>(builder: EngineBuilder<'a>, device: &Device) -> EngineBuilder<'a> {
    builder.on(device).check(true)
}

/// The pixels of a row.
fn pixels(seed: usize, [height, width]: [usize; 2]) -> Vec<u8> {
    (0..height * width).map(|i| ((i * 2_654_435_761 + seed * 40_503) >> 7) as u8).collect()
}

/// The results of `rows` rows of one size.
fn rows_of(engine: &Engine, rows: usize, image: [usize; 2]) -> Output {
    let mut batch = engine.acquire_for(&size(rows, image)).unwrap();
    assert_eq!(batch.spec().row_bytes, image[0] * image[1]);
    (0..rows).for_each(|row| batch.row_mut(row).copy_from_slice(&pixels(row, image)));
    batch.submit(rows).unwrap().wait().unwrap()
}

fn same(found: &Output, wanted: &Output, what: &str) {
    assert_eq!((found.rows(), found.parts()), (wanted.rows(), wanted.parts()), "{what}");
    for number in 0..found.parts() {
        let [found_part, wanted_part] = [found, wanted].map(|output| output.part(number));
        assert_eq!(found_part.spec(), wanted_part.spec(), "{what}");
        (0..found.rows()).for_each(|row| assert_eq!(found_part.row(row), wanted_part.row(row), "{what}, row {row}"));
    }
}

/// Compares an engine of all sizes with one for each of them.
fn compare(all: &Engine, one: impl Fn([usize; 2]) -> Engine) {
    for (image, batches) in SIZES {
        let one = one(image);
        for rows in 1..=*batches.last().unwrap() {
            let (found, wanted) = (rows_of(all, rows, image), rows_of(&one, rows, image));
            same(&found, &wanted, &format!("{rows} rows of {image:?}"));
        }
    }
}

fn batches(image: [usize; 2]) -> &'static [usize] {
    SIZES.iter().find(|(other, _)| *other == image).unwrap().1
}

pub fn images_of_every_size_are_as_in_engines_of_one(device: &Device) {
    let model = model();
    for output in [OutputKind::Logits, OutputKind::TopK(3), OutputKind::Features] {
        let all = on(Engine::builder(&model), device).output(output).sizes(&sizes()).build().unwrap();
        assert_eq!(all.sizes(), sizes());
        let one = |image| {
            let model = model.at(&size(1, image)).unwrap();
            let [height, width] = image;
            assert_eq!(model.preprocessing().unwrap().input, Shape::new(height, width, 1));
            on(Engine::builder(&model), device).output(output).batch_sizes(batches(image)).build().unwrap()
        };
        compare(&all, one);
    }
}

/// Changes of a model apply at every size: here a model that is cut at a node.
pub fn parts_of_a_model_have_every_size(device: &Device) {
    let model = model();
    let cut = model.features_at("relu5").unwrap();
    let all = on(Engine::builder(&cut), device).output(OutputKind::Features).sizes(&sizes()).build().unwrap();
    for ([height, width], _) in SIZES {
        let result = all.rows_for(&size(1, [height, width])).unwrap().1;
        assert_eq!(result.ports()[0].dims, [height / 4, width / 4, 128]);
    }
    compare(&all, |image| {
        let cut = model.at(&size(1, image)).unwrap().features_at("relu5").unwrap();
        let builder = on(Engine::builder(&cut), device).output(OutputKind::Features);
        builder.batch_sizes(batches(image)).build().unwrap()
    });
}

/// At every size the second part reads the features of the first one, and so does a second head.
pub fn models_that_read_images_features_have_every_size(device: &Device) {
    let model = model();
    let split = |model: &Model| model.split_at("relu3").unwrap();
    let (first, second) = split(&model);
    let all = on(Engine::builder(&first).then(&second).beside(&second), device).sizes(&sizes()).build().unwrap();
    compare(&all, |image| {
        let (first, second) = split(&model.at(&size(1, image)).unwrap());
        let builder = on(Engine::builder(&first).then(&second).beside(&second), device);
        builder.batch_sizes(batches(image)).build().unwrap()
    });
}

pub fn a_mean_of_image_models_is_there_at_every_size(device: &Device) {
    let model = model();
    let all = on(Engine::builder(&model).beside(&model).average(), device).sizes(&sizes()).build().unwrap();
    compare(&all, |image| {
        let model = model.at(&size(1, image)).unwrap();
        let builder = on(Engine::builder(&model).beside(&model).average(), device);
        builder.batch_sizes(batches(image)).build().unwrap()
    });
}

pub fn a_batcher_has_images_of_every_size(device: &Device) {
    let model = model();
    // Each size has one batch size, so that a row's result does not depend on the rows beside it.
    let sizes = SIZES.map(|(image, _)| size(3, image));
    let engine = on(Engine::builder(&model), device).sizes(&sizes).build().unwrap();
    // Before rows are sent: their results may take all slots until they are read.
    let wanted = SIZES.map(|(image, _)| rows_of(&engine, 1, image).row(0).to_vec());
    let batcher = engine.batcher().build().unwrap();
    let send = |seed: usize| {
        let image = SIZES[seed % SIZES.len()].0;
        let mut row = batcher.request().size(&size(1, image)).unwrap().row().unwrap();
        row.bytes_mut().copy_from_slice(&pixels(0, image));
        (row.submit().unwrap(), seed % SIZES.len())
    };
    let tickets: Vec<_> = (0..30).map(send).collect();
    for (ticket, index) in tickets {
        assert_eq!(ticket.wait().unwrap().bytes(), wanted[index], "{:?}", SIZES[index].0);
    }
    assert!(matches!(batcher.request().size(&size(1, [28, 20])), Err(Error::Option { option: "size", .. })));
    batcher.close(Close::Drain, Duration::from_secs(20)).unwrap();
}

pub fn a_fleet_has_images_of_every_size(device: &Device) {
    let model = model();
    let builder = || on(Engine::builder(&model), device).sizes(&sizes());
    let fleet = builder().build_on(std::slice::from_ref(device)).unwrap();
    let engine = builder().build().unwrap();
    for (image, _) in SIZES {
        let mut batch = fleet.acquire_for(&size(1, image)).unwrap();
        batch.row_mut(0).copy_from_slice(&pixels(0, image));
        let found = batch.submit(1).unwrap().wait().unwrap();
        same(&found, &rows_of(&engine, 1, image), &format!("{image:?}"));
    }
}

pub fn sizes_that_images_cannot_have_are_told(device: &Device) {
    let model = model();
    let build = |model: &Model, sizes: &[Size]| {
        on(Engine::builder(model), device).sizes(sizes).build().unwrap_err().to_string()
    };
    let refused = build(&model, &[size(1, [28, 28]).dim("depth", 3)]);
    assert!(refused.ends_with("expected sizes of the model's free dimensions: `height`, `width`"), "{refused}");
    // Nothing is left of three pixels that are halved twice; the error names all such sizes.
    let refused = build(&model, &[size(4, [28, 28]), size(1, [3, 28]), size(2, [3, 28]), size(1, [28, 2])]);
    let start =
        "sizes is height=3,width=28; height=28,width=2: expected sizes that the model has; at height=3,width=28: ";
    assert!(refused.starts_with(start) && refused.contains("; at height=28,width=2: "), "{refused}");
    assert_eq!(refused.matches("pool4").count(), 2, "{refused}");

    let graph = architecture("trefoil_convnet28", 10, None).unwrap();
    let fixed =
        Model::new(graph, model.weights().clone(), Preprocessing::new(Shape::new(28, 28, 1)), Vec::new()).unwrap();
    let refused = build(&fixed, &[size(1, [28, 28])]);
    assert!(refused.contains("free dimensions: no sizes") && refused.contains("`Model::of_images`"), "{refused}");
    let engine = on(Engine::builder(&fixed), device).batch_sizes(&[2]).build().unwrap();
    assert_eq!(engine.sizes(), [Size::new(2)]);
    assert!(engine.acquire_for(&size(1, [28, 28])).is_err());

    let engine = on(Engine::builder(&model), device).sizes(&sizes()).build().unwrap();
    let refused = engine.acquire_for(&size(1, [28, 36])).unwrap_err().to_string();
    assert!(refused.contains("batch=1,height=20,width=36"), "{refused}");
    // A dimension that is not named has its value in the first size, and a batch is rounded up.
    assert_eq!(engine.acquire_for(&Size::new(3)).unwrap().capacity(), 4);
}

/// Weights, activations and rows are not allocated once for each size. The device has no other engine.
#[allow(dead_code, reason = "on a device that others use nobody can tell")]
pub fn image_sizes_share_their_memory(device: &Device) {
    let model = model();
    let held = |sizes: &[Size]| {
        let engine = Engine::builder(&model).on(device).sizes(sizes).staging(3).results(3).build().unwrap();
        let held = device.memory_use();
        drop(engine);
        held
    };
    let (small, large) = ([size(1, [8, 12]), size(2, [20, 36])], size(8, [28, 28]));
    assert_eq!(held(&[small[0].clone(), large.clone(), small[1].clone()]), held(&[large]));
}

/// The name of a case, and the case, which runs on a device.
type Case = (&'static str, fn(&Device));

/// All cases with their names.
pub const ALL: [Case; 7] = [
    ("images_of_every_size_are_as_in_engines_of_one", images_of_every_size_are_as_in_engines_of_one),
    ("parts_of_a_model_have_every_size", parts_of_a_model_have_every_size),
    ("models_that_read_images_features_have_every_size", models_that_read_images_features_have_every_size),
    ("a_mean_of_image_models_is_there_at_every_size", a_mean_of_image_models_is_there_at_every_size),
    ("a_batcher_has_images_of_every_size", a_batcher_has_images_of_every_size),
    ("a_fleet_has_images_of_every_size", a_fleet_has_images_of_every_size),
    ("sizes_that_images_cannot_have_are_told", sizes_that_images_cannot_have_are_told),
];
