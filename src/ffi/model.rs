//! Models.

use std::ffi::c_char;

use super::growing;
use super::handles::{insert, shared, trefoil_model};
use super::layout::{narrow, trefoil_model_info};
use super::pointers::{self, Out, array, copy_text, slice, text};
use super::status::{Answer, Failure, guard, trefoil_status};
use crate::model::{Model, Network};
use crate::onnx::Sizes;

/// Opens a folder with `model.safetensors` and `config.json`, a `.safetensors` file, or an `.onnx` file of any network.
/// A path is any bytes on Unix, and UTF-8 elsewhere.
///
/// # Safety
/// `path` is a C string or null, `model` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_model_open(path: *const c_char, model: *mut trefoil_model) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let (path, to) = unsafe { (pointers::path(path, "path")?, Out::new(model, "model")?) };
        to.set(insert(Model::open(path)?)?);
        Ok(())
    })
}

/// Opens an `.onnx` file at sizes of its free dimensions: `count` names, as the file has them or `input:axis`, and as
/// many values. One free dimension of each input may stay without a size, and is the batch: the one whose name contains
/// `batch`, or else that of the first axis. Of a folder with safetensors the names are `height` and `width`, or, of an
/// encoder of texts, `sequence`, or `tokens` and `rows` for packed texts.
///
/// # Safety
/// `path` is a C string or null; `names` is null or has `count` pointers, of which each is a C string or null; `values`
/// is null or has `count` numbers; `model` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_model_open_at(
    path: *const c_char,
    names: *const *const c_char,
    values: *const usize,
    count: usize,
    model: *mut trefoil_model,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let (path, to) = unsafe { (pointers::path(path, "path")?, Out::new(model, "model")?) };
        // SAFETY: by the caller.
        let (names, values) = unsafe { (slice(names, count, "names")?, slice(values, count, "values")?) };
        let with = |sizes: Sizes, (&name, &value): (&*const c_char, &usize)| -> Answer<Sizes> {
            // SAFETY: by the caller.
            Ok(sizes.dim(unsafe { text(name, "a name of `names`")? }, value))
        };
        let sizes = names.iter().zip(values).try_fold(Sizes::new(), with)?;
        to.set(insert(Model::open_at(path, &sizes)?)?);
        Ok(())
    })
}

/// The model cut at a node or module, such as `layer4`: its result is that node's value.
///
/// # Safety
/// `node` is a C string or null, `cut` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_model_cut(
    model: trefoil_model,
    node: *const c_char,
    cut: *mut trefoil_model,
) -> trefoil_status {
    guard(|| {
        // SAFETY: by the caller.
        let (node, to) = unsafe { (text(node, "node")?, Out::new(cut, "cut")?) };
        to.set(insert(shared::<Model>(model)?.features_at(node)?)?);
        Ok(())
    })
}

/// Describes the input and the result of a model.
///
/// # Safety
/// `info` is null, or has its `size` set and so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_model_get_info(model: trefoil_model, info: *mut trefoil_model_info) -> trefoil_status {
    guard(|| {
        let model: Model = shared(model)?;
        let pixels = match model.network() {
            Network::Images(images) => {
                let of = &images.shaped().preprocessing;
                [of.input.height, of.input.width, of.input.channels, of.resize]
            }
            Network::Values(_) => [0; 4],
        };
        let [height, width, channels, resize] = pixels.map(narrow);
        let value = |size| {
            Ok(trefoil_model_info {
                size,
                name: array(model.name()),
                height,
                width,
                channels,
                resize,
                classes: model.classes(),
            })
        };
        // SAFETY: by the caller.
        unsafe { growing::write(info, "info", value) }
    })
}

/// Copies the label of a class into `text`, cut to `capacity` bytes with its final NUL. The label of class 3 is
/// `class 3` if the model has no labels. `length` is null, or gets the bytes of the whole label without NUL. A model of
/// values has no classes: then the call returns INVALID_ARGUMENT.
///
/// # Safety
/// `text` has `capacity` bytes, or is null where that is 0; `length` can be written or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_model_label(
    model: trefoil_model,
    index: usize,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> trefoil_status {
    guard(|| {
        let model: Model = shared(model)?;
        let wrong = || Failure::argument(format!("class {index}: expected one below {}", model.classes()));
        let label = model.labels().get(index).ok_or_else(wrong)?;
        // SAFETY: by the caller.
        unsafe { copy_text(label, text, capacity, length) }
    })
}

/// Copies the text that the model's ONNX file has under `key` into `text`, cut to `capacity` bytes with its final NUL.
/// `length` is null, or gets the bytes of the whole text without NUL. An argument error if there is none.
///
/// # Safety
/// `key` is a C string or null; `text` has `capacity` bytes, or is null where that is 0; `length` can be written or is
/// null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_model_metadata(
    model: trefoil_model,
    key: *const c_char,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> trefoil_status {
    guard(|| {
        let model: Model = shared(model)?;
        // SAFETY: by the caller.
        let key = unsafe { pointers::text(key, "key")? };
        let wrong = || Failure::argument(format!("metadata `{key}`: the model has none of this name"));
        let found = model.metadata(key).ok_or_else(wrong)?;
        // SAFETY: by the caller.
        unsafe { copy_text(found, text, capacity, length) }
    })
}
