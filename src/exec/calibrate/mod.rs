//! Calibration: scales and means for a model's values from some rows, and the error that each layer in bytes causes.

mod histogram;
mod means;

use std::collections::{BTreeMap, BTreeSet};

use self::histogram::Histogram;
use self::means::{OfRow, Sums};
use super::cpu::Probe;
use crate::error::Error;
use crate::model::{ByteLayer, Model, Op, Quantization, byte_layers};
use crate::sync;

pub use histogram::CalibrationMethod;

/// Computes a network on the CPU, counts the numbers of its values, and finds scales and means for these values.
///
/// ```
/// use trefoil::{CalibrationMethod, Calibrator, model::Model};
/// let model = Model::open("weights/convnet28")?;
/// let mut calibrator = Calibrator::new(&model)?;
/// for row in 0..Calibrator::FEWEST_ROWS {
///     let pixels: Vec<u8> = (0..calibrator.row_bytes()).map(|at| (at * (row + 3) % 251) as u8).collect();
///     calibrator.observe(&pixels)?;
/// }
/// let quantization = calibrator.quantization(CalibrationMethod::default())?;
/// assert!(quantization.floats.contains("conv1"), "the layer that reads the image stays in floats");
/// let quantized = model.quantized(&quantization)?;
/// # Ok::<(), trefoil::Error>(())
/// ```
pub struct Calibrator {
    model: Model,
    probe: Probe,
    layers: Vec<ByteLayer>,
    /// The histograms of values, by the name of the node that writes the value.
    histograms: BTreeMap<String, Histogram>,
    /// For each step, the names of the values that its numbers count for.
    counts_for: BTreeMap<String, BTreeSet<String>>,
    sums: Sums,
    /// Some of the rows, and their results.
    kept: Vec<(Vec<u8>, Vec<f32>)>,
    rows: usize,
}

/// The error of a network's result if one layer alone is computed in bytes.
///
/// ```
/// let layer = trefoil::Sensitivity { layer: "conv2".into(), error: 0.001 };
/// assert!(layer.error < 0.01);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Sensitivity {
    /// The layer.
    pub layer: String,
    /// The sum of the squared errors of all results, as a share of the sum of their squared distances from their mean.
    pub error: f64,
}

/// The number of rows that are kept, to compare results on.
const KEPT: usize = 8;

impl Calibrator {
    /// The least number of rows to observe. Fewer rows say too little about a network's values.
    pub const FEWEST_ROWS: usize = 16;

    /// A calibrator of a network of images. Scales that the model already has are ignored.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a model that is no network of images, or has no layer that can be computed in bytes;
    /// otherwise as for an engine of the model on the CPU.
    pub fn new(model: &Model) -> Result<Self, Error> {
        let model = model.in_floats()?;
        let layers = byte_layers(model.image_network()?);
        if layers.is_empty() {
            return Err(Error::Unsupported {
                what: format!("`{}` in bytes: no convolution reads another layer's value", model.name()),
                instead: "run it as it is".into(),
            });
        }
        let (mut histograms, mut counts_for) = (BTreeMap::new(), BTreeMap::new());
        for value in layers.iter().flat_map(|layer| &layer.values) {
            histograms.insert(value.node.clone(), Histogram::new());
            for step in &value.steps {
                counts_for.entry(step.clone()).or_insert_with(BTreeSet::new).insert(value.node.clone());
            }
        }
        let probe = Probe::new(&model)?;
        let sums = Sums::default();
        Ok(Self { probe, model, layers, histograms, counts_for, sums, kept: Vec::new(), rows: 0 })
    }

    /// Bytes of a row: pixels as [`crate::InputFormat::U8Nhwc`].
    pub fn row_bytes(&self) -> usize {
        self.probe.input().row_bytes
    }

    /// The number of rows that were observed.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Computes a row and counts the numbers of all values.
    ///
    /// # Errors
    /// [`Error::Option`] if `row` has another length.
    pub fn observe(&mut self, row: &[u8]) -> Result<(), Error> {
        self.probe.input().check(row)?;
        let (histograms, counts_for, mut of_row) = (&mut self.histograms, &self.counts_for, OfRow::default());
        let count = |step: &str, values: &[f32]| {
            let Some(nodes) = counts_for.get(step) else { return };
            for node in nodes {
                histograms.get_mut(node).expect("made with it").add(values);
            }
            of_row.add(step, values);
        };
        let result = self.probe.run(row, count);
        of_row.count(&mut self.sums);
        if self.kept.len() < KEPT {
            self.kept.push((row.to_vec(), result.to_vec()));
        }
        self.rows += 1;
        Ok(())
    }

    /// A calibrator of the same network that has observed nothing yet, for another thread; [`Calibrator::merge`] adds
    /// its counts.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn another(&self) -> Result<Self, Error> {
        let (model, layers, counts_for) = (self.model.clone(), self.layers.clone(), self.counts_for.clone());
        let histograms = self.histograms.keys().map(|node| (node.clone(), Histogram::new())).collect();
        let (probe, sums) = (self.probe.another()?, Sums::default());
        Ok(Self { model, probe, layers, histograms, counts_for, sums, kept: Vec::new(), rows: 0 })
    }

    /// Adds the counts of [another calibrator](Calibrator::another), as if this one had observed its rows after its
    /// own.
    ///
    /// ```
    /// # use trefoil::{CalibrationMethod, Calibrator, model::Model};
    /// # let model = Model::open("weights/convnet28")?;
    /// let mut calibrator = Calibrator::new(&model)?;
    /// let rows = vec![vec![127; calibrator.row_bytes()]; Calibrator::FEWEST_ROWS];
    /// let parts = std::thread::scope(|scope| {
    ///     let observe = |rows: &[Vec<u8>]| {
    ///         let mut part = calibrator.another()?;
    ///         rows.iter().try_for_each(|row| part.observe(row)).map(|()| part)
    ///     };
    ///     let threads: Vec<_> = rows.chunks(8).map(|rows| scope.spawn(move || observe(rows))).collect();
    ///     threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<Vec<_>, _>>()
    /// })?;
    /// parts.into_iter().try_for_each(|part| calibrator.merge(part))?;
    /// assert_eq!(calibrator.rows(), Calibrator::FEWEST_ROWS);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] for a calibrator of another network.
    pub fn merge(&mut self, other: Self) -> Result<(), Error> {
        if !other.probe.is_of(&self.probe) {
            return Err(Error::option(
                "calibrator",
                format!("one of `{}`", other.model.name()),
                "one made by `another`",
            ));
        }
        for (histogram, more) in self.histograms.values_mut().zip(other.histograms.into_values()) {
            histogram.merge(more);
        }
        self.sums.merge(other.sums);
        let room = KEPT - self.kept.len();
        self.kept.extend(other.kept.into_iter().take(room));
        self.rows += other.rows;
        Ok(())
    }

    /// Scales and means for all layers that can be computed in bytes. Layers that read the image stay in floats.
    ///
    /// # Errors
    /// [`Error::Option`] after fewer than [`FEWEST_ROWS`](Self::FEWEST_ROWS).
    pub fn quantization(&self, method: CalibrationMethod) -> Result<Quantization, Error> {
        if self.rows < Self::FEWEST_ROWS {
            let expected = format!("{} or more, as varied as what the model will see", Self::FEWEST_ROWS);
            return Err(Error::option("photos", self.rows, expected));
        }
        let (mut scales, mut means) = (BTreeMap::new(), BTreeMap::new());
        for value in self.layers.iter().flat_map(|layer| &layer.values) {
            let steps: u8 = if value.never_negative { 255 } else { 127 };
            let limit = self.histograms[&value.node].limit(method, usize::from(steps));
            let limit = if limit > 0.0 { limit } else { 1.0 }; // nothing but zeros
            scales.insert(value.node.clone(), limit / f32::from(steps));
            means.insert(value.node.clone(), self.sums.means(&value.steps, self.rows));
        }
        let can_be = |name: &str| self.layers.iter().any(|layer| layer.name == name);
        Ok(Quantization { scales, means, floats: self.floats(can_be) })
    }

    /// The error of the results for some of the rows if each layer in turn is the only one in bytes, the worst layer
    /// first. The work runs on as many threads as there are cores. Before each layer, `goes_on` gets the number of
    /// layers begun before and the number of all layers; if it returns false, the layer is left out.
    ///
    /// # Errors
    /// As for [`Model::quantized`], and for an engine of the quantized model on the CPU.
    pub fn sensitivities(
        &self,
        quantization: &Quantization,
        goes_on: impl Fn(usize, usize) -> bool + Sync,
    ) -> Result<Vec<Sensitivity>, Error> {
        let alone = |(before, layer): (usize, &ByteLayer)| {
            if !goes_on(before, self.layers.len()) {
                return Ok(None);
            }
            let alone = Quantization { floats: self.floats(|other| other == layer.name), ..quantization.clone() };
            let error = self.error(&self.model.quantized(&alone)?)?;
            Ok(Some(Sensitivity { layer: layer.name.clone(), error }))
        };
        let told = sync::share("trefoil-calibrate", self.layers.iter().enumerate().collect(), alone)?;
        let mut all: Vec<_> = told.into_iter().flatten().collect();
        all.sort_by(|a, b| b.error.total_cmp(&a.error).then_with(|| a.layer.cmp(&b.layer)));
        Ok(all)
    }

    /// The error of the results if a whole model with the same weights, `quantized`, computes them.
    ///
    /// # Errors
    /// As for an engine of `quantized` on the CPU.
    pub fn error(&self, quantized: &Model) -> Result<f64, Error> {
        let mut probe = Probe::new(quantized)?;
        let [mut errors, mut spread] = [0.0, 0.0];
        for (row, expected) in &self.kept {
            let found = probe.run(row, |_, _| ());
            let mean = expected.iter().map(|value| f64::from(*value)).sum::<f64>() / expected.len() as f64;
            for (found, expected) in found.iter().zip(expected) {
                errors += f64::from(found - expected).powi(2);
                spread += (f64::from(*expected) - mean).powi(2);
            }
        }
        Ok(if errors == 0.0 { 0.0 } else { errors / spread })
    }

    /// The names of all convolutions but those in bytes.
    fn floats(&self, is_in_bytes: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let graph = self.model.image_network().expect("a network of images");
        let convs = graph.nodes.iter().filter(|node| matches!(node.op, Op::Conv2d(_)));
        convs.map(|node| node.name.clone()).filter(|name| !is_in_bytes(name)).collect()
    }
}
