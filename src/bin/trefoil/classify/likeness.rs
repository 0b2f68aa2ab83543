//! Classes that are texts: a photo's probabilities follow from how similar its vector is to theirs.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use trefoil::model::{Embedding, Model, Tower};
use trefoil::{Device, Engine, files};

use crate::cli::{self, ClassifyArgs};
use crate::embed::open_for;
use crate::embed::tokens::Texts;
use crate::embed::write::is_finite;
use crate::models;
use crate::report::Class;
use crate::setup::{self, Ring, Sizes};

/// The place of the label in a template.
const PLACE: &str = "{}";
/// The beginning of the message of each failure.
const OPTION: &str = "--labels-from-text needs a model of images and texts, CLIP or SigLIP";
/// The most bytes of a file with labels.
const MOST_BYTES: u64 = 1 << 24;

/// Labels with their vectors, and how photos are compared with them.
pub struct Likeness {
    labels: Vec<String>,
    /// The vector of each label, of length 1.
    vectors: Vec<Vec<f32>>,
    logits: Logits,
    /// Classes shown for each photo.
    top: usize,
}

/// The factor of cosines, and the bias where each label has a probability of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Logits {
    scale: f64,
    bias: Option<f64>,
}

/// Labels, and the encoder that makes vectors of them.
pub struct Labels {
    labels: Vec<String>,
    texts: Texts,
    model: Model,
    logits: Logits,
}

impl Labels {
    /// Opens the encoder of photos, and the labels with the encoder of texts.
    pub fn open(args: &ClassifyArgs, labels: &str) -> Result<(Model, Self)> {
        let wrong = |what| Err(cli::wrong(&["classify"], what).into());
        if !args.template.contains(PLACE) {
            return wrong(format!("--template: expected {PLACE} in it, found `{}`", args.template));
        }
        if !args.place.sizes.is_empty() {
            return wrong("--size: not together with --labels-from-text".into());
        }
        let labels = read(labels)?;
        let folder = models::find(args.place.model.as_deref())?;
        let asked = |tower| Embedding::new().tower(tower).normalized(true);
        let photos = Model::open_encoder(&folder, &asked(Tower::Images)).context(OPTION)?;
        let logits = Logits::of(&photos)?;
        let text = |label: &String| args.template.replace(PLACE, label).into();
        let texts = Texts::new(&folder, labels.iter().map(text).collect())?;
        let model = open_for(&folder, &asked(Tower::Texts), &texts)?;
        Ok((photos, Self { labels, texts, model, logits }))
    }

    /// Computes the vectors of the labels, once.
    pub fn likeness(self, args: &ClassifyArgs, device: &Device) -> Result<Likeness> {
        let Self { labels, texts, model, logits } = self;
        let ring = Ring::new(args.batch.map_or(Sizes::Default, Sizes::UpTo), args.place.kernels);
        let vectors = vectors(&setup::build_engine(&model, device, &ring)?, &texts)?;
        Ok(Likeness { top: args.top.min(labels.len()), labels, vectors, logits })
    }
}

/// The lines of a file, or the parts of a text between commas.
fn read(labels: &str) -> Result<Vec<String>> {
    let path = Path::new(labels);
    let of = |parts: &mut dyn Iterator<Item = &str>| parts.map(|label| label.trim().to_owned()).collect::<Vec<_>>();
    let all = if path.is_file() {
        let text = String::from_utf8(files::read("read the labels", path, MOST_BYTES)?)
            .with_context(|| format!("{}: expected text in UTF-8", path.display()))?;
        of(&mut text.strip_prefix('\u{feff}').unwrap_or(&text).lines()) // the byte order mark is no part of a label
    } else {
        let may_be_path = !labels.contains(',') && (labels.contains('/') || labels.ends_with(".txt")) || path.is_dir();
        ensure!(!may_be_path, "--labels-from-text: no file {labels}; several texts are separated by commas");
        of(&mut labels.split(','))
    };
    ensure!(!all.is_empty(), "--labels-from-text: there are no labels in {}", path.display());
    if let Some(empty) = all.iter().position(String::is_empty) {
        let of = if path.is_file() { "line" } else { "label" };
        anyhow::bail!("--labels-from-text {labels}: {of} {} is empty", empty + 1);
    }
    Ok(all)
}

/// The vectors of all texts, in their order.
fn vectors(engine: &Engine, texts: &Texts) -> Result<Vec<Vec<f32>>> {
    let mut all = Vec::with_capacity(texts.len());
    for first in (0..texts.len()).step_by(engine.capacity()) {
        let mut batch = engine.acquire()?;
        let rows = engine.capacity().min(texts.len() - first);
        for row in 0..rows {
            texts.fill(first + row, &mut batch, row).map_err(anyhow::Error::msg)?;
        }
        let output = batch.submit(rows)?.wait()?;
        for row in 0..rows {
            let vector = output.port::<f32>(row, "embedding")?;
            ensure!(is_finite(vector), "the vector of text {} is not finite", first + row + 1);
            all.push(vector.to_vec());
        }
    }
    Ok(all)
}

impl Logits {
    /// The scale and bias that the model has learned: the scale is stored as its logarithm, and only SigLIP has a bias.
    fn of(model: &Model) -> Result<Self> {
        let weights = model.weights();
        let number = |name: &str| -> Result<Option<f64>> {
            if weights.dims(name).is_none() {
                return Ok(None);
            }
            Ok(weights.read(name)?.to_f64s().first().copied())
        };
        let scale = number("logit_scale")?.context(OPTION)?;
        ensure!(scale.exp().is_finite(), "the model's `logit_scale` is {scale}, and its exponential is not finite");
        let bias = number("logit_bias")?;
        ensure!(bias.is_none_or(f64::is_finite), "the model's `logit_bias` is not finite");
        Ok(Self { scale: scale.exp(), bias })
    }

    /// The probability of each label, by its cosine: without a bias they add up to 1, with a bias each stands for
    /// itself.
    fn probabilities(self, cosines: &[f64]) -> Vec<f64> {
        let logits = cosines.iter().map(|cosine| self.scale * cosine);
        if let Some(bias) = self.bias {
            return logits.map(|logit| 1.0 / (1.0 + (-logit - bias).exp())).collect();
        }
        let logits: Vec<f64> = logits.collect();
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
    }
}

impl Likeness {
    /// The most probable labels of a photo, by its vector of length 1; of equal ones the first comes first.
    ///
    /// # Errors
    /// For a vector with numbers that are not finite.
    pub fn classes(&self, photo: &[f32]) -> Result<Vec<Class>> {
        ensure!(is_finite(photo), "its vector is not finite");
        let cosine = |text: &Vec<f32>| text.iter().zip(photo).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        let cosines: Vec<f64> = self.vectors.iter().map(cosine).collect();
        let probabilities = self.logits.probabilities(&cosines);
        let mut order: Vec<usize> = (0..self.labels.len()).collect();
        order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
        let class = |&index: &usize| Class {
            index,
            label: self.labels[index].clone(),
            probability: probabilities[index] as f32,
        };
        Ok(order.iter().take(self.top).map(class).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_a_softmax_or_one_of_each() {
        let of = |bias| Logits { scale: 2.0, bias }.probabilities(&[1.0, 0.0, -1.0]);
        let weights = [2.0_f64.exp(), 1.0, (-2.0_f64).exp()];
        let sum: f64 = weights.iter().sum();
        assert!(of(None).iter().zip(weights).all(|(found, weight)| (found - weight / sum).abs() < 1e-12));
        let each = [2.0, 0.0, -2.0].map(|logit: f64| 1.0 / (1.0 + (1.0 - logit).exp()));
        assert!(of(Some(-1.0)).iter().zip(each).all(|(found, wanted)| (found - wanted).abs() < 1e-12));
        let large = Logits { scale: 1e4, bias: None }.probabilities(&[1.0, -1.0]);
        assert_eq!(large, [1.0, 0.0]);
    }

    #[test]
    fn the_most_like_labels_come_first() {
        let labels = ["cat", "dog", "car"].map(str::to_owned).to_vec();
        let vectors = vec![vec![0.0, 1.0], vec![1.0, 0.0], vec![0.0, 1.0]];
        let likeness = Likeness { labels, vectors, logits: Logits { scale: 10.0, bias: None }, top: 2 };
        let found: Vec<usize> = likeness.classes(&[0.6, 0.8]).unwrap().iter().map(|class| class.index).collect();
        assert_eq!(found, [0, 2]);
        assert!(likeness.classes(&[f32::NAN, 0.8]).is_err() && likeness.classes(&[f32::INFINITY, 0.8]).is_err());
    }

    #[test]
    fn labels_are_told_apart_by_commas_and_none_is_empty() {
        assert_eq!(read("cat, red car").unwrap(), ["cat", "red car"]);
        assert!(read("cat,,dog").unwrap_err().to_string().contains("label 2 is empty"));
        assert!(read(" ").unwrap_err().to_string().contains("label 1 is empty"));
    }
}
