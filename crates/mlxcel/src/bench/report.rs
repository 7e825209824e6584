//! What was measured, as markdown, JSON or CSV.

use mlxcel_engine::Caps;
use serde::Serialize;

use super::Bench;
use super::case::{Case, Kind};
use super::speed::Speed;
use super::work::Work;
use crate::calibration::{self, Calibration};
use crate::engines;
use crate::report::in_words;
use crate::session::Loaded;
use crate::table::{self, Align};

/// The columns of the table, and the side that each keeps to.
const COLUMNS: [(&str, Align); 12] = [
    ("model", Align::Left),
    ("size", Align::Right),
    ("params", Align::Right),
    ("engine", Align::Left),
    ("threads", Align::Right),
    ("dtype", Align::Left),
    ("KV", Align::Left),
    ("test", Align::Left),
    ("tok/s", Align::Right),
    ("median", Align::Right),
    ("GB/s", Align::Right),
    ("GFLOP/s", Align::Right),
];

#[derive(Debug, Serialize)]
pub struct Report<'a> {
    pub model: &'a str,
    pub size_bytes: u64,
    pub parameters: u64,
    pub engine: &'a str,
    pub device: &'a str,
    pub threads: usize,
    pub dtype: String,
    pub kv_dtype: String,
    pub tests: Vec<Measured>,
}

/// One case and what came of it. Speeds count the tokens of all sequences.
#[derive(Debug, Serialize)]
pub struct Measured {
    pub test: String,
    pub prompt_tokens: usize,
    pub new_tokens: usize,
    pub depth: usize,
    pub sequences: usize,
    pub tok_per_s: f64,
    pub tok_per_s_deviation: f64,
    pub tok_per_s_median: f64,
    pub tok_per_s_samples: Vec<f64>,
    /// Weights and cache, in the run in the middle; `None` where the graph does not know its cost.
    pub gigabytes_per_s: Option<f64>,
    pub gflop_per_s: Option<f64>,
    /// What part of the calibrated speeds that is: 1 is all.
    pub read_share: Option<f64>,
    pub peak_share: Option<f64>,
}

impl Measured {
    pub fn new(case: &Case, speed: Speed, work: Option<Work>) -> Self {
        let (prompt_tokens, new_tokens) = match case.kind {
            Kind::Prompt => (case.tokens, 0),
            Kind::Generate => (0, case.tokens),
        };
        let runs_per_s = speed.median / case.all_tokens() as f64;
        let giga = |part: fn(Work) -> u64| work.map(|work| part(work) as f64 * runs_per_s / 1e9);
        Measured {
            test: case.to_string(),
            prompt_tokens,
            new_tokens,
            depth: case.depth,
            sequences: case.sequences,
            tok_per_s: speed.mean,
            tok_per_s_deviation: speed.deviation,
            tok_per_s_median: speed.median,
            tok_per_s_samples: speed.samples,
            gigabytes_per_s: giga(|work| work.bytes),
            gflop_per_s: giga(|work| work.flops),
            read_share: None,
            peak_share: None,
        }
    }

    /// Compares with what the machine can do at most.
    pub fn judge(&mut self, calibration: &Calibration) {
        self.read_share = self.gigabytes_per_s.map(|rate| rate / calibration.read_gigabytes_per_s);
        self.peak_share = self.gflop_per_s.map(|rate| rate / calibration.peak_gflop_per_s());
    }
}

impl<'a> Report<'a> {
    pub fn new(options: &'a Bench, loaded: &Loaded, caps: &'a Caps, mut tests: Vec<Measured>) -> Self {
        if let Some(calibration) = calibration::of(&caps.device) {
            tests.iter_mut().for_each(|test| test.judge(&calibration));
        }
        let checkpoint = &loaded.checkpoint;
        let types = engines::types(options.model.types, caps, checkpoint);
        let (mut parameters, mut size_bytes) = (0, 0);
        for (dtype, shape) in checkpoint.names().filter_map(|name| checkpoint.info(name)) {
            parameters += shape.iter().map(|&n| n as u64).product::<u64>();
            size_bytes += dtype.storage_bytes(shape).unwrap_or(0) as u64;
        }
        Report {
            model: &options.model.model,
            size_bytes,
            parameters,
            engine: caps.name,
            device: &caps.device,
            threads: caps.threads,
            dtype: types.activations.to_string(),
            kv_dtype: types.cache.to_string(),
            tests,
        }
    }

    /// A table, and below it the device.
    pub fn to_markdown(&self) -> String {
        let header = COLUMNS.map(|(name, _)| name.to_string());
        let rule = COLUMNS.map(|(_, align)| if align == Align::Right { "---:" } else { "---" }.to_string());
        let rows: Vec<_> =
            [header, rule].into_iter().chain(self.tests.iter().map(|test| self.cells(test))).collect();
        let lines = table::columns(COLUMNS.map(|(_, align)| align), &rows);
        let table: String = lines.iter().map(|line| format!("| {} |\n", line.join(" | "))).collect();
        format!("{table}\ndevice: {}\n", self.device)
    }

    fn cells(&self, test: &Measured) -> [String; COLUMNS.len()] {
        let rate = |rate: Option<f64>, share: Option<f64>| {
            let share = share.map_or(String::new(), |s| format!(" ({:.0} %)", s * 100.0));
            rate.map_or("-".to_string(), |n| format!("{n:.1}{share}"))
        };
        [
            // A bar in a path would begin another cell.
            self.model.replace('|', "\\|"),
            in_words(self.size_bytes, "B"),
            in_words(self.parameters, ""),
            self.engine.to_string(),
            self.threads.to_string(),
            self.dtype.clone(),
            self.kv_dtype.clone(),
            test.test.clone(),
            format!("{:.2} ± {:.2}", test.tok_per_s, test.tok_per_s_deviation),
            format!("{:.2}", test.tok_per_s_median),
            rate(test.gigabytes_per_s, test.read_share),
            rate(test.gflop_per_s, test.peak_share),
        ]
    }

    /// One line for each case, under the names that JSON has.
    pub fn to_csv(&self) -> String {
        let names = [
            "model,size_bytes,parameters,engine,device,threads,dtype,kv_dtype",
            "test,prompt_tokens,new_tokens,depth,sequences,repetitions",
            "tok_per_s,tok_per_s_deviation,tok_per_s_median",
            "gigabytes_per_s,gflop_per_s,read_share,peak_share",
        ];
        let head = [
            quoted(self.model),
            self.size_bytes.to_string(),
            self.parameters.to_string(),
            self.engine.to_string(),
            quoted(self.device),
            self.threads.to_string(),
            self.dtype.clone(),
            self.kv_dtype.clone(),
        ]
        .join(",");
        let lines = self.tests.iter().map(|test| format!("{head},{}\n", test.to_csv()));
        format!("{}\n{}", names.join(","), lines.collect::<String>())
    }
}

impl Measured {
    fn to_csv(&self) -> String {
        let number = |n: Option<f64>| n.map_or(String::new(), |n| n.to_string());
        [
            self.test.clone(),
            self.prompt_tokens.to_string(),
            self.new_tokens.to_string(),
            self.depth.to_string(),
            self.sequences.to_string(),
            self.tok_per_s_samples.len().to_string(),
            self.tok_per_s.to_string(),
            self.tok_per_s_deviation.to_string(),
            self.tok_per_s_median.to_string(),
            number(self.gigabytes_per_s),
            number(self.gflop_per_s),
            number(self.read_share),
            number(self.peak_share),
        ]
        .join(",")
    }
}

/// A field of [RFC 4180](https://www.rfc-editor.org/rfc/rfc4180).
fn quoted(field: &str) -> String {
    if field.contains(['"', ',', '\n', '\r']) {
        return format!("\"{}\"", field.replace('"', "\"\""));
    }
    field.to_string()
}
