//! Networks of images in files that leave height and width free.

use trefoil::model::Model;
use trefoil::onnx::Sizes;
use trefoil::{Device, Engine, InputFormat, OutputKind, Shape, Size};

use super::Folder;
use super::graphs::{Dim, FLOAT, file, input, ints, node, output, whole};
use super::write::{bytes, int, message};

const CHANNELS: [usize; 2] = [3, 8];
const CLASSES: usize = 5;

fn size(batch: usize, [height, width]: [usize; 2]) -> Size {
    Size::new(batch).dim("h", height).dim("w", width)
}

/// An initializer with numbers from -0.5 to 0.5.
fn weight(name: &str, dims: &[usize]) -> Vec<u8> {
    let value = |i: usize| ((i * 2_654_435_761 + name.len()) % 101) as f32 / 100.0 - 0.5;
    let data: Vec<u8> = (0..dims.iter().product()).flat_map(|i| value(i).to_le_bytes()).collect();
    let dims = dims.iter().map(|&dim| int(1, dim as i64)).collect::<Vec<_>>().concat();
    message(5, &[dims, int(2, FLOAT), bytes(8, name), bytes(9, data)])
}

/// A convolution that halves an image, its mean over all pixels or over windows of 4 x 4, and a linear layer.
fn network(folder: &Folder, of_windows: bool) -> std::path::PathBuf {
    let [c, k] = CHANNELS;
    let free = [Dim::Named("batch"), Dim::Fixed(c as i64), Dim::Named("h"), Dim::Named("w")];
    let pool = match of_windows {
        true => node("AveragePool", &["relu"], &["pool"], &[ints("kernel_shape", &[4, 4]), ints("strides", &[4, 4])]),
        false => node("GlobalAveragePool", &["relu"], &["pool"], &[]),
    };
    let halved = [ints("pads", &[1, 1, 1, 1]), ints("strides", &[2, 2])];
    let graph = [
        weight("filter", &[k, c, 3, 3]),
        weight("matrix", &[CLASSES, k]),
        weight("bias", &[CLASSES]),
        input("image", FLOAT, &free),
        node("Conv", &["image", "filter"], &["conv"], &halved),
        node("Relu", &["conv"], &["relu"], &[]),
        pool,
        node("Flatten", &["pool"], &["flat"], &[]),
        node("Gemm", &["flat", "matrix", "bias"], &["logits"], &[whole("transB", 1)]),
        output("logits"),
    ];
    folder.write(if of_windows { "windows.onnx" } else { "global.onnx" }, file(&graph, &[]))
}

fn logits(engine: &Engine, image: [usize; 2]) -> Vec<f32> {
    let mut batch = engine.acquire_for(&size(1, image)).unwrap();
    let pixels: Vec<f32> = (0..CHANNELS[0] * image[0] * image[1]).map(|i| (i % 23) as f32 / 11.0 - 1.0).collect();
    batch.row_mut(0).copy_from_slice(bytemuck::cast_slice(&pixels));
    batch.submit(1).unwrap().wait().unwrap().values(0).to_vec()
}

#[test]
fn free_dimensions_are_those_of_the_engine() {
    let (folder, device) = (Folder::new(), Device::cpu(2));
    let path = network(&folder, false);
    let opened =
        |[height, width]: [usize; 2]| Model::open_at(&path, &Sizes::new().dim("h", height).dim("w", width)).unwrap();
    let builder = |model: &Model, sizes: &[Size]| {
        let builder = Engine::builder(model).on(&device).input(InputFormat::F32Nchw).output(OutputKind::Logits);
        builder.sizes(sizes).check(true).build().unwrap()
    };
    let (model, images) = (opened([8, 8]), [[8, 8], [12, 6], [9, 15]]);
    assert_eq!(model.image_network().unwrap().input, Shape::new(8, 8, 3), "a network of images");
    let all = builder(&model, &images.map(|image| size(2, image)));
    for image in images {
        let one = opened(image);
        assert_eq!(model.at(&size(1, image)).unwrap().image_network().unwrap(), one.image_network().unwrap());
        assert_eq!(logits(&all, image), logits(&builder(&one, &[size(2, image)]), image), "{image:?}");
    }
    // The size of the second part is that of the first part's features.
    let (first, second) = model.split_at("relu").unwrap();
    let second = second.at(&size(1, [12, 6])).unwrap();
    assert_eq!(
        (second.image_network().unwrap().input, first.output().unwrap()),
        (Shape::new(6, 3, 8), Shape::new(4, 4, 8))
    );
}

#[test]
fn a_linear_layer_of_windows_has_one_size() {
    let folder = Folder::new();
    let model = Model::open_at(network(&folder, true), &Sizes::new().dim("h", 8).dim("w", 8)).unwrap();
    assert!(model.image_network().is_ok(), "a network of images");
    let sizes = [[8, 8], [16, 8], [8, 16]].map(|image| size(1, image));
    let refused = Engine::builder(&model).on(&Device::cpu(1)).sizes(&sizes).build().unwrap_err().to_string();
    assert!(refused.starts_with("sizes is h=16,w=8; h=8,w=16: ") && refused.contains("; at h=8,w=16: "), "{refused}");
    assert_eq!(refused.matches("logits").count(), 2, "{refused}");
}
